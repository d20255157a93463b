"""The event loops, one module a family of schedulers; each has `run` with the same arguments. `replay` picks one."""
