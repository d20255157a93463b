"""One job's output on its way from the container to control.

A thread follows the container's log into a buffer; the event loop takes batches out of it. Lines are numbered over
the job's whole life, all slices together. A line that is not at its end when the job is saved goes along with the
generation, so that the next slice ends it.
"""

import base64
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gleaner.agent.protocol import Generation, LogLines, Stream
from gleaner.agent.runtime.lines import Lines

BATCH = 2000
BATCH_LETTERS = 2**20
"""Control takes no body above 8 MiB, and JSON may need six bytes for a letter."""
BUFFER = 100_000
"""Lines that wait for control; past this the job's output waits in the container's own log."""
END_S = 10.0
"""How long the last lines may take to arrive after a container has ended."""
_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
_NUMBERS = {stream: number for number, stream in _STREAMS.items()}


@dataclass(slots=True)
class JobLog:
    """The lines that have been read and not yet taken. `first` is the number of the next one to be taken."""

    first: int = 0
    _split: Lines = field(default_factory=Lines)
    _lines: list[str] = field(default_factory=list[str])
    _ended: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def going_on(cls, generation: Generation | None) -> "JobLog":
        """The log of a slice that starts with this generation, or from the beginning."""
        if generation is None:
            return cls()
        begun = {_NUMBERS[stream]: base64.b64decode(line) for stream, line in generation.open_lines.items()}
        return cls(generation.log_lines, Lines(begun))

    def follow(self, output: Iterable[tuple[int, bytes]], *, may_wait: Callable[[], bool]) -> None:
        """Read to the end, in a thread of its own; while the buffer is full, wait where that is allowed."""
        try:
            for line in self._split.of(output):
                while len(self._lines) >= BUFFER and may_wait():
                    time.sleep(0.2)
                self._lines.append(line)
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Until all of an ended container's output is here, but no longer than `END_S`."""
        self._ended.wait(END_S)

    def open_lines(self) -> dict[Stream, str]:
        """What each stream has written of a line that has no end yet, as a generation has it.

        Known when the output has ended: Docker keeps an open line to itself until then.
        """
        begun = {number: line for number, line in dict(self._split.begun).items() if line}
        return {_STREAMS[number]: base64.b64encode(line).decode() for number, line in begun.items()}

    def end_lines(self) -> None:
        """Nobody goes on with the open lines: they are lines like others. Not for a job that was saved."""
        self._lines += self._split.rest()

    def taken(self) -> Iterator[LogLines]:
        """Take out what is here, in batches that control takes. A batch is out when the next one is asked for."""
        while lines := self._batch():
            yield LogLines(first=self.first, lines=lines)
            del self._lines[: len(lines)]
            self.first += len(lines)

    def _batch(self) -> tuple[str, ...]:
        lines = self._lines[:BATCH]
        lengths = itertools.accumulate(len(line) for line in lines)
        fitting = sum(1 for letters in lengths if letters <= BATCH_LETTERS)
        return tuple(lines[: max(1, fitting)])
