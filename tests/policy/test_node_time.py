"""Node time: whatever was seen and spent is in the steps, once, and a band accounts for all of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.policy.node_time import (
    PARTS,
    RESOLUTIONS,
    AttemptTime,
    NodeTime,
    Use,
    band,
    finest,
    of_attempts,
    of_look,
)

STEPS = [each.step_s for each in RESOLUTIONS]
instants = st.floats(1e9, 1e9 + 1e5)
seconds = st.floats(0, 5000)
attempts = st.builds(
    lambda claimed_s, lasted_s, **spent: AttemptTime(claimed_s=claimed_s, ended_s=claimed_s + lasted_s, **spent),
    claimed_s=instants, lasted_s=seconds, cores=st.integers(1, 128),
    start_s=seconds, restore_s=seconds, harvested_s=seconds, lost_s=seconds, save_s=seconds,
)  # fmt: skip


@given(some=st.lists(attempts, max_size=5), step_s=st.sampled_from(STEPS))
def test_no_second_of_an_attempt_is_lost_or_counted_twice(some: list[AttemptTime], step_s: int) -> None:
    made = of_attempts(some, step_s=step_s).values()
    for kind, of_one in (
        ("start", "start_s"),
        ("restore", "restore_s"),
        ("harvested", "harvested_s"),
        ("lost", "lost_s"),
        ("save", "save_s"),
    ):
        spent = sum(each.cores * getattr(each, of_one) for each in some)
        assert sum(getattr(step, f"{kind}_core_s") for step in made) == pytest.approx(spent)


@given(one=attempts, step_s=st.sampled_from(STEPS))
def test_the_time_of_an_attempt_lies_between_its_claim_and_its_end(one: AttemptTime, step_s: int) -> None:
    for begin in of_attempts([one], step_s=step_s):
        assert begin + step_s >= one.claimed_s - 1e-3
        assert begin <= one.ended_s + 1e-3


def test_a_save_lies_at_the_end_and_a_restore_at_the_beginning() -> None:
    spent = {"start_s": 0, "restore_s": 60, "harvested_s": 30, "lost_s": 0, "save_s": 60}
    one = AttemptTime(claimed_s=0, ended_s=180, cores=2, **spent)
    made = of_attempts([one], step_s=60)
    assert made[0].restore_core_s == 120
    assert made[60].harvested_core_s == 60
    assert made[120].save_core_s == 120


@given(
    begin_s=instants, lasted_s=seconds, cores=st.lists(st.integers(1, 64), max_size=4), step_s=st.sampled_from(STEPS)
)
def test_a_look_counts_each_node_for_as_long_as_it_lasted(
    begin_s: float, lasted_s: float, cores: list[int], step_s: int
) -> None:
    nodes = [(use, each) for use, each in zip(Use, cores, strict=False)]
    made = of_look(nodes, begin_s=begin_s, end_s=begin_s + lasted_s, step_s=step_s)
    assert sum(step.seen_s for step in made.values()) == pytest.approx(lasted_s, abs=1e-4)
    (whole,) = band(made, begin_s=0, end_s=1, step_s=2_000_000_000)
    assert whole.cores_s == pytest.approx(sum(cores) * lasted_s, abs=1)


def test_agents_time_that_no_attempt_accounts_for_is_unused() -> None:
    times = {0: NodeTime(agent_core_s=100, harvested_core_s=60, lost_core_s=10), 60: NodeTime(idle_core_s=7)}
    first, second = band(times, begin_s=0, end_s=120, step_s=60)
    assert {part: getattr(first, part) for part in PARTS if getattr(first, part)} == {
        "harvested": 60, "lost": 10, "unused": 30,
    }  # fmt: skip
    assert (second.begin_s, second.idle, second.cores_s) == (60, 7, 7)


def test_a_band_of_longer_steps_has_the_same_sums_and_leaves_out_what_is_not_in_it() -> None:
    times = {begin: NodeTime(idle_core_s=1) for begin in range(0, 600, 60)}
    assert [step.idle for step in band(times, begin_s=120, end_s=480, step_s=120)] == [2, 2, 2]


def test_the_finest_step_that_is_kept_and_not_too_many_is_used() -> None:
    day_s, now_s = 86_400, 1e9
    for long_s, most, step_s in ((600, 1500, 60), (day_s, 1500, 60), (day_s, 1000, 600), (7 * day_s, 1500, 600)):
        assert finest(begin_s=now_s - long_s, end_s=now_s, now_s=now_s, steps_at_most=most, keep_days=400) == step_s
    long_ago_s = now_s - 300 * day_s
    assert finest(begin_s=long_ago_s, end_s=long_ago_s + 600, now_s=now_s, steps_at_most=9, keep_days=400) == 3600
