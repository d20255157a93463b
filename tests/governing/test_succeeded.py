"""Governing by a program that leads no more, or that means another job than the one that has the number now."""

import time
from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import literal
from tests.governing.office import Office

from gleaner.control.keeper import Keeper
from gleaner.control.queue import leader
from gleaner.control.queue.engine import transaction


def led(office: Office) -> None:
    """The office's program leads, and its own clock stands still."""
    office.site.steady_clock = lambda: 0.0
    Keeper(office.site, "old:1:1:elsewhere").tick(office.cluster.now_s)
    assert office.site.term is not None


def succeeded(office: Office) -> None:
    """Another program takes over."""
    with transaction(office.site.engine) as db:
        assert leader.try_lead(db, "new:1:1:elsewhere", now=literal(time.time() + 100), term_s=30) is not None


def test_one_that_is_succeeded_in_the_middle_of_its_acts_does_none_of_the_rest(office: Office) -> None:
    led(office)
    for job in ("c1", "c2", "c3"):
        office.cluster.submit(job, "chemistry", 1)
    release = office.cluster.release

    def last_one(job: str, *, top: bool, submitted_s: float | None = None) -> None:
        release(job, top=top, submitted_s=submitted_s)
        succeeded(office)

    office.cluster.release = last_one  # type: ignore[method-assign]
    office.governor.a_round(office.cluster.now_s)
    assert len(office.cluster.acts) == 1
    assert not office.site.is_leader
    assert office.site.governing.problem.endswith("new:1:1:elsewhere leads")


def test_the_steward_hears_who_leads_before_the_first_look(office: Office) -> None:
    led(office)
    office.cluster.is_away = True
    office.rounds(2)
    assert office.cluster.awoken == 1
    succeeded(office)
    Keeper(office.site, "again:1:1:elsewhere").tick(office.cluster.now_s)
    assert not office.site.is_leader
    with transaction(office.site.engine) as db:
        leader.resign(db, "new:1:1:elsewhere")
    Keeper(office.site, "again:1:1:elsewhere").tick(office.cluster.now_s)
    office.rounds(2)
    assert office.cluster.awoken == 2


def test_a_number_that_has_become_another_jobs_since_the_look_is_left_alone(office: Office) -> None:
    office.cluster.submit("p", "physics", 6)
    alive = office.cluster.alive

    def reused(partitions: Collection[str]) -> None:
        office.cluster.alive = alive  # type: ignore[method-assign]
        alive(partitions)
        office.cluster.jobs["p"] = replace(office.cluster.jobs["p"], submitted_s=office.cluster.now_s + 1)

    office.cluster.alive = reused  # type: ignore[method-assign]
    office.governor.a_round(office.cluster.now_s)
    assert office.site.governing.problem == "for job p: job p is not the one that is meant"
    assert office.cluster.jobs["p"].held
    office.rounds(2)
    assert office.runs == {"p"}, "as the job that it is now"
