"""The proof must be able to fail: each way in which a run can be wrong is a doubt."""

from dataclasses import replace

import pytest
from demo.proof import Run, SlicedRun, doubts, ended_from_outside, pace

EVENTS = 5


def log(*, numbers: list[int], starts: int = 1, cpu_s: float = 10.0) -> list[str]:
    return [*["start 1"] * starts, *[f"event {number}" for number in numbers], f"cpu_s {cpu_s}"]


FILES = {"histograms.csv": b"1,2,3", "result.json": b"{}"}
WHOLE = Run(files=FILES, log=log(numbers=[1, 2, 3, 4, 5]))
GOOD = SlicedRun(run=WHOLE, nodes=["node1", "node2", "node1"], restores=2)


def test_a_run_that_went_on_and_gave_the_same_files_is_beyond_doubt() -> None:
    slower = replace(GOOD, run=Run(FILES, log(numbers=[1, 2, 3, 4, 5], cpu_s=11.4)))
    assert doubts(slower, WHOLE, events=EVENTS) == []


@pytest.mark.parametrize(
    ("run", "doubt"),
    [
        (Run({**FILES, "result.json": b"{ }"}, WHOLE.log), "files differ: result.json"),
        (Run({"result.json": b"{}"}, WHOLE.log), "files differ: histograms.csv"),
        (Run({**FILES, "more": b""}, WHOLE.log), "files differ: more"),
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5], starts=2)), "the process started 2 times"),
        (Run(FILES, log(numbers=[1, 2, 1, 2, 3, 4, 5])), "the log holds 7 event lines (5 different) for 5 events"),
        (Run(FILES, log(numbers=[1, 2, 4, 5])), "the log holds 4 event lines (4 different) for 5 events"),
        (Run(FILES, log(numbers=[1, 3, 2, 4, 5])), "the log holds 5 event lines (5 different) for 5 events"),
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5], cpu_s=11.6)), "11.6 s of processor time, 10.0 s uninterrupted"),
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5], cpu_s=8.0)), "8.0 s of processor time, 10.0 s uninterrupted"),
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5])[:-1]), "no processor time in the log"),
    ],
)
def test_whatever_is_wrong_with_a_run_is_a_doubt(run: Run, doubt: str) -> None:
    assert doubts(replace(GOOD, run=run), WHOLE, events=EVENTS) == [doubt]


def test_a_fresh_start_in_place_of_a_restore_leaves_the_right_files_and_is_doubted_all_the_same() -> None:
    anew = Run(FILES, ["start 1", "event 1", "event 2", *log(numbers=[1, 2, 3, 4, 5])])
    assert doubts(SlicedRun(anew, ["node1", "node2"], restores=0), WHOLE, events=EVENTS) == [
        "the process started 2 times",
        "the log holds 7 event lines (5 different) for 5 events",
        "restored 0 times, not 2",
    ]


def test_a_machine_that_is_slower_or_faster_changes_all_runs_and_one_that_computed_a_part_twice_stands_out() -> None:
    def run(cpu_s: float) -> Run:
        return Run(FILES, log(numbers=[1, 2, 3, 4, 5], cpu_s=cpu_s))

    slow = pace((run(cpu_s), WHOLE) for cpu_s in (12.0, 12.4, 12.2, 15.0))
    assert doubts(replace(GOOD, run=run(12.4)), WHOLE, events=EVENTS, at_pace=slow) == []
    for wrong in (15.0, 9.9):
        assert len(doubts(replace(GOOD, run=run(wrong)), WHOLE, events=EVENTS, at_pace=slow)) == 1
    fast = pace((run(cpu_s), WHOLE) for cpu_s in (7.4, 8.0, 7.7))
    assert doubts(replace(GOOD, run=run(7.4)), WHOLE, events=EVENTS, at_pace=fast) == []
    assert len(doubts(replace(GOOD, run=run(10.0)), WHOLE, events=EVENTS, at_pace=fast)) == 1
    all_of_them_twice = pace((run(20.0), WHOLE) for _ in range(6))
    assert len(doubts(replace(GOOD, run=run(20.0)), WHOLE, events=EVENTS, at_pace=all_of_them_twice)) == 1


def test_a_slice_that_a_dead_node_ended_is_named_and_only_the_result_is_compared() -> None:
    died = ended_from_outside([{"ending": "saved"}, {"ending": "lost", "node": "node1", "detail": "a1 fell silent"}])
    assert died == ["slice 2 on node1: lost: a1 fell silent"]
    again = SlicedRun(Run(FILES, log(numbers=[1, 2, 1, 2, 3, 4, 5], starts=2)), ["node1", "node2"], 1, died)
    assert doubts(again, WHOLE, events=EVENTS) == []
    wrong = replace(again, run=Run({**FILES, "result.json": b"{ }"}, again.run.log))
    assert doubts(wrong, WHOLE, events=EVENTS) == ["files differ: result.json"]


def test_a_slice_that_gleaner_lost_is_no_outside_event() -> None:
    for detail in ("too late: no checkpoint was published", "save failed: it holds a device", "unstarted: ..."):
        assert ended_from_outside([{"ending": "returned", "node": "n1", "detail": detail}]) == []


def test_a_run_must_have_been_restored_twice_and_on_two_nodes() -> None:
    assert doubts(replace(GOOD, restores=1), WHOLE, events=EVENTS) == ["restored 1 times, not 2"]
    assert doubts(replace(GOOD, nodes=["node1"] * 3), WHOLE, events=EVENTS) == ["ran on ['node1'] only"]


def test_no_files_at_all_prove_nothing() -> None:
    nothing = Run({}, WHOLE.log)
    assert doubts(replace(GOOD, run=nothing), nothing, events=EVENTS) == ["the uninterrupted run left no files"]
