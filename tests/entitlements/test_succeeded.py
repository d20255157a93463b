"""Acts of a program that leads no more, or that means another job than the one that has the number now."""

import time
from collections.abc import Collection

from sqlalchemy import literal
from tests.entitlements.entitlements_harness import EntitlementsHarness

from gleaner.control.daemon.leader import Leadership
from gleaner.control.queue import leader
from gleaner.control.queue.database import transaction


def led(harness: EntitlementsHarness) -> None:
    """Let the harness's program lead while its own clock stands still."""
    harness.state.steady_clock = lambda: 0.0
    Leadership(harness.state, "old:1:1:elsewhere").tick(harness.cluster.now_s)
    assert harness.state.term is not None


def succeeded(harness: EntitlementsHarness) -> None:
    """Another program takes over."""
    with transaction(harness.state.engine) as db:
        assert leader.try_lead(db, "new:1:1:elsewhere", now=literal(time.time() + 100), term_s=30) is not None


def test_one_that_is_succeeded_in_the_middle_of_its_acts_does_none_of_the_rest(harness: EntitlementsHarness) -> None:
    led(harness)
    for job in ("c1", "c2", "c3"):
        harness.cluster.enter(job, "chemistry", 1)
    release = harness.cluster.release

    def last_one(job: str, *, top: bool, submitted_s: float | None = None) -> None:
        release(job, top=top, submitted_s=submitted_s)
        succeeded(harness)

    harness.cluster.release = last_one  # type: ignore[method-assign]
    harness.look()
    assert len(harness.cluster.acts) == 1
    assert not harness.state.is_leader
    assert harness.state.entitlements.problem.endswith("new:1:1:elsewhere leads")


def test_the_slurm_admin_hears_who_leads_before_the_first_look(harness: EntitlementsHarness) -> None:
    led(harness)
    harness.cluster.is_away = True
    harness.rounds(2)
    assert harness.cluster.awoken == 1
    succeeded(harness)
    Leadership(harness.state, "again:1:1:elsewhere").tick(harness.cluster.now_s)
    assert not harness.state.is_leader
    with transaction(harness.state.engine) as db:
        leader.resign(db, "new:1:1:elsewhere")
    Leadership(harness.state, "again:1:1:elsewhere").tick(harness.cluster.now_s)
    harness.rounds(2)
    assert harness.cluster.awoken == 2


def test_a_number_that_has_become_another_jobs_since_the_look_is_left_alone(harness: EntitlementsHarness) -> None:
    harness.cluster.enter("p", "physics", 6)
    alive = harness.cluster.alive

    def reused(partitions: Collection[str]) -> None:
        harness.cluster.alive = alive  # type: ignore[method-assign]
        alive(partitions)
        harness.cluster.change("p", submitted_s=harness.cluster.now_s + 1)

    harness.cluster.alive = reused  # type: ignore[method-assign]
    harness.look()
    assert harness.state.entitlements.problem == "for job p: job p is not the one that is meant"
    assert harness.cluster.jobs["p"].is_held
    harness.rounds(2)
    assert harness.runs == {"p"}, "as the job that it is now"
