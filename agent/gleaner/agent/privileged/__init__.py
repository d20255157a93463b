"""What runs as root on a node: the OCI runtime shim and the node helper. Standard library only, and small.

Installed apart from the agent, owned by root, and run by the node's own Python (3.9 or newer): it imports nothing
of the rest of Gleaner. It never opens a path that the agent could have prepared, and no file on shared storage:
CRIU's images pass between root and the agent through descriptors alone (see `meeting`).
"""
