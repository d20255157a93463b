"""Find the installed version of Gleaner."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the installed distribution's version, or `unknown` when run from files that were never installed."""
    try:
        return version("gleaner-hpc")
    except PackageNotFoundError:
        return "unknown"
