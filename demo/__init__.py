"""The main job, for real, on a small cluster of containers: `python -m demo` (see the Makefile)."""
