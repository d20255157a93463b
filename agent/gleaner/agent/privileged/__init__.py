"""The programs that run as root on a node: the OCI runtime shim and the node helper. They use the standard library
only, and are small.

They are installed apart from the agent, are owned by root, and run with the node's own Python (3.9 or newer). Of the
rest of Gleaner they import the package `system` alone. They never open a path that the agent could have prepared, nor a
file on shared storage: CRIU images pass between root and the agent through descriptors alone (see `system/ipc`).
"""
