"""A job's output over its slices: numbered lines, and the one that is not at its end."""

import base64
import queue
import threading
import time

from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.joblog import QUIET_S, JobLog, Mark
from gleaner.agent.protocol import Generation, LogLines, Stream
from gleaner.agent.runtime.lines import MOST_BYTES

Output = list[tuple[int, bytes]]


def followed(log: JobLog, output: Output) -> list[LogLines]:
    log.follow(output, may_wait=lambda: False)
    return list(log.taken())


def saved(log: JobLog) -> Generation:
    """A generation with what the log says of itself, as control gives it to the next agent."""
    facts = {"attempt": 1, "number": 1, "digest": f"sha256:{'0' * 64}", "size_bytes": 1}
    told = Generation.model_validate({**facts, "log_lines": log.first, "open_lines": log.open_lines()})
    return Generation.model_validate_json(told.model_dump_json())


def test_a_line_that_is_open_at_a_save_is_not_given_out_and_ended_by_the_next_slice() -> None:
    first = JobLog.going_on(None)
    assert followed(first, [(1, b"one\ncaf\xc3"), (2, b"err")]) == [LogLines(first=0, lines=("one",))]
    second = JobLog.going_on(saved(first))
    assert followed(second, [(2, b"or\n"), (1, b"\xa9\n")]) == [LogLines(first=1, lines=("error", "caf\u00e9"))]
    assert saved(second).open_lines == {}


def test_a_slice_that_writes_nothing_hands_the_open_line_on() -> None:
    first = JobLog.going_on(None)
    followed(first, [(1, b"half")])
    second = JobLog.going_on(saved(first))
    assert followed(second, []) == []
    assert saved(second) == saved(first)


def test_an_open_line_is_a_line_like_others_when_nobody_goes_on_with_it() -> None:
    log = JobLog.going_on(None)
    followed(log, [(1, b"one\nno end")])
    log.end_lines()
    assert list(log.taken()) == [LogLines(first=1, lines=("no end",))]
    assert log.open_lines() == {}


def test_a_mark_waits_for_what_a_paused_process_wrote_before_and_counts_from_the_jobs_beginning() -> None:
    said: queue.Queue[bytes | None] = queue.Queue()
    log = JobLog.going_on(saved(JobLog(5)))
    output = ((1, piece) for piece in iter(said.get, None))
    following = threading.Thread(target=log.follow, args=(output,), kwargs={"may_wait": lambda: False})
    following.start()
    said.put(b"one\n")
    threading.Timer(QUIET_S / 2, said.put, [b"two\nthr"]).start()
    mark = log.mark(paused_s=time.monotonic())
    assert mark == Mark(7, {Stream.STDOUT: base64.b64encode(b"thr").decode()})
    assert [lines.first for lines in log.taken()] == [5]
    assert log.mark(paused_s=time.monotonic()) == mark  # what control has been told of makes no difference
    said.put(None)
    following.join()


def test_whoever_listens_knows_the_open_line_before_the_log_does_and_what_the_slice_before_left_of_it() -> None:
    first = JobLog.going_on(None)
    followed(first, [(1, b"one\nha")])
    second = JobLog.going_on(saved(first))
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
def test_whatever_is_open_fits_into_a_generation(last: bytes, size_bytes: int) -> None:
    log = JobLog.going_on(None)
    followed(log, [(1, b"x" * size_bytes + last)])
    again = JobLog.going_on(saved(log))
    again.end_lines()
    log.end_lines()
    assert [one.lines for one in again.taken()] == [one.lines for one in log.taken()]
