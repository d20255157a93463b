"""One self-contained HTML file of a simulation: `write(path, Page(...))`. It is read without a network."""

from gleaner.control.simulation.report.write import html, write

__all__ = ["html", "write"]
