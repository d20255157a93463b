"""Reasons at the command line: why a job is where it is, a decision in full, and the same decision made once more."""

import json
import time
from typing import Any

import pytest
import yaml
from tests.cli.cli_harness import CliHarness

from gleaner.agent.messages import ReturnReason
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.policy.entitlements_view import Decision, Verdict, as_answer
from gleaner.control.queue import decisions
from gleaner.control.queue.database import transaction

GIVEN: dict[str, Any] = {
    "capacity_cpus": 4,
    "entitled": {"atlas": 50},
    "multiplier": {},
    "are_others_equal": True,
    "holds_cpus": {"cms": 2},
    "waiting": ["atlas", "cms"],
    "turns": [
        {
            "free_cpus": 1,
            "firsts": [
                {"job": 2, "group": "atlas", "cpus": 1, "is_saved": False, "priority": 0},
                {"job": 1, "group": "cms", "cpus": 1, "is_saved": False, "priority": 0},
            ],
        }
    ],
}
ANSWER: dict[str, Any] = {
    "start": [2],
    "because": {"job 2": "group atlas held 0 of the 2 cores that are its target"},
}

WHY = (
    "chosen to free what it holds at it is preempted for job 4712: cms is entitled to 9 CPUs and has 0",
    "released before all others at cms is entitled to 9 CPUs and has 0",
    "held at cms is entitled to 9 CPUs and has 9, so it waits for 4 idle CPUs",
    "released at there is idle room for it",
)


def stored(harness: CliHarness, *subjects: str, group: str | None = None, **more: Any) -> int:
    told: dict[str, Any] = {
        "kind": DecisionKind.START,
        "policy": "fairshare",
        "given": GIVEN,
        "answer": ANSWER,
        "acted": True,
    }
    with transaction(harness.node.engine) as db:
        return decisions.record(db, subjects=dict.fromkeys(subjects, group), now_s=time.time(), **(told | more))


def waits_between_others(admin: CliHarness, harness: CliHarness) -> int:
    """Submit a job of the user's own, between two of another group."""
    admin.good("token", "create", "--role", "user", "--name", "bob", "--group", "cms")
    admin.submit("--group", "cms")
    job = harness.submit()
    admin.submit("--group", "cms")
    return job


@pytest.mark.slow
def test_a_job_that_runs_says_which_decision_started_it(admin: CliHarness, harness: CliHarness) -> None:
    job = waits_between_others(admin, harness)
    harness.node.claim()
    said = harness.good("why", str(job))
    assert said.startswith(f"job {job} runs on node1 since ")
    number = json.loads(harness.good("why", f"job:{job}", "--json"))["decision"]
    assert said.endswith(f"of all jobs that fit. (glean explain {number})\n")
    shown = harness.good("explain", str(number))
    assert f"{number}, start, by the policy fairshare" in shown
    assert "carried out" in shown
    assert yaml.safe_load(shown)["decided from"]["turns"][0]["firsts"]
    assert "cms" in shown
    assert harness.good("simulate", "replay", str(number)) == f"decision {number}: the same, by the policy fairshare\n"


@pytest.mark.slow
def test_a_decision_of_an_older_slice_is_not_cited(admin: CliHarness, harness: CliHarness) -> None:
    job = waits_between_others(admin, harness)
    (claimed,) = (each for each in harness.node.claim() if each.job == job)
    harness.node.record_return(claimed, ReturnReason.UNSAVABLE, "it has a device open")
    waits = json.loads(harness.good("why", str(job), "--json"))
    assert (waits["decision"], "It was" in waits["why"]) == (None, False), "it began the slice that has ended"
    moved = stored(harness, f"job {job}", kind=DecisionKind.MIGRATE, answer={})
    assert "It was moved at" in harness.good("why", str(job))
    (claimed,) = harness.node.claim()
    assert harness.good("why", str(job)).endswith(f" (glean explain {moved})\n"), "it led to this slice"
    harness.node.record_return(claimed, ReturnReason.UNSAVABLE, "it has a device open")
    harness.good("release", str(job))
    harness.node.claim()
    assert "No decision about it is recorded" in harness.good("why", str(job))


@pytest.mark.slow
def test_a_job_says_why_its_last_slice_could_not_be_saved(harness: CliHarness) -> None:
    job = harness.submit()
    reason = "it has a POSIX message queue (mq_open): use a pipe"
    harness.node.record_return(harness.node.claim()[0], ReturnReason.UNSAVABLE, reason)
    said = f"cannot be saved: {reason}"
    assert f" Its last slice was lost: {said}." in harness.good("why", str(job))
    assert ["last", "slice", "lost", *said.split()] in [
        line.split() for line in harness.good("show", str(job)).splitlines()
    ]
    harness.node.record_return(harness.node.claim()[0], ReturnReason.UNSAVABLE, reason)
    why = harness.good("why", str(job))
    assert f"waits: held: {said}; found 2 times, on node1 (release it with `glean release`)." in why
    assert why.count(reason) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("acted", "was"), [(True, "It was"), (False, "Without the dry run it would have been")], ids=["acted", "dry"]
)
def test_a_job_of_slurms_says_what_was_decided_about_it(
    admin: CliHarness, harness: CliHarness, *, acted: bool, was: str
) -> None:
    answers = (
        Decision("4712", Verdict.CLAIM, ("4711",), "cms is entitled to 9 CPUs and has 0"),
        Decision("4713", Verdict.HOLD, (), "cms is entitled to 9 CPUs and has 9, so it waits for 4 idle CPUs"),
        Decision("4714", Verdict.START, (), "there is idle room for it"),
    )
    subjects = [f"slurm {job}" for job in range(4711, 4715)]
    told: dict[str, Any] = {
        "policy": "entitlements",
        "kind": DecisionKind.VICTIM,
        "answer": as_answer(answers),
        "acted": acted,
    }
    number = stored(admin, *subjects, group="atlas", **told)
    said = [harness.good("why", subject.replace(" ", ":")) for subject in subjects]
    for each, subject, wanted in zip(said, subjects, WHY, strict=True):
        first, _, reason = wanted.partition(" at ")
        assert each.startswith(f"{subject}: {was} {first} at ")
        assert each.endswith(f": {reason}. (glean explain {number})\n")
    assert ("a dry run: nothing was done" in harness.good("explain", str(number))) != acted
    assert "has made no decision" in harness.good("why", "slurm:4712_3")


def test_a_saved_decision_is_replayed_without_control(harness: CliHarness) -> None:
    number = stored(harness, "job 1")
    harness.submit()
    (harness.folder / "decision.json").write_text(harness.good("explain", str(number), "--json"))
    harness.environment["GLEANER_CLIENT__URL"] = "http://127.0.0.1:9"
    assert "the same" in harness.good("simulate", "replay", "decision.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policy": "roulette"}, "this Gleaner does not know the policy 'roulette'; it can replay "),
        ({"given": {}}, "decision {number} does not hold what the policy fairshare decides from (KeyError"),
        ({"given": GIVEN | {"turns": [{"free_cpus": 1, "firsts": [{"job": 1}]}]}}, "does not hold what the policy"),
        ({"given": GIVEN | {"turns": [{"free_cpus": 1, "firsts": []}]}}, "does not hold what the policy"),
    ],
)
def test_what_cannot_be_replayed_is_one_clear_line(admin: CliHarness, change: dict[str, Any], said: str) -> None:
    number = stored(admin, "job 1", **change)
    assert said.format(number=number) in admin.refused("simulate", "replay", str(number), code=2)
