"""Event loops, with one module for each family of schedulers. Each module has a `run`, and `dispatch.replay` picks
one."""
