"""The entry point of `glean`."""

import io
import os
import sys


def _hold_the_places() -> None:
    """Occupy the number of a closed stdin, stdout or stderr, so that no file that is opened later receives it.

    Otherwise our output would be written into one of our own files or connections. A closed stdout still counts as
    closed, which `render` reports.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is the closed stream's
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115


def main() -> int:
    """Run the command line. Ctrl-C ends it quietly, even while it is still being loaded."""
    _hold_the_places()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the terminal cannot show must not stop the program
            stream.reconfigure(errors="backslashreplace")
    try:
        from gleaner.control.cli.app import run

        return run()
    except KeyboardInterrupt:
        return 130
