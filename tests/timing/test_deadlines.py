"""The instant at which saving begins."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.messages import NodeRates, Way
from gleaner.agent.timing.deadlines import (
    BORROWED_SAFETY,
    COLD_FIXED_S,
    LEAST_FIXED_S,
    LEAST_SAFETY,
    MEASURED_SAFETY,
    MOST_SAFETY,
    AtStake,
    Line,
    Save,
    fitted,
    gone_s,
    safety,
    save_point_s,
    saving_order,
    told,
)
from gleaner.agent.timing.least_squares import FASTEST_MIB_S, MIB
from gleaner.agent.timing.save_estimates import ASSUMED_MIB_S, Load, SaveEstimates

sizes = st.integers(min_value=0, max_value=64 * 1024 * MIB)
saves = st.lists(
    st.builds(Save, memory_bytes=st.integers(1, 16 * 1024 * MIB), took_s=st.floats(0.01, 600)),
    max_size=20,
)


def gib(number: float, way: Way = Way.SHIM) -> Load:
    return Load(int(number * 1024 * MIB), way)


def test_a_node_that_nobody_has_measured_is_taken_to_save_as_fast_as_its_way_usually_does() -> None:
    slow, fast = SaveEstimates(Way.SELF, at_once=1), SaveEstimates(Way.SHIM, at_once=1)
    assert fast.expected_s(gib(1)) == COLD_FIXED_S + 1024 / ASSUMED_MIB_S[Way.SHIM]
    assert slow.expected_s(gib(1, Way.SELF)) > 1024 / ASSUMED_MIB_S[Way.SELF]
    assert fast.expected_s(gib(1)) < slow.expected_s(gib(1, Way.SELF)) / 5
    assert SaveEstimates(Way.SHIM, 1, assumed_mib_s=1024).expected_s(gib(1)) == COLD_FIXED_S + 1


def test_a_guess_is_pessimistic_and_says_so_until_this_node_has_saved() -> None:
    """Six jobs of 25 MB took up to 15 s on cold nodes where 3 s had been expected."""
    estimates, six = SaveEstimates(Way.SHIM, at_once=2), [Load(25 * MIB, Way.SHIM)] * 6
    assert estimates.is_guess
    assert estimates.all_s(six) > 30
    estimates.learn(NodeRates(saves=5, save_mib_s=20, borrowed=True))
    assert estimates.is_guess
    borrowed_s = estimates.all_s(six)
    assert BORROWED_SAFETY * 150 / 20 <= borrowed_s < 30
    estimates.note(six[0], at_once=2, took_s=1.0)
    assert not estimates.is_guess
    assert estimates.all_s(six) == pytest.approx(MEASURED_SAFETY * 3.0)


def test_of_saves_as_large_as_those_that_were_measured_nothing_is_expected_but_what_these_took() -> None:
    """Time that is reserved computes nothing, and four waves of saves had half a second each too much."""
    estimates = SaveEstimates(Way.SHIM, at_once=2)
    for took_s in (0.7, 0.9, 0.8):
        estimates.note(Load(28 * MIB, Way.SHIM), at_once=2, took_s=took_s)
    eight = [Load(28 * MIB, Way.SHIM)] * 8
    assert estimates.expected_s(eight[0], at_once=2) == pytest.approx(0.8)
    assert estimates.all_s(eight, with_safety=False) == pytest.approx(4 * 0.8)


def test_estimates_that_were_far_off_or_a_save_that_was_late_call_for_new_measurements() -> None:
    measured = NodeRates(saves=10, save_mib_s=100, errors=(1.0, 0.9, 1.1))
    for worse in ({"late": True}, {"errors": (1.0, 2.5, 3.0)}, {"errors": (1.0,) * 6 + (2.1, 2.2, 2.3)}):
        estimates = SaveEstimates(Way.SHIM, at_once=2)
        estimates.learn(measured)
        assert not estimates.is_guess
        estimates.learn(measured.model_copy(update=worse))
        assert estimates.is_guess


def test_errors_of_earlier_agents_make_the_next_agents_margin_larger() -> None:
    good, bad = SaveEstimates(Way.SHIM, at_once=1), SaveEstimates(Way.SHIM, at_once=1)
    good.learn(NodeRates(saves=10, save_mib_s=100, errors=(1.0,) * 10))
    bad.learn(NodeRates(saves=10, save_mib_s=100, errors=(1.0,) * 8 + (3.0, 3.0)))
    assert bad.all_s([gib(1)]) == pytest.approx(3 / LEAST_SAFETY * good.all_s([gib(1)]))
    assert good.all_s([gib(1)], with_safety=False) == pytest.approx(good.all_s([gib(1)]) / LEAST_SAFETY)


@given(st.lists(st.builds(AtStake, core_s=st.floats(0, 1e6), save_s=st.floats(0.1, 1e3)), max_size=6))
def test_no_order_of_saves_loses_less_on_average_when_time_runs_out(jobs: list[AtStake]) -> None:
    """Smith's rule: the sum of what is at stake times when it is saved is the least of all orders."""

    def cost(order: Sequence[int]) -> float:
        ends = itertools.accumulate(jobs[at].save_s for at in order)
        return sum(jobs[at].core_s * end for at, end in zip(order, ends, strict=True))

    chosen = cost(saving_order(jobs))
    assert all(chosen <= cost(other) * (1 + 1e-9) for other in itertools.permutations(range(len(jobs))))


def test_what_control_knows_of_the_node_counts_and_own_measurements_outweigh_it() -> None:
    estimates = SaveEstimates(Way.SHIM, at_once=1)
    estimates.learn(NodeRates(saves=10, save_fixed_s=1.0, save_mib_s=100, saves_elsewhere=5000))
    assert estimates.expected_s(gib(1)) == pytest.approx(1 + 10.24, rel=0.01)
    for number in range(20):
        size = gib(0.5 + number % 3)
        estimates.note(size, at_once=1, took_s=2 + size.memory_bytes / (400 * MIB))
    assert estimates.expected_s(gib(2)) == pytest.approx(2 + 5.12, rel=0.3)


def test_savers_on_other_nodes_count_where_no_boundary_has_been_measured() -> None:
    alone, crowded = SaveEstimates(Way.SHIM, at_once=1), SaveEstimates(Way.SHIM, at_once=1)
    crowded.learn(NodeRates(saves_elsewhere=15))
    assert crowded.all_s([gib(1)]) == 2 * alone.all_s([gib(1)])


def test_all_jobs_of_the_node_share_its_rate_and_those_that_save_themselves_do_so_meanwhile() -> None:
    estimates = SaveEstimates(Way.SHIM, at_once=2, assumed_mib_s=1024)
    estimates.learn(NodeRates(saves=10, save_mib_s=1024))
    alone_s = estimates.all_s([gib(4)])
    assert estimates.all_s([gib(1)] * 4) == pytest.approx(alone_s, rel=0.2)
    assert estimates.all_s([gib(4), gib(0.1, Way.SELF)]) == alone_s
    assert estimates.all_s([]) == 0


def test_a_save_among_others_tells_the_same_of_the_node_as_one_alone() -> None:
    alone, among = SaveEstimates(Way.SHIM, at_once=1), SaveEstimates(Way.SHIM, at_once=4)
    alone.note(gib(4), at_once=1, took_s=8.0)
    among.note(gib(1), at_once=4, took_s=8.0)
    assert among.expected_s(gib(1), at_once=4) == alone.expected_s(gib(4))


def test_a_node_that_has_saved_only_tiny_jobs_is_not_taken_to_be_far_too_slow_for_a_large_one() -> None:
    estimates = SaveEstimates(Way.SHIM, at_once=1)
    for kib in (100, 500, 2000):
        estimates.note(Load(kib * 1024, Way.SHIM), at_once=1, took_s=1.0)
    assert estimates.expected_s(gib(1)) == pytest.approx(1024 / 16)
    for tiny in (0, 100 * 1024):
        assert estimates.expected_s(Load(tiny, Way.SHIM)) == pytest.approx(1.0)
        assert estimates.all_s([Load(tiny, Way.SHIM)] * 5) > 5.0


@given(sizes, saves)
def test_more_memory_never_takes_less_time_and_no_rate_is_absurd(size: int, seen: list[Save]) -> None:
    line = fitted(seen, assumed=20 * MIB)
    assert line.save_s(size) <= line.save_s(size + MIB)
    assert line.save_s(0) >= LEAST_FIXED_S
    assert line.all_s([0] * 5, at_once=2) >= 3 * LEAST_FIXED_S
    assert 0 < line.rate <= FASTEST_MIB_S * MIB * 1.001


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_safety_has_its_bounds_whatever_estimates_were_worth(errors: list[float]) -> None:
    assert LEAST_SAFETY <= safety(errors, at_least=MEASURED_SAFETY) <= MOST_SAFETY


@given(st.floats(0, 10), st.floats(10, 1000), st.lists(st.integers(1, 4096), min_size=2, unique=True))
def test_saves_that_follow_a_line_give_that_line(fixed_s: float, mib_s: float, mib: list[int]) -> None:
    seen = [Save(size * MIB, fixed_s + size / mib_s) for size in mib]
    if max(mib) > 2 * min(mib):
        found = fitted(seen, assumed=MIB)
        for size in mib:
            assert found.save_s(size * MIB) == pytest.approx(fixed_s + size / mib_s, abs=LEAST_FIXED_S + 1e-3)


def test_what_control_tells_of_a_node_without_measurements_is_nothing() -> None:
    assert told(None) == []
    assert told(NodeRates(saves=0, save_mib_s=5)) == []
    assert fitted([], assumed=MIB) == Line(COLD_FIXED_S, MIB)
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
