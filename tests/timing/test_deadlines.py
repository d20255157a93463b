"""The instants of saves: at the end of an agent, and periodically."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.timing.deadlines import (
    ASSUMED_MTBF_S,
    AtStake,
    exit_by_s,
    interval_s,
    is_due,
    optimal_interval_s,
    save_point_s,
    saving_order,
)

HOUR = 3600.0


@given(st.lists(st.builds(AtStake, core_s=st.floats(0, 1e6), save_s=st.floats(0.1, 1e3)), max_size=6))
def test_no_order_of_saves_loses_less_on_average_when_time_runs_out(jobs: list[AtStake]) -> None:
    """Smith's rule: the sum of what is at stake times when it is saved is the least of all orders."""

    def cost(order: Sequence[int]) -> float:
        ends = itertools.accumulate(jobs[at].save_s for at in order)
        return sum(jobs[at].core_s * end for at, end in zip(order, ends, strict=True))

    chosen = cost(saving_order(jobs))
    assert all(chosen <= cost(other) * (1 + 1e-9) for other in itertools.permutations(range(len(jobs))))


@given(st.floats(0, 2e9), st.floats(0, 1e4), st.floats(0, 1e4))
def test_saving_begins_before_the_end(end_s: float, margin_s: float, save_s: float) -> None:
    assert save_point_s(exit_by_s=end_s, margin_s=margin_s, save_s=save_s) <= end_s


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 300))
def test_an_agent_is_gone_by_the_kill_wait_before_its_end_but_keeps_half_of_its_time(
    now_s: float, left_s: float, kill_wait_s: float
) -> None:
    gone = exit_by_s(now_s + left_s, now_s=now_s, kill_wait_s=kill_wait_s)
    assert now_s <= gone <= now_s + left_s
    if left_s >= 2 * kill_wait_s:
        assert gone == pytest.approx(now_s + left_s - kill_wait_s)


def waste(interval: float, save_s: float, mtbf_s: float) -> float:
    """The share of time lost to saves and to work done again, for losses that come as a Poisson process.

    Daly 2006, with a restart that costs nothing: a segment of `interval + save_s` is tried until it gets through
    without a loss.
    """
    return mtbf_s * (math.exp((interval + save_s) / mtbf_s) - 1) / interval


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(1, HOUR), (10, 6 * HOUR), (60, HOUR), (600, 2 * HOUR)])
def test_no_other_interval_wastes_less(save_s: float, mtbf_s: float) -> None:
    best = optimal_interval_s(save_s, mtbf_s)
    least = waste(best, save_s, mtbf_s)
    for other in (0.5 * best, 0.8 * best, 1.25 * best, 2 * best):
        assert least < waste(other, save_s, mtbf_s)


def test_the_interval_has_a_shortest_and_may_be_none() -> None:
    assert interval_s("auto", 0.001, mtbf_s=100, shortest_s=60) == 60
    assert interval_s("auto", 1, mtbf_s=None, shortest_s=60) is None
    assert interval_s(False, 1, mtbf_s=100, shortest_s=60) is None
    assert interval_s(True, 1, mtbf_s=None, shortest_s=60) == optimal_interval_s(1, ASSUMED_MTBF_S)


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(1, 1e5))
def test_nothing_is_saved_whose_interval_is_longer_than_the_time_left(now: float, left: float, interval: float) -> None:
    assert not is_due(now, since_s=now, interval_s=interval, save_point_s=now + left)
    if interval > left:
        assert not any(
            is_due(now + waited, since_s=now, interval_s=interval, save_point_s=now + left)
            for waited in (left, left / 2)
        )
