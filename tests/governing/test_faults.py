"""What goes wrong in the middle: control killed, Slurm or its accounting away, a steward that refuses."""

from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.governing.made_cluster import Died
from tests.governing.office import Office

from gleaner.control.policy.governing_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room
from gleaner.control.queue import governed
from gleaner.control.queue.engine import snapshot, transaction

SAVED, KILLED = JobClass.CHECKPOINTABLE, JobClass.PREEMPTIBLE


def chemistry_has_all(office: Office, kind: JobClass = SAVED) -> None:
    for job in ("c1", "c2", "c3"):
        office.cluster.submit(job, "chemistry", 6, kind)
    office.rounds(2)
    assert office.runs == {"c1", "c2", "c3"}
    office.cluster.pass_time(4000)


def a_wide_claim(office: Office) -> None:
    """Four CPUs of each of two nodes."""
    office.cluster.submit("wide", "physics", 4)
    office.cluster.jobs["wide"] = replace(office.cluster.jobs["wide"], wish=Wish(2, Room(4, 400)))


def told(office: Office) -> list[str]:
    return [job for act, job in office.cluster.acts if act in {"signal", "requeue"}]


def counted(office: Office) -> int:
    with snapshot(office.site.engine) as db:
        return governed.told_since(db, 0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SAVED, KILLED])
@pytest.mark.parametrize("after", range(6))
def test_control_may_be_killed_right_after_any_act_and_the_next_one_goes_on(
    office: Office, after: int, kind: JobClass
) -> None:
    chemistry_has_all(office, kind)
    office.cluster.submit("p1", "physics", 6)
    office.cluster.submit("p2", "physics", 3)
    office.cluster.dies_after = len(office.cluster.acts) + after
    office.rounds_though_killed(8)
    assert office.runs >= {"p1", "p2"}
    assert office.cluster.held_by("chemistry") == 6
    assert len(office.cluster.jobs) == 5


def test_a_victim_is_told_once_more_and_counted_once_if_control_is_killed_before_it_has_noted_that(
    office: Office,
) -> None:
    chemistry_has_all(office)
    office.restart(saves_per_hour_at_most=1)
    office.cluster.submit("p", "physics", 6)
    office.cluster.dies_after = len(office.cluster.acts) + 1  # released, then told
    with pytest.raises(Died):
        office.rounds()
    (one,) = told(office)
    assert counted(office) == 0
    office.restart()
    office.rounds(4)
    assert told(office) == [one, one]
    assert counted(office) == 1
    assert office.runs == {"c1", "c2", "c3", "p"} - {one}


def test_slurm_going_away_after_the_first_of_two_victims_was_told_loses_nothing(office: Office) -> None:
    chemistry_has_all(office)
    a_wide_claim(office)
    office.cluster.goes_away_after = len(office.cluster.acts) + 1
    office.rounds()
    (first,) = told(office)
    assert "cannot reach Slurm" in office.site.governing.problem
    office.rounds(6)
    assert told(office) == [first]
    office.cluster.is_away = False
    office.rounds(5)
    assert "wide" in office.runs and office.site.governing.problem == ""
    assert len(told(office)) == len(set(told(office))) == counted(office) == 2


def test_a_restart_while_accounting_is_away_lets_nothing_go_that_is_held(office: Office) -> None:
    """Slurm's own daemon works on without slurmdbd, and so do the jobs that it holds for us."""
    office.cluster.submit("b", "biology", 4)
    office.rounds()
    office.restart()
    office.cluster.keeps_no_accounts = True
    office.rounds(12)
    assert office.cluster.heard_s > office.cluster.now_s - 2 * 5
    assert "sacctmgr" in office.site.governing.problem
    assert office.site.governing.view is None, "nothing is ruled by settings that nobody has checked"
    office.cluster.keeps_no_accounts = False
    office.rounds()
    assert office.site.governing.problem == ""


def test_settings_that_nobody_can_check_hold_jobs_for_an_hour_and_no_longer(office: Office) -> None:
    office.cluster.submit("b", "biology", 4)
    office.rounds()
    office.restart()
    office.cluster.keeps_no_accounts = True
    office.rounds()
    office.cluster.is_away = True
    office.rounds()
    last_s = office.cluster.heard_s
    assert last_s == office.cluster.now_s - 5, "whether any is held cannot be told"
    office.cluster.pass_time(3600)
    office.rounds(2)
    assert office.cluster.heard_s == last_s


def test_where_nothing_is_held_nothing_is_before_the_check_has_passed(office: Office) -> None:
    office.cluster.keeps_no_accounts = True
    office.rounds(3)
    assert office.cluster.heard_s == 0


def test_what_the_steward_refuses_to_have_governed_is_not_stored_as_done(office: Office) -> None:
    office.cluster.holds_in = ()
    office.cluster.submit("p", "physics", 6)
    office.rounds(3)
    assert office.decided("p") == ()
    office.cluster.holds_in = ("shared",)
    office.rounds()
    (decision,) = office.decided("p")
    assert decision.acted and office.runs == {"p"}


def test_a_control_that_cannot_write_to_the_queue_holds_nothing(office: Office) -> None:
    """Neither what it has ruled anew nor what it ruled before: it can release nothing."""
    with transaction(office.site.engine) as db:
        db.execute(text("ALTER TABLE decision RENAME TO elsewhere"))
    office.cluster.submit("p", "physics", 6)
    office.rounds(2)
    last_s = office.cluster.heard_s
    office.rounds(3)
    assert office.cluster.heard_s == last_s
    assert office.site.governing.problem != ""
    with transaction(office.site.engine) as db:
        db.execute(text("ALTER TABLE elsewhere RENAME TO decision"))
    office.rounds(2)
    assert office.cluster.heard_s > last_s
    assert office.runs == {"p"}
    assert [one.acted for one in office.decided("p")] == [True]
