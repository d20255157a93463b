"""One job's output on its way from the container to control.

A thread reads the container's log into a buffer, from which the event loop takes batches. Lines are numbered over the
job's whole life, across all slices. A line that is still open when the job is saved is stored in the checkpoint, so
that the next slice can complete it.

The buffer is limited, because all jobs on the node share the agent's memory. While a job runs, the rest of its output
waits in the container's own log. When the job is paused or has ended, the oldest lines are dropped, and all others keep
their numbers.
"""

import base64
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.messages import Checkpoint, LogLines, Stream
from gleaner.agent.reporting.output_lines import OutputLines

BATCH = 2000
BATCH_BYTES = 2**20
"""The size limit of one batch. Control accepts no body over 8 MiB, and JSON can need six bytes for one character."""
BUFFER_BYTES = 8 * 2**20
"""The memory limit for one job's lines that wait for control."""
RATE_BYTES_S = 2**20
"""The mean rate at which one job's output is read. Bursts of up to `BUFFER_BYTES` are allowed. A job that prints
without end must not keep control busy, nor delay the output of all others."""
END_S = 10.0
"""The longest wait for the last lines after a container has ended."""
QUIET_S = 0.2
"""After this much silence, all output of a paused container is considered to have passed through its runtime."""
QUIET_WITHIN_S = 5.0
"""The longest wait for that silence, after which the runtime counts as hanging."""
_STREAMS = {1: Stream.STDOUT, 2: Stream.STDERR}
_NUMBERS = {stream: number for number, stream in _STREAMS.items()}


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of the output at one instant, as in a checkpoint: the number of whole lines, and the open lines."""

    lines: int
    open_lines: dict[Stream, str]


NO_OUTPUT = Mark(0, {})


def size_in_memory(line: str) -> int:
    """Return the memory that a waiting line uses, including its place in a list."""
    return sys.getsizeof(line) + 8


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Lines on their way to control, and the memory that they use."""

    lines: LogLines
    size_bytes: int


@dataclass(slots=True)
class Rate:
    """A limit on reading, given as a mean rate and a largest burst of `most_bytes` (a token bucket)."""

    bytes_s: float
    most_bytes: float
    allowance_bytes: float
    since_s: float

    def allows(self, now_s: float) -> bool:
        """Return True if more can be read now. `now_s` is a time of the monotonic clock.

        >>> rate = Rate(bytes_s=10, most_bytes=100, allowance_bytes=-5, since_s=0)
        >>> [rate.allows(now_s) for now_s in (0.2, 0.6)]
        [False, True]
        """
        self.allowance_bytes = min(self.most_bytes, self.allowance_bytes + self.bytes_s * (now_s - self.since_s))
        self.since_s = now_s
        return self.allowance_bytes > 0


@dataclass(slots=True)
class JobLog:
    """The lines that wait for control. `first` is the number of the first one."""

    first: int = 0
    _split: OutputLines = field(default_factory=OutputLines)
    _first_beginnings: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The lines that the previous slice left open."""
    _lines: list[str] = field(default_factory=list[str])
    _end_of_output: threading.Event = field(default_factory=threading.Event)
    _live: OutputLines | None = None
    """The live output, which is ahead of the container's log."""
    _live_count: int = 0
    """The number of whole lines that the job has written over its life, as counted in the live output."""
    _last_output_s: float = 0.0
    """The instant of the last output, by the monotonic clock."""
    _changing: threading.Lock = field(default_factory=threading.Lock)
    buffered_bytes: int = 0
    """The memory that the waiting lines use."""
    clock: Clock = field(default_factory=SystemClock)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint | None, clock: Clock) -> "JobLog":
        """Return the log of a slice that starts from this checkpoint, or from the beginning."""
        if checkpoint is None:
            return cls(clock=clock)
        beginnings = {_NUMBERS[stream]: base64.b64decode(line) for stream, line in checkpoint.open_lines.items()}
        lines = checkpoint.log_lines
        return cls(lines, OutputLines(dict(beginnings)), beginnings, _live_count=lines, clock=clock)

    @property
    def line_count(self) -> int:
        """The number of lines that the job has written so far, over its whole life."""
        with self._changing:
            return self.first + len(self._lines)

    def follow(self, output: Iterable[tuple[int, bytes]], *, may_wait: Callable[[], bool]) -> None:
        """Read the output to its end, in its own thread.

        If the buffer is full or the output is too fast, wait while `may_wait` returns True, or else drop the oldest
        lines.
        """
        rate = Rate(RATE_BYTES_S, BUFFER_BYTES, BUFFER_BYTES, self.clock.monotonic_s())
        try:
            for line in self._split.of(self._note_times(output)):
                size_bytes = size_in_memory(line)
                while may_wait() and not (
                    self.buffered_bytes + size_bytes <= BUFFER_BYTES and rate.allows(self.clock.monotonic_s())
                ):
                    self.clock.pause(0.2)
                rate.allowance_bytes -= size_bytes
                self._append(line)
                self._last_output_s = self.clock.monotonic_s()
        finally:
            self._end_of_output.set()

    def _append(self, line: str) -> None:
        with self._changing:
            self._lines.append(line)
            self.buffered_bytes += size_in_memory(line)
            dropped = 0
            while self.buffered_bytes > BUFFER_BYTES:
                self.buffered_bytes -= size_in_memory(self._lines[dropped])
                dropped += 1
            if dropped:
                del self._lines[:dropped]
                self.first += dropped

    def listen(self, output: Iterable[tuple[int, bytes]]) -> None:
        """Read the same output live, in its own thread, to learn which lines are open."""
        self._live = OutputLines(dict(self._first_beginnings))
        try:
            for _ in self._live.of(self._note_times(output)):
                self._live_count += 1
        finally:
            self._live = None

    def _note_times(self, output: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for stream, content in output:
            if content:
                self._last_output_s = self.clock.monotonic_s()
            yield stream, content

    def mark(self, *, paused_s: float) -> Mark:
        """Return the position of the output of a container that has been paused since `paused_s` (monotonic clock).

        Wait until all output that the container wrote before that instant has passed through its runtime.
        """
        give_up_s = self.clock.monotonic_s() + QUIET_WITHIN_S
        while (quiet_s := max(paused_s, self._last_output_s) + QUIET_S - self.clock.monotonic_s()) > 0:
            if self.clock.monotonic_s() > give_up_s:
                break
            self.clock.pause(quiet_s)
        else:
            self._mark_gap()
        return Mark(self.line_count, self.open_lines())

    def wait(self) -> None:
        """Wait until all output of an ended container has arrived, but no longer than `END_S`."""
        self.clock.wait(self._end_of_output, END_S)

    def open_lines(self) -> dict[Stream, str]:
        """Return the open line of each stream, as in a checkpoint.

        Without live output, the open lines might be known only at the end, because Docker does not log open lines.
        """
        lines = self._split if self._live is None or self._end_of_output.is_set() else self._live
        beginnings = {number: line for number, line in lines.beginnings.copy().items() if line}
        return {_STREAMS[number]: base64.b64encode(line).decode() for number, line in beginnings.items()}

    def end_lines(self) -> None:
        """Turn the open lines into whole lines, because no later slice will complete them. Do not call this for a saved
        job."""
        self._mark_gap()
        for line in self._split.rest():
            self._append(line)

    def _mark_gap(self) -> None:
        """Add a line that reports how many lines the container's log has lost because it was read too slowly."""
        if (missing := self._live_count - self.line_count) > 0:
            self._append(f"[gleaner] {missing} lines above are missing: they were printed faster than they can be kept")
            self._live_count = self.line_count

    def take_batches(self, room_bytes: Callable[[], int] | None = None) -> Iterator[LogBatch]:
        """Yield the lines in batches that control accepts, and remove them here. With `room_bytes`, stop when there is
        no room."""
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
            batch = LogBatch(LogLines(first=self.first, lines=tuple(self._lines[:count])), size_bytes)
            del self._lines[:count]
            self.first += count
            self.buffered_bytes -= size_bytes
            return batch
