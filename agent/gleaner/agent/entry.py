"""The entry point of `glean-agent`. If a package that the agent needs is missing, one line says so."""

import sys

from gleaner.agent.common.installed_version import installed_version


def main() -> None:
    """Run the agent program. `--version` loads nothing: `glean doctor` sees by it that the program can be started."""
    if sys.argv[1:] == ["--version"]:
        sys.stdout.write(f"glean-agent {installed_version()}\n")
        return
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
