"""Demonstrations of Gleaner on a small real cluster of containers. `python -m demo` runs the main one (see the
Makefile)."""
