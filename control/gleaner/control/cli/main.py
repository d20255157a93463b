"""The entry point of `glean`."""

import io
import sys


def main() -> int:
    """Run the command line; Ctrl-C ends it quietly, even while it is still being loaded."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a log line that the terminal's encoding lacks is no reason to stop
            stream.reconfigure(errors="backslashreplace")
    try:
        from gleaner.control.cli.app import run

        return run()
    except KeyboardInterrupt:
        return 130
