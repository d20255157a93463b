"""One job's output on its way from the container to control.

A thread follows the container's log into a buffer; the event loop takes batches out of it. Lines are numbered over
the job's whole life, all slices together. A line that is not at its end when the job is saved goes along with the
checkpoint, so that the next slice ends it.

What is here takes a bounded number of bytes whatever the job prints, since the agent's memory is that of all jobs on
the node. While a job runs, what is more waits in the container's own log; when it stands still or has ended, the
oldest lines are dropped, and all others keep their numbers.
"""

import base64
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.messages import Checkpoint, LogLines, Stream
from gleaner.agent.runtime.log_frames import Lines

BATCH = 2000
BATCH_BYTES = 2**20
"""Control takes no body above 8 MiB, and JSON may need six bytes for a letter."""
BUFFER_BYTES = 8 * 2**20
"""The lines of one job that wait for control may take so much memory."""
RATE_BYTES_S = 2**20
"""The rate at which one job's output is read for long; `BUFFER_BYTES` may come at once. A job that prints without end
must not keep control busy, nor hold up all others' output."""
END_S = 10.0
"""The last lines may take so long to arrive after a container has ended."""
QUIET_S = 0.2
"""After a silence of so long, all that a paused container wrote has come through its runtime,"""
QUIET_WITHIN_S = 5.0
"""or it never will: the runtime hangs."""
_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
_NUMBERS = {stream: number for number, stream in _STREAMS.items()}


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of the output at one instant, as in a checkpoint: the whole lines, and those that were open."""

    lines: int
    open_lines: dict[Stream, str]


NOTHING = Mark(0, {})


def size_in_memory(line: str) -> int:
    """Return the memory that a line takes while it waits, its place in a list included."""
    return sys.getsizeof(line) + 8


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Lines that are on their way to control, and what they take in memory."""

    lines: LogLines
    size_bytes: int


@dataclass(slots=True)
class Rate:
    """An allowance to read: so much a second for long, and `most_bytes` at once."""

    bytes_s: float
    most_bytes: float
    left_bytes: float
    since_s: float

    def allows(self, now_s: float) -> bool:
        """Return True if more may be read. `now_s` is of the monotonic clock.

        >>> rate = Rate(bytes_s=10, most_bytes=100, left_bytes=-5, since_s=0)
        >>> [rate.allows(now_s) for now_s in (0.2, 0.6)]
        [False, True]
        """
        self.left_bytes = min(self.most_bytes, self.left_bytes + self.bytes_s * (now_s - self.since_s))
        self.since_s = now_s
        return self.left_bytes > 0


@dataclass(slots=True)
class JobLog:
    """The lines that have been read and not yet taken. `first` is the number of the first of them."""

    first: int = 0
    _split: Lines = field(default_factory=Lines)
    _begun: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The lines that the slice before had left open."""
    _lines: list[str] = field(default_factory=list[str])
    _ended: threading.Event = field(default_factory=threading.Event)
    _live: Lines | None = None
    """The output as it is written, ahead of the log that is followed."""
    _heard_s: float = 0.0
    """The instant at which output was last read, by the monotonic clock."""
    _changing: threading.Lock = field(default_factory=threading.Lock)
    buffered_bytes: int = 0
    """The memory that the lines take."""
    clock: Clock = field(default_factory=SystemClock)

    @classmethod
    def going_on(cls, checkpoint: Checkpoint | None, clock: Clock) -> "JobLog":
        """Return the log of a slice that starts with this checkpoint, or from the beginning."""
        if checkpoint is None:
            return cls(clock=clock)
        begun = {_NUMBERS[stream]: base64.b64decode(line) for stream, line in checkpoint.open_lines.items()}
        return cls(checkpoint.log_lines, Lines(dict(begun)), begun, clock=clock)

    @property
    def written(self) -> int:
        """The number of lines that the job has written so far, over its whole life."""
        with self._changing:
            return self.first + len(self._lines)

    def follow(self, output: Iterable[tuple[int, bytes]], *, may_wait: Callable[[], bool]) -> None:
        """Read the output to its end, in a thread of its own.

        While there is no room, or too much came, wait where that is allowed; else the oldest lines make room.
        """
        rate = Rate(RATE_BYTES_S, BUFFER_BYTES, BUFFER_BYTES, self.clock.monotonic_s())
        try:
            for line in self._split.of(self._heard(output)):
                size_bytes = size_in_memory(line)
                while may_wait() and not (self._has_room(size_bytes) and rate.allows(self.clock.monotonic_s())):
                    self.clock.pause(0.2)
                rate.left_bytes -= size_bytes
                self._append(line)
                self._heard_s = self.clock.monotonic_s()
        finally:
            self._ended.set()

    def _has_room(self, size_bytes: int) -> bool:
        return self.buffered_bytes + size_bytes <= BUFFER_BYTES

    def _append(self, line: str) -> None:
        with self._changing:
            self._lines.append(line)
            self.buffered_bytes += size_in_memory(line)
            gone = 0
            while self.buffered_bytes > BUFFER_BYTES:
                self.buffered_bytes -= size_in_memory(self._lines[gone])
                gone += 1
            if gone:
                del self._lines[:gone]
                self.first += gone

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
                self._heard_s = self.clock.monotonic_s()
            yield stream, content

    def mark(self, *, paused_s: float) -> Mark:
        """Return the position of the output of a container that has been paused since `paused_s` (monotonic clock).

        Wait until all that the container wrote before has come through its runtime.
        """
        give_up_s = self.clock.monotonic_s() + QUIET_WITHIN_S
        while (quiet_s := max(paused_s, self._heard_s) + QUIET_S - self.clock.monotonic_s()) > 0:
            if self.clock.monotonic_s() > give_up_s:
                break
            self.clock.pause(quiet_s)
        return Mark(self.written, self.open_lines())

    def wait(self) -> None:
        """Wait until all of an ended container's output is here, but no longer than `END_S`."""
        self.clock.wait(self._ended, END_S)

    def open_lines(self) -> dict[Stream, str]:
        """Return the unfinished line of each stream, as in a checkpoint.

        Where nobody listens, it may be known only when the output has ended: Docker keeps an open line to itself.
        """
        known = self._split if self._live is None or self._ended.is_set() else self._live
        begun = {number: line for number, line in known.begun.copy().items() if line}
        return {_STREAMS[number]: base64.b64encode(line).decode() for number, line in begun.items()}

    def end_lines(self) -> None:
        """Turn the open lines into lines like others, since no slice will end them. Not for a job that was saved."""
        for line in self._split.rest():
            self._append(line)

    def taken(self, room_bytes: Callable[[], int] | None = None) -> Iterator[LogBatch]:
        """Take out the lines, in batches that control takes; if `room_bytes` is given, only while there is room."""
        while (room_bytes is None or room_bytes() > 0) and (batch := self._batch()) is not None:
            yield batch

    def _batch(self) -> LogBatch | None:
        with self._changing:
            size_bytes = count = 0
            for line in self._lines[:BATCH]:
                if count and size_bytes + size_in_memory(line) > BATCH_BYTES:
                    break
                size_bytes += size_in_memory(line)
                count += 1
            if not count:
                return None
            taken = LogBatch(LogLines(first=self.first, lines=tuple(self._lines[:count])), size_bytes)
            del self._lines[:count]
            self.first += count
            self.buffered_bytes -= size_bytes
            return taken
