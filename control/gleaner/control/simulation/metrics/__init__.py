"""The figures of a replay, their tables, and the files to which they are written."""
