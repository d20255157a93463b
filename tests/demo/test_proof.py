"""The proof must be able to fail: each way in which a run can be wrong is a doubt."""

from dataclasses import replace

import pytest
from demo.proof import Run, SlicedRun, broken, doubts, ended_from_outside

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
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5], starts=2)), "the process started 2 times"),
        (Run(FILES, log(numbers=[1, 2, 1, 2, 3, 4, 5])), "the log holds 7 event lines (5 different) for 5 events"),
        (Run(FILES, log(numbers=[1, 3, 2, 4, 5])), "the log holds 5 event lines (5 different) for 5 events"),
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5], cpu_s=11.6)), "11.6 s of processor time, 10.0 s uninterrupted"),
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5], cpu_s=8.0)), "8.0 s of processor time, 10.0 s uninterrupted"),
        (Run(FILES, log(numbers=[1, 2, 3, 4, 5])[:-1]), "no processor time in the log"),
    ],
)
def test_whatever_is_wrong_with_a_run_is_a_doubt(run: Run, doubt: str) -> None:
    assert doubts(replace(GOOD, run=run), WHOLE, events=EVENTS) == [doubt]


LOST: dict[str, object] = {"ending": "lost", "agent": "a1", "node": "node1", "detail": "a1 fell silent"}


def test_a_slice_that_a_dead_node_ended_is_named_and_only_the_result_is_compared() -> None:
    attempts: list[dict[str, object]] = [{"ending": "saved"}, LOST]
    died = ended_from_outside(attempts, lost_nodes_of={"a1"})
    assert died == ["slice 2 on node1: lost: a1 fell silent"]
    assert broken(attempts, lost_nodes_of={"a1"}) == []
    again = SlicedRun(Run(FILES, log(numbers=[1, 2, 1, 2, 3, 4, 5], starts=2)), ["node1", "node2"], 1, died)
    assert doubts(again, WHOLE, events=EVENTS) == []
    wrong = replace(again, run=Run({**FILES, "result.json": b"{ }"}, again.run.log))
    assert doubts(wrong, WHOLE, events=EVENTS) == ["files differ: result.json"]


@pytest.mark.parametrize(
    "detail",
    [
        "too late: no checkpoint was published before the agent's end",
        "save failed: it holds a device",
        "node fault: the agent broke: KeyError('c1')",
        "node fault: the container runtime went away: no answer",
        "node fault: its container was removed, or the node's helper lost it",
    ],
)
def test_a_slice_that_gleaner_lost_is_no_outside_event(detail: str) -> None:
    lost = {"ending": "returned", "agent": "a1", "node": "n1", "detail": detail}
    assert ended_from_outside([lost], lost_nodes_of={"a1"}) == []
    assert broken([lost], lost_nodes_of={"a1"}) == [f"slice 1 on n1: returned: {detail}"]
