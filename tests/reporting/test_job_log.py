"""A job's output over its slices: numbered lines, and the one that is not at its end."""

import base64
import queue
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.agent.common.clock import SystemClock
from gleaner.agent.messages import Checkpoint, LogLines, Stream
from gleaner.agent.reporting import job_log
from gleaner.agent.reporting.client import LOG_BYTES_A_JOB, Outbox
from gleaner.agent.reporting.job_log import BATCH_BYTES, BUFFER_BYTES, QUIET_S, JobLog, Mark, Rate, size_in_memory
from gleaner.agent.reporting.output_lines import MOST_BYTES

Output = list[tuple[int, bytes]]


def followed(log: JobLog, output: Output) -> list[LogLines]:
    log.follow(output, may_wait=lambda: False)
    return batches(log)


def batches(log: JobLog) -> list[LogLines]:
    return [one.lines for one in log.take_batches()]


def saved(log: JobLog) -> Checkpoint:
    """A checkpoint with what the log says of itself, as control gives it to the next agent."""
    facts = {"attempt": 1, "number": 1, "digest": f"sha256:{'0' * 64}", "size_bytes": 1}
    told = Checkpoint.model_validate({**facts, "log_lines": log.line_count, "open_lines": log.open_lines()})
    return Checkpoint.model_validate_json(told.model_dump_json())


def test_a_line_that_is_open_at_a_save_is_not_given_out_and_ended_by_the_next_slice() -> None:
    first = JobLog.from_checkpoint(None, SystemClock())
    assert followed(first, [(1, b"one\ncaf\xc3"), (2, b"err")]) == [LogLines(first=0, lines=("one",))]
    second = JobLog.from_checkpoint(saved(first), SystemClock())
    assert followed(second, [(2, b"or\n"), (1, b"\xa9\n")]) == [LogLines(first=1, lines=("error", "caf\u00e9"))]
    assert saved(second).open_lines == {}


def test_lines_that_the_containers_log_has_lost_are_counted_once_in_a_line_of_their_own() -> None:
    log = JobLog.from_checkpoint(None, SystemClock())
    log.listen([(1, b"1\n2\n3\n4\nopen")])
    assert followed(log, [(1, b"1\n4\n")]) == [LogLines(first=0, lines=("1", "4"))]
    log.mark(paused_s=0.0)
    log.end_lines()
    (batch,) = batches(log)
    assert batch.first == 2
    assert batch.lines == ("[gleaner] 2 lines above are missing: they were printed faster than they can be kept",)


def test_an_open_line_is_a_line_like_others_when_nobody_goes_on_with_it() -> None:
    log = JobLog.from_checkpoint(None, SystemClock())
    followed(log, [(1, b"one\nno end")])
    log.end_lines()
    assert batches(log) == [LogLines(first=1, lines=("no end",))]
    assert log.open_lines() == {}


def test_a_mark_waits_for_what_a_paused_process_wrote_before_and_counts_from_the_jobs_beginning() -> None:
    said: queue.Queue[bytes | None] = queue.Queue()
    log = JobLog.from_checkpoint(saved(JobLog(5)), SystemClock())
    output = ((1, piece) for piece in iter(said.get, None))
    following = threading.Thread(target=log.follow, args=(output,), kwargs={"may_wait": lambda: False})
    following.start()
    said.put(b"one\n")
    threading.Timer(QUIET_S / 2, said.put, [b"two\nthr"]).start()
    mark = log.mark(paused_s=time.monotonic())
    assert mark == Mark(7, {Stream.STDOUT: base64.b64encode(b"thr").decode()})
    assert [lines.first for lines in batches(log)] == [5]
    assert log.mark(paused_s=time.monotonic()) == mark  # what control has been told of makes no difference
    said.put(None)
    following.join()


def test_whoever_listens_knows_the_open_line_before_the_log_does_and_what_the_slice_before_left_of_it() -> None:
    first = JobLog.from_checkpoint(None, SystemClock())
    followed(first, [(1, b"one\nha")])
    second = JobLog.from_checkpoint(saved(first), SystemClock())
    heard: queue.Queue[bytes | None] = queue.Queue()
    listening = threading.Thread(target=second.listen, args=(((1, piece) for piece in iter(heard.get, None)),))
    listening.start()
    heard.put(b"lf")
    mark = second.mark(paused_s=time.monotonic())
    assert mark == Mark(1, {Stream.STDOUT: base64.b64encode(b"half").decode()})
    heard.put(b"\nnext")
    mark = second.mark(paused_s=time.monotonic())
    assert mark.open_lines == {Stream.STDOUT: base64.b64encode(b"next").decode()}
    heard.put(None)
    listening.join()
    followed(second, [(1, b"lf\nnext")])  # when it has ended, the log has all
    assert second.open_lines() == mark.open_lines


@given(st.binary(max_size=50), st.integers(0, 3 * MOST_BYTES))
def test_whatever_is_open_fits_into_a_checkpoint(last: bytes, size_bytes: int) -> None:
    log = JobLog.from_checkpoint(None, SystemClock())
    followed(log, [(1, b"x" * size_bytes + last)])
    again = JobLog.from_checkpoint(saved(log), SystemClock())
    again.end_lines()
    log.end_lines()
    assert [one.lines for one in batches(again)] == [one.lines for one in batches(log)]


PATH = "/jobs/7/attempts/1/log"
MIB = 2**20


def long_lines(count: int) -> Iterator[tuple[int, bytes]]:
    """Yield lines of 64 KiB, as in the finding."""
    for number in range(count):
        yield 1, f"{number:06}".encode() + b"x" * (MOST_BYTES - 7) + b"\n"


def flush(log: JobLog, outbox: Outbox, *, all_of_it: bool = False) -> None:
    """Flush the log as an agent does."""
    for one in log.take_batches(None if all_of_it else lambda: outbox.room_bytes(PATH)):
        outbox.put(PATH, one.lines, log_bytes=one.size_bytes)


@pytest.mark.slow
def test_what_a_running_job_prints_waits_in_its_containers_log_when_there_is_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job_log, "BUFFER_BYTES", 1000)
    read: list[int] = []

    def output() -> Iterator[tuple[int, bytes]]:
        for number in range(100):
            read.append(number)
            yield 1, f"line {number}\n".encode()

    log, runs = JobLog.from_checkpoint(None, SystemClock()), threading.Event()
    runs.set()
    following = threading.Thread(target=log.follow, args=(output(),), kwargs={"may_wait": runs.is_set})
    following.start()
    lines: list[str] = []
    while len(lines) < 100:
        assert log.buffered_bytes <= 1000
        assert len(read) <= len(lines) + 1000 // size_in_memory("line 0") + 1
        lines += [line for one in batches(log) for line in one.lines]
    following.join()
    assert lines == [f"line {number}" for number in range(100)]


def test_an_outbox_takes_only_so_much_of_a_jobs_output_and_the_rest_stays_where_it_is() -> None:
    log, outbox = JobLog.from_checkpoint(None, SystemClock()), Outbox(lambda _path, _body: "")
    log.follow(long_lines(120), may_wait=lambda: False)
    flush(log, outbox)
    here_bytes = sum(report.log_bytes for report in outbox._waiting)
    assert LOG_BYTES_A_JOB <= here_bytes <= LOG_BYTES_A_JOB + BATCH_BYTES
    assert log.buffered_bytes > 4 * MIB
    outbox.deliver()
    flush(log, outbox)
    waiting = outbox._waiting[0].message
    assert isinstance(waiting, LogLines)
    assert waiting.first == here_bytes // (MOST_BYTES + 40)


def test_a_job_that_prints_without_end_is_read_no_faster_than_its_rate() -> None:
    rate = Rate(bytes_s=1000, most_bytes=5000, allowance_bytes=5000, since_s=0.0)
    read_bytes = 0
    for tick in range(1000):  # 100 seconds
        while rate.allows(tick / 10):
            rate.allowance_bytes -= 70
            read_bytes += 70
    assert read_bytes <= 5000 + 100 * 1000 + 70
    assert read_bytes >= 100 * 1000


chunks = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda letter, times: letter.encode() * times, st.sampled_from("x\n\x01\u00e9\U0001f600"), st.integers(0, 400)
    ),
)


@settings(deadline=None)
@given(st.lists(st.lists(chunks, max_size=8), max_size=8), st.booleans(), st.integers(400, 4000))
def test_whatever_is_printed_what_waits_stays_below_its_bound_and_every_line_keeps_its_number(
    rounds: list[list[bytes]], is_taken: bool, most_bytes: int
) -> None:
    whole, log = JobLog.from_checkpoint(None, SystemClock()), JobLog.from_checkpoint(None, SystemClock())
    with pytest.MonkeyPatch.context() as patched:
        for pieces in rounds:
            output = [(1, piece) for piece in pieces]
            patched.setattr(job_log, "BUFFER_BYTES", BUFFER_BYTES)
            whole.follow(output, may_wait=lambda: False)
            patched.setattr(job_log, "BUFFER_BYTES", most_bytes)
            log.follow(output, may_wait=lambda: False)
            assert log.buffered_bytes <= most_bytes
            assert log.line_count == whole.line_count
            for one in batches(log) if is_taken else ():
                assert one.lines == tuple(whole._lines[one.first : one.first + len(one.lines)])
        kept = sum(map(size_in_memory, log._lines))
        assert kept == log.buffered_bytes
        assert log._lines == whole._lines[log.first :]
