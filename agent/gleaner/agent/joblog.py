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
QUIET_S = 0.2
"""When a paused container's output has been silent for so long, all that it wrote has come through its runtime,"""
QUIET_WITHIN_S = 5.0
"""or it never will: the runtime hangs."""
_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
_NUMBERS = {stream: number for number, stream in _STREAMS.items()}


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the output had come at one instant: whole lines, and what was open then, as a generation has it."""

    lines: int
    open_lines: dict[Stream, str]


@dataclass(slots=True)
class JobLog:
    """The lines that have been read and not yet taken. `first` is the number of the next one to be taken."""

    first: int = 0
    _split: Lines = field(default_factory=Lines)
    _begun: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """What the slice before had left open."""
    _lines: list[str] = field(default_factory=list[str])
    _ended: threading.Event = field(default_factory=threading.Event)
    _live: Lines | None = None
    """The output as it is written, ahead of what is followed."""
    _read: int = 0
    """The number of the next line to be read."""
    _heard_s: float = 0.0
    """When something was read, by the monotonic clock."""

    @classmethod
    def going_on(cls, generation: Generation | None) -> "JobLog":
        """The log of a slice that starts with this generation, or from the beginning."""
        if generation is None:
            return cls()
        begun = {_NUMBERS[stream]: base64.b64decode(line) for stream, line in generation.open_lines.items()}
        return cls(generation.log_lines, Lines(dict(begun)), begun, _read=generation.log_lines)

    def follow(self, output: Iterable[tuple[int, bytes]], *, may_wait: Callable[[], bool]) -> None:
        """Read to the end, in a thread of its own; while the buffer is full, wait where that is allowed."""
        try:
            for line in self._split.of(self._heard(output)):
                while len(self._lines) >= BUFFER and may_wait():
                    time.sleep(0.2)
                self._lines.append(line)
                self._read += 1
                self._heard_s = time.monotonic()
        finally:
            self._ended.set()

    def listen(self, output: Iterable[tuple[int, bytes]]) -> None:
        """Read the same output as it is written, in a thread of its own, for its open lines."""
        self._live = Lines(dict(self._begun))
        try:
            for _ in self._live.of(self._heard(output)):
                pass
        finally:
            self._live = None

    def _heard(self, output: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for stream, content in output:
            if content:
                self._heard_s = time.monotonic()
            yield stream, content

    def mark(self, *, paused_s: float) -> Mark:
        """How far the output of a container has come that has been paused since `paused_s` (monotonic clock).

        Waits until what it wrote before has come through its runtime.
        """
        give_up_s = time.monotonic() + QUIET_WITHIN_S
        while (quiet_s := max(paused_s, self._heard_s) + QUIET_S - time.monotonic()) > 0:
            if time.monotonic() > give_up_s:
                break
            time.sleep(quiet_s)
        return Mark(self._read, self.open_lines())

    def wait(self) -> None:
        """Until all of an ended container's output is here, but no longer than `END_S`."""
        self._ended.wait(END_S)

    def open_lines(self) -> dict[Stream, str]:
        """What each stream has written of a line that has no end yet, as a generation has it.

        Where nobody listens, it may be known only when the output has ended: Docker keeps an open line to itself.
        """
        known = self._split if self._live is None or self._ended.is_set() else self._live
        begun = {number: line for number, line in known.begun.copy().items() if line}
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
