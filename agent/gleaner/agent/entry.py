"""The entry point of `glean-agent`, which reports a missing package in one line."""

import sys

from gleaner.agent.common.installed_version import installed_version


def main() -> None:
    """Run the agent program. `glean doctor` calls it with `--version`, which needs no other package."""
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
