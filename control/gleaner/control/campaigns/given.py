"""A value that a user wrote, and the place where it was written."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Given:
    """A value and the place where it was written, such as `runs.yaml, line 3` or `--cpus`."""

    value: object
    where: str
