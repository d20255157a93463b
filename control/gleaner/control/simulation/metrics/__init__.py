"""Figures of a replay, their tables, and the files to which figures are written."""
