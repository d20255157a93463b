"""The entry point of `glean-agent`. If a package that the agent needs is missing, one line says so."""

import sys


def main() -> None:
    """Run the agent program."""
    try:
        from gleaner.agent import main as program
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "gleaner":
            raise
        sys.stderr.write(f"glean-agent: {missing} is not installed here: pip install 'gleaner-hpc[agent]'\n")
        sys.exit(2)
    program.main()


if __name__ == "__main__":
    main()
