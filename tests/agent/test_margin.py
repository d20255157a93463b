"""When saving begins."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.estimates import ASSUMED_MIB_S, Estimates, Load
from gleaner.agent.leastsquares import FASTEST_MIB_S, MIB
from gleaner.agent.margin import (
    LEAST_FIXED_S,
    MOST_SAFETY,
    Line,
    Save,
    fitted,
    gone_s,
    safety,
    save_point_s,
    told,
)
from gleaner.agent.protocol import NodeRates, Way

sizes = st.integers(min_value=0, max_value=64 * 1024 * MIB)
saves = st.lists(
    st.builds(
        Save, memory_bytes=st.integers(1, 16 * 1024 * MIB), took_s=st.floats(0.01, 600), expected_s=st.floats(0.01, 600)
    ),
    max_size=20,
)


def gib(number: float, way: Way = Way.SHIM) -> Load:
    return Load(int(number * 1024 * MIB), way)


def test_a_node_that_nobody_has_measured_is_taken_to_save_as_fast_as_its_way_usually_does() -> None:
    slow, fast = Estimates(Way.DOCKER, at_once=1), Estimates(Way.SHIM, at_once=1)
    assert slow.expected_s(gib(1, Way.DOCKER)) == LEAST_FIXED_S + 1024 / ASSUMED_MIB_S[Way.DOCKER]
    assert fast.expected_s(gib(1)) < slow.expected_s(gib(1, Way.DOCKER)) / 7
    assert Estimates(Way.SHIM, 1, assumed_mib_s=1024).expected_s(gib(1)) == LEAST_FIXED_S + 1


def test_what_control_knows_of_the_node_counts_and_own_measurements_outweigh_it() -> None:
    estimates = Estimates(Way.SHIM, at_once=1)
    estimates.learn(NodeRates(saves=10, save_fixed_s=1.0, save_mib_s=100, saves_elsewhere=5000))
    assert estimates.expected_s(gib(1)) == pytest.approx(1 + 10.24, rel=0.01)
    for number in range(20):
        size = gib(0.5 + number % 3)
        estimates.note(size, at_once=1, took_s=2 + size.memory_bytes / (400 * MIB), expected_s=1)
    assert estimates.expected_s(gib(2)) == pytest.approx(2 + 5.12, rel=0.3)


def test_savers_on_other_nodes_count_where_no_boundary_has_been_measured() -> None:
    alone, crowded = Estimates(Way.SHIM, at_once=1), Estimates(Way.SHIM, at_once=1)
    crowded.learn(NodeRates(saves_elsewhere=15))
    assert crowded.all_s([gib(1)]) == 2 * alone.all_s([gib(1)])


def test_all_jobs_of_the_node_share_its_rate_and_those_that_save_themselves_do_so_meanwhile() -> None:
    estimates = Estimates(Way.SHIM, at_once=2, assumed_mib_s=1024)
    alone_s = estimates.all_s([gib(4)])
    assert estimates.all_s([gib(1)] * 4) == pytest.approx(alone_s, rel=0.2)
    assert estimates.all_s([gib(4), gib(0.1, Way.SELF)]) == alone_s
    assert estimates.all_s([]) == 0


def test_estimates_that_were_too_low_make_the_next_one_higher() -> None:
    estimates = Estimates(Way.SHIM, at_once=1)
    for took_s in (1.0, 1.0, 1.0, 3.0):
        estimates.note(gib(1), at_once=1, took_s=took_s, expected_s=1.0)
    assert estimates.all_s([gib(1)]) > 3.0


def test_a_save_among_others_tells_the_same_of_the_node_as_one_alone() -> None:
    alone, among = Estimates(Way.SHIM, at_once=1), Estimates(Way.SHIM, at_once=4)
    alone.note(gib(4), at_once=1, took_s=8.0, expected_s=8.0)
    among.note(gib(1), at_once=4, took_s=8.0, expected_s=8.0)
    assert among.expected_s(gib(1), at_once=4) == alone.expected_s(gib(4))


def test_a_node_that_has_saved_only_tiny_jobs_is_not_taken_to_be_far_too_slow_for_a_large_one() -> None:
    estimates = Estimates(Way.SHIM, at_once=1)
    for kib in (100, 500, 2000):
        estimates.note(Load(kib * 1024, Way.SHIM), at_once=1, took_s=1.0, expected_s=0.5)
    assert estimates.expected_s(gib(1)) == pytest.approx(LEAST_FIXED_S + 1024 / 16)
    for tiny in (0, 100 * 1024):
        assert estimates.expected_s(Load(tiny, Way.SHIM)) == pytest.approx(LEAST_FIXED_S + 1.0)
        assert estimates.all_s([Load(tiny, Way.SHIM)] * 5) > 5.0


@given(sizes, saves)
def test_more_memory_never_takes_less_time_and_no_rate_is_absurd(size: int, seen: list[Save]) -> None:
    line = fitted(seen, assumed=20 * MIB)
    assert line.save_s(size) <= line.save_s(size + MIB)
    assert line.fixed_s >= LEAST_FIXED_S
    assert 0 < line.rate <= FASTEST_MIB_S * MIB * 1.001
    assert 1 <= safety(seen) <= MOST_SAFETY


@given(st.floats(0, 10), st.floats(10, 1000), st.lists(st.integers(1, 4096), min_size=2, unique=True))
def test_saves_that_follow_a_line_give_that_line(fixed_s: float, mib_s: float, mib: list[int]) -> None:
    seen = [Save(size * MIB, fixed_s + size / mib_s, 1.0) for size in mib]
    if max(mib) > 2 * min(mib):
        found = fitted(seen, assumed=MIB)
        for size in mib:
            assert found.save_s(size * MIB) == pytest.approx(fixed_s + size / mib_s, abs=LEAST_FIXED_S + 1e-3)


def test_what_control_tells_of_a_node_without_measurements_is_nothing() -> None:
    assert told(None) == []
    assert told(NodeRates(saves=0, save_mib_s=5)) == []
    assert fitted(told(NodeRates(saves=0.5, save_fixed_s=2.0, save_mib_s=50)), assumed=MIB) == Line(2.0, 50 * MIB)


@given(st.floats(0, 2e9), st.floats(0, 1e4), st.floats(0, 1e4))
def test_saving_begins_before_the_end(end_s: float, margin_s: float, save_s: float) -> None:
    assert save_point_s(gone_s=end_s, margin_s=margin_s, save_s=save_s) <= end_s


@given(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 300))
def test_an_agent_is_gone_by_the_kill_wait_before_its_end_but_keeps_half_of_its_time(
    now_s: float, left_s: float, kill_wait_s: float
) -> None:
    gone = gone_s(now_s + left_s, now_s=now_s, kill_wait_s=kill_wait_s)
    assert now_s <= gone <= now_s + left_s
    if left_s >= 2 * kill_wait_s:
        assert gone == pytest.approx(now_s + left_s - kill_wait_s)


@pytest.mark.parametrize("save_mib_s", [1e-12, 5e-324])
def test_a_node_that_is_said_to_save_nothing_a_second_is_slow_and_no_error(save_mib_s: float) -> None:
    line = fitted(told(NodeRates(saves=1, save_mib_s=save_mib_s)), assumed=MIB)
    assert math.isfinite(line.save_s(MIB))
