"""Why a job of the real Slurm starts at another time than in our replay."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.lab.validation_harness import FULL, MACHINE, WIDE, really, why, workload

from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings
from gleaner.lab.real_slurm.explain import Reason, judge
from gleaner.lab.real_slurm.record import Pass

SHORT = (2, 1, 50, 120)
"""It may overtake `WIDE` at once."""


def test_a_start_within_the_tolerance_is_no_difference() -> None:
    told = workload(FULL, WIDE)
    assert why(told, really(told, 1, 103)) == [Reason.TOGETHER, Reason.TOGETHER]


def test_a_job_that_could_overtake_waits_for_the_next_pass_of_backfill() -> None:
    told = workload(FULL, WIDE, SHORT)
    assert why(told, really(told, 0, 101, 27, backfilled=(2,)))[2] is Reason.PASS


def test_a_late_start_that_backfill_had_no_part_in_is_the_schedulers_delay() -> None:
    told = workload(FULL, WIDE)
    assert why(told, really(told, 0, 112))[1] is Reason.SCHEDULER


FIRST, ALL, LAST = {1, 2, 3}, {1, 2, 3, 4}, {4}


def test_a_job_that_a_pass_left_though_its_plan_had_room_is_not_explained() -> None:
    told = workload(FULL, WIDE, SHORT)
    real = really(told, 0, 101, 202, nodes=(FIRST, ALL, LAST), plan=(600, ALL))
    assert why(told, real)[2] is Reason.PLAN
    no_plan = really(told, 0, 101, 202, nodes=(FIRST, ALL, LAST))
    assert why(told, no_plan)[2] is Reason.PLAN


def test_a_job_that_a_pass_left_since_its_nodes_were_just_ending_met_the_schedulers_delay() -> None:
    told = workload((0, 1, 26, 600), FULL, WIDE, SHORT)
    real = really(told, 0, 0, 101, 202, nodes=(LAST, FIRST, ALL, LAST), plan=(600, ALL))
    assert why(told, real)[3] is Reason.SCHEDULER


def test_a_job_that_a_pass_left_since_a_plan_kept_its_node_met_certain_nodes() -> None:
    three = (1, 3, 100, 600)  # waits for the first; one node remains that it does not need, for as long as one likes
    told = workload((0, 3, 100, 600), three, (2, 1, 700, 720))
    simulated = replay(told, MACHINE, SchedulerSettings())
    assert simulated.start_s[2] == 2
    real = really(told, 0, 101, 202, nodes=(FIRST, {2, 3, 4}, {1}), plan=(600, {2, 3, 4}))
    assert why(told, real)[2] is Reason.NODES


def test_a_job_that_a_pass_left_since_its_end_was_rounded_met_a_plans_times() -> None:
    told = workload(FULL, WIDE, (2, 1, 500, 540))  # from the pass at 27.25 s it ends at 567.25 s: 600 s, rounded up
    real = really(told, 0, 101, 202, nodes=(FIRST, ALL, LAST), plan=(590, ALL))
    assert why(told, real)[2] is Reason.TIMES
    assert why(told, replace(real, origin_s=40.0))[2] is Reason.TIMES  # 607.25 s of the day, so 620 s
    assert why(told, replace(real, origin_s=12.0))[2] is Reason.PLAN  # 579.25 s of the day, so 588 s of the workload


def test_a_job_that_fits_before_a_plan_that_begins_later_than_it_could_met_its_times() -> None:
    told = workload(FULL, WIDE, (2, 1, 560, 600))
    real = really(told, 0, 731, 27, backfilled=(2,), nodes=(FIRST, ALL, LAST), plan=(660, ALL))
    assert why(told, real)[2] is Reason.TIMES
    assert why(told, replace(real, passes=(Pass(27.25, 630, frozenset(ALL)),)))[2] is Reason.EARLIER


def test_a_job_on_a_node_that_a_plan_does_not_keep_may_start_earlier_than_the_rule_allows() -> None:
    told = workload((0, 2, 100, 600), (0, 1, 100, 1200), (1, 3, 100, 600), (2, 1, 700, 1200))
    real = really(told, 0, 0, 731, 27, backfilled=(3,), nodes=({1, 2}, {3}, {1, 2, 3}, {4}), plan=(1200, {1, 2, 3}))
    assert why(told, real)[3] is Reason.NODES


def test_a_job_that_could_overtake_only_between_two_passes_missed_its_chance() -> None:
    told = workload((0, 3, 100, 120), WIDE, (2, 1, 100, 118))
    assert why(told, really(told, 0, 101, 202))[2] is Reason.MISSED


def test_a_job_that_would_have_delayed_the_head_started_earlier_than_easy_allows() -> None:
    told = workload(FULL, WIDE, (2, 1, 700, 720))
    assert why(told, really(told, 0, 731, 31))[2] is Reason.EARLIER


def test_what_follows_from_others_is_handed_on() -> None:
    told = workload(FULL, WIDE, (2, 4, 10, 60))
    assert why(told, really(told, 0, 120, 221))[1:] == [Reason.SCHEDULER, Reason.HANDED_ON]


def test_a_job_that_reached_slurm_late_was_submitted_later() -> None:
    told = workload(FULL)
    assert why(told, really(told, 21, submit_s=(20,))) == [Reason.SUBMITTED]


TRIES = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 4), st.integers(1, 200), st.integers(0, 300)), min_size=1, max_size=15
)


@pytest.mark.slow
@given(TRIES)
@settings(max_examples=examples(50), deadline=None)
def test_of_our_own_replay_every_start_is_allowed_at_its_instant(jobs: list[tuple[int, int, int, int]]) -> None:
    told = workload(
        *sorted(((at, nodes, run_s, run_s + more) for at, nodes, run_s, more in jobs), key=lambda job: job[0])
    )
    simulated = replay(told, MACHINE, SchedulerSettings())
    real = really(told, *simulated.start_s.tolist())
    verdicts = judge(told, MACHINE, real)
    assert verdicts.allowed_s.tolist() == simulated.start_s.tolist()
    assert (verdicts.left < 0).all()
