"""The report of a simulation as one self-contained HTML file, which `write(path, Page(...))` writes. It needs no
network."""

from gleaner.control.simulation.report.write import html, write

__all__ = ["html", "write"]
