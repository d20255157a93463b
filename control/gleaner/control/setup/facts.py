"""The facts that setup reads: a program's output, a certificate, and the reason why a thing was not read. Pure."""

from dataclasses import dataclass

_LONGEST = 160
"""The most letters of a program's output in a line."""


@dataclass(frozen=True, slots=True)
class Unread:
    """The reason, in one line, why a fact was not read. `is_missing`: what was to be read is not there."""

    why: str
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """A program that has ended: its exit status, and what it has printed."""

    status: int
    stdout: str
    stderr: str = ""

    @property
    def complaint(self) -> str:
        """The last line that the program has printed, or its exit status."""
        lines = [line.strip() for line in f"{self.stdout}\n{self.stderr}".splitlines() if line.strip()]
        return lines[-1][:_LONGEST] if lines else f"exit status {self.status}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that an authority vouches for: the names in it, and its end (seconds since the epoch)."""

    names: tuple[str, ...]
    ends_s: float
