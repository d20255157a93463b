"""Event loops, one module for each family of schedulers. Each has `run` with the same arguments; `replay` picks one."""
