"""A container's output, split into lines. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gleaner.agent.system.untrusted import text_of

MOST_BYTES = 64 * 2**10
"""The size of the pieces into which longer lines are split."""


@dataclass(slots=True)
class OutputLines:
    """Whole lines from a process's output, separately for each stream.

    `beginnings` holds the beginning of each stream's open line, at most `MOST_BYTES`. A process that was saved in the
    middle of a line writes the rest of the line when it is restored.
    """

    beginnings: dict[int, bytes] = field(default_factory=dict[int, bytes])

    def of(self, frames: Iterable[tuple[int, bytes]]) -> Iterator[str]:
        """Yield the lines that these frames complete, without their line ends.

        Bytes that are not UTF-8 are replaced, and so are null characters, which a database would refuse.
        """
        for stream, content in frames:
            *whole, rest = (self.beginnings.get(stream, b"") + content).split(b"\n")
            for one in whole:
                yield from _pieces(one.removesuffix(b"\r"))
            while len(rest) > MOST_BYTES:
                yield text_of(rest[:MOST_BYTES])
                rest = rest[MOST_BYTES:]
            self.beginnings[stream] = rest

    def rest(self) -> list[str]:
        """Return the open lines as whole lines, since nothing will complete them."""
        beginnings = [text_of(line) for line in self.beginnings.values() if line]
        self.beginnings = {}
        return beginnings


def _pieces(line: bytes) -> Iterator[str]:
    for start in range(0, max(len(line), 1), MOST_BYTES):
        yield text_of(line[start : start + MOST_BYTES])
