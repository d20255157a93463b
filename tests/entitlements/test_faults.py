"""Faults in the middle: control killed, Slurm or its accounting away, a Slurm admin service that refuses."""

import pytest
from sqlalchemy import text
from tests.entitlements.entitlements_harness import EntitlementsHarness
from tests.slurm.fake_cluster import Died

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.queue import decisions
from gleaner.control.queue.database import snapshot, transaction

SAVED, KILLED = JobClass.CHECKPOINTABLE, JobClass.PREEMPTIBLE


def chemistry_has_all(harness: EntitlementsHarness, kind: JobClass = SAVED) -> None:
    for job in ("c1", "c2", "c3"):
        harness.cluster.enter(job, "chemistry", 6, kind)
    harness.rounds(2)
    assert harness.runs == {"c1", "c2", "c3"}
    harness.cluster.pass_time(4000)


def told(harness: EntitlementsHarness) -> list[str]:
    return [job for act, job in harness.cluster.acts if act in {"signal", "requeue"}]


def counted(harness: EntitlementsHarness) -> int:
    with snapshot(harness.state.engine) as db:
        return decisions.preemptions_since(db, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SAVED, KILLED])
@pytest.mark.parametrize("after", range(6))
def test_control_may_be_killed_right_after_any_act_and_the_next_one_goes_on(
    harness: EntitlementsHarness, after: int, kind: JobClass
) -> None:
    chemistry_has_all(harness, kind)
    harness.cluster.enter("p1", "physics", 6)
    harness.cluster.enter("p2", "physics", 3)
    harness.cluster.dies_after = len(harness.cluster.acts) + after
    harness.rounds_though_killed(8)
    assert harness.runs >= {"p1", "p2"}
    assert harness.cluster.held_by("chemistry") == 6
    assert len(harness.cluster.jobs) == 5


def test_a_victim_is_told_once_more_and_counted_once_if_control_is_killed_before_it_has_noted_that(
    harness: EntitlementsHarness,
) -> None:
    chemistry_has_all(harness)
    harness.restart(saves_per_hour_at_most=1)
    harness.cluster.enter("p", "physics", 6)
    harness.cluster.dies_after = len(harness.cluster.acts) + 1  # released, then told
    with pytest.raises(Died):
        harness.rounds()
    (one,) = told(harness)
    assert counted(harness) == 0
    harness.restart()
    harness.rounds(4)
    assert told(harness) == [one, one]
    assert counted(harness) == 1
    assert harness.runs == {"c1", "c2", "c3", "p"} - {one}


def test_slurm_going_away_after_the_first_of_two_victims_was_told_loses_nothing(harness: EntitlementsHarness) -> None:
    chemistry_has_all(harness)
    harness.cluster.enter("wide", "physics", 8)
    harness.cluster.change("wide", nodes_at_least=2)  # four CPUs of each
    harness.cluster.goes_away_after = len(harness.cluster.acts) + 1
    harness.rounds()
    (first,) = told(harness)
    assert "cannot reach Slurm" in harness.state.entitlements.problem
    harness.rounds(6)
    assert told(harness) == [first]
    harness.cluster.is_away = False
    harness.rounds(5)
    assert "wide" in harness.runs and harness.state.entitlements.problem == ""
    assert len(told(harness)) == len(set(told(harness))) == counted(harness) == 2


def test_a_control_that_cannot_write_to_the_queue_holds_nothing(harness: EntitlementsHarness) -> None:
    """Neither what it has decided anew nor what it decided before: it can release nothing."""
    with transaction(harness.state.engine) as db:
        db.execute(text("ALTER TABLE decision RENAME TO elsewhere"))
    harness.cluster.enter("p", "physics", 6)
    harness.rounds(2)
    last_s = harness.cluster.heard_s
    harness.rounds(3)
    assert harness.cluster.heard_s == last_s
    assert harness.state.entitlements.problem != ""
    with transaction(harness.state.engine) as db:
        db.execute(text("ALTER TABLE elsewhere RENAME TO decision"))
    harness.rounds(2)
    assert harness.cluster.heard_s > last_s
    assert harness.runs == {"p"}
    assert [one.acted for one in harness.decided("p")] == [True]
