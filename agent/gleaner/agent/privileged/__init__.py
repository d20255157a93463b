"""The programs that run as root on a node: the OCI runtime shim and the node helper.

They are small, use only the standard library, and run with the node's own Python (3.9 or newer). They are installed
separately from the agent, and their files belong to root. From the rest of Gleaner they import only the package
`system`. They never open a path that the agent could have prepared, or a file on shared storage. CRIU images pass
between them and the agent only through descriptors (see `system/ipc`).
"""
