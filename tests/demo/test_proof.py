"""The proof must be able to fail: each way in which a run can be wrong is a doubt."""

from dataclasses import replace

import pytest
from demo import campaign, cluster
from demo.proof import Run, SlicedRun, broken, doubts, ended_from_outside, pace

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


def test_an_agent_that_crashed_on_a_node_that_is_up_is_no_outside_event_and_fails_the_proof() -> None:
    assert ended_from_outside([LOST], lost_nodes_of={"a2"}) == []
    crashed = broken([LOST], lost_nodes_of={"a2"})
    assert crashed == ["slice 1 on node1: lost: a1 fell silent"]
    assert doubts(replace(GOOD, broken=crashed), WHOLE, events=EVENTS) == crashed
    outside = replace(GOOD, broken=crashed, ended_from_outside=["slice 2 on node2: lost: a2 fell silent"])
    assert doubts(outside, WHOLE, events=EVENTS) == crashed, "an outside event excuses no other slice"


@pytest.mark.parametrize(
    "detail",
    [
        "node fault: its process was killed from outside, and not for its memory limit",
        "node fault: its container was removed by somebody else",
    ],
)
def test_a_container_that_somebody_else_killed_is_an_outside_event(detail: str) -> None:
    killed = {"ending": "returned", "agent": "a1", "node": "n1", "detail": detail}
    assert ended_from_outside([killed], lost_nodes_of=()) == [f"slice 1 on n1: returned: {detail}"]
    assert broken([killed], lost_nodes_of=()) == []


@pytest.mark.parametrize(
    "detail",
    [
        "too late: no checkpoint was published before the agent's end",
        "save failed: it holds a device",
        "storage fault: no space is left",
        "node fault: the agent broke: KeyError('c1')",
        "node fault: the container runtime went away: no answer",
        "node fault: its container was removed, or the node's helper lost it",
        "cannot restore: no memory",
    ],
)
def test_a_slice_that_gleaner_lost_is_no_outside_event(detail: str) -> None:
    lost = {"ending": "returned", "agent": "a1", "node": "n1", "detail": detail}
    assert ended_from_outside([lost], lost_nodes_of={"a1"}) == []
    assert broken([lost], lost_nodes_of={"a1"}) == [f"slice 1 on n1: returned: {detail}"]


@pytest.mark.parametrize(
    "attempt",
    [
        {"ending": "succeeded", "detail": ""},
        {"ending": "returned", "detail": "unstarted: the agent was ending"},
        {"ending": "forgotten", "detail": "a1 lives but does not know of it", "started_s": None},
    ],
)
def test_an_attempt_that_lost_nothing_is_no_doubt(attempt: dict[str, object]) -> None:
    assert broken([attempt], lost_nodes_of=()) == ended_from_outside([attempt], lost_nodes_of=()) == []


@pytest.mark.parametrize(
    ("asked", "dead"),
    [
        (("NODE_FAIL", "idle"), True),
        (("TIMEOUT", "down*"), True),
        (("COMPLETED", "idle"), False),
        (("FAILED", "idle"), False),
    ],
)
def test_slurm_says_which_silent_agents_have_lost_their_nodes(
    asked: tuple[str, str], dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, shown = asked
    answers = {"sacct": iter(["RUNNING|1|Unknown|node1", f"{state}|1|9|node1"]), "sinfo": iter([f"{shown}\n"])}

    def run(_node: str, *words: str, **_given: object) -> str:
        program = next(word for word in words if word in {*answers, "scontrol"})
        return "node1" if program == "scontrol" else next(answers[program])

    monkeypatch.setattr(cluster, "run", run)
    monkeypatch.setattr(cluster, "api", lambda _method, _path: [{"name": "a1", "scheduler_id": "17"}])
    jobs = [{"attempts": [{"ending": "saved", "agent": "a0", "node": "node1"}, LOST]}]
    assert campaign.agents_that_lost_their_nodes(jobs) == ({"a1"} if dead else set())


def test_a_run_must_have_been_restored_twice_and_on_two_nodes() -> None:
    assert doubts(replace(GOOD, restores=1), WHOLE, events=EVENTS) == ["restored 1 times, not 2"]
    assert doubts(replace(GOOD, nodes=["node1"] * 3), WHOLE, events=EVENTS) == ["ran on ['node1'] only"]


def test_no_files_at_all_prove_nothing() -> None:
    nothing = Run({}, WHOLE.log)
    assert doubts(replace(GOOD, run=nothing), nothing, events=EVENTS) == ["the uninterrupted run left no files"]
