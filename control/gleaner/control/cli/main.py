"""The entry point of `glean`."""


def main() -> int:
    """Run the command line; Ctrl-C ends it quietly, even while it is still being loaded."""
    try:
        from gleaner.control.cli.app import run

        return run()
    except KeyboardInterrupt:
        return 130
