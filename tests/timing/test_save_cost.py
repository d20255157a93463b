"""The cost of a save, and what an agent expects of its saves."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gleaner.agent.messages import CostSample, NodeRates, Way
from gleaner.agent.timing.save_cost import (
    ASSUMED_MIB_S,
    BORROWED_SAFETY,
    COLD_FIXED_S,
    EARLIER_MOST,
    FASTEST_MIB_S,
    LEAST_FIXED_S,
    LEAST_SAFETY,
    LONGEST_S,
    MEASURED_SAFETY,
    MIB,
    MOST_SAFETY,
    SLOWEST_MIB_S,
    Load,
    SaveCost,
    SaveEstimates,
    fit,
    safety,
)

samples = st.lists(st.builds(CostSample, mib=st.floats(1, 1e6), took_s=st.floats(0, LONGEST_S)), max_size=20)


def gib(number: float, way: Way = Way.SHIM) -> Load:
    return Load(int(number * 1024 * MIB), way)


def on_line(cost: SaveCost, *sizes_mib: float) -> tuple[CostSample, ...]:
    return tuple(CostSample(mib, cost.time_s(mib)) for mib in sizes_mib)


def of_node(mib_s: float, *, fixed_s: float = 0.0, saves: int = 10) -> NodeRates:
    """Return measurements that control has kept of a node with this line."""
    return NodeRates(saves=on_line(SaveCost(fixed_s, mib_s), *[64, 1024] * (saves // 2)))


def fitted(seen: Sequence[CostSample], earlier: Sequence[CostSample] = ()) -> SaveCost:
    cost = fit(seen, earlier)
    assert cost is not None
    return cost


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
    estimates.learn(of_node(20).model_copy(update={"borrowed": True}))
    assert estimates.is_guess
    borrowed_s = estimates.all_s(six)
    assert borrowed_s == pytest.approx(BORROWED_SAFETY * 150 / 20)
    estimates.note(six[0], at_once=2, took_s=1.0)
    assert not estimates.is_guess
    assert estimates.all_s(six) == pytest.approx(MEASURED_SAFETY * 3.0)


def test_estimates_that_were_far_off_or_a_save_that_was_late_call_for_new_measurements() -> None:
    measured = of_node(100).model_copy(update={"errors": (1.0, 0.9, 1.1)})
    for worse in ({"late": True}, {"errors": (1.0, 2.5, 3.0)}, {"errors": (1.0,) * 6 + (2.1, 2.2, 2.3)}):
        estimates = SaveEstimates(Way.SHIM, at_once=2)
        estimates.learn(measured)
        assert not estimates.is_guess
        estimates.learn(measured.model_copy(update=worse))
        assert estimates.is_guess


def test_errors_of_earlier_agents_make_the_next_agents_margin_larger() -> None:
    good, bad = SaveEstimates(Way.SHIM, at_once=1), SaveEstimates(Way.SHIM, at_once=1)
    good.learn(of_node(100).model_copy(update={"errors": (1.0,) * 10}))
    bad.learn(of_node(100).model_copy(update={"errors": (1.0,) * 8 + (3.0, 3.0)}))
    assert bad.all_s([gib(1)]) == pytest.approx(3 / LEAST_SAFETY * good.all_s([gib(1)]))
    assert good.all_s([gib(1)], with_safety=False) == pytest.approx(good.all_s([gib(1)]) / LEAST_SAFETY)


def test_what_control_knows_of_the_node_counts_and_own_measurements_outweigh_it() -> None:
    estimates = SaveEstimates(Way.SHIM, at_once=1)
    estimates.learn(of_node(100, fixed_s=1.0, saves=20).model_copy(update={"saves_elsewhere": 5000}))
    assert estimates.expected_s(gib(1)) == pytest.approx(1 + 10.24)
    for number in range(20):
        size = gib(0.5 + number % 3)
        estimates.note(size, at_once=1, took_s=2 + size.mib / 400)
    assert estimates.expected_s(gib(2)) == pytest.approx(2 + 5.12, rel=0.3)


def test_earlier_measurements_count_as_ten_own_ones_at_most() -> None:
    assert EARLIER_MOST == 10
    own, earlier = [CostSample(100, 1.0)] * 10, [CostSample(100, 3.0)] * 20
    assert fitted(own, earlier).time_s(100) == pytest.approx(2.0)
    assert fitted(own, earlier[:5]).time_s(100) == pytest.approx(25 / 15)


def test_all_jobs_of_the_node_share_its_rate_and_those_that_save_themselves_do_so_meanwhile() -> None:
    estimates = SaveEstimates(Way.SHIM, at_once=2, assumed_mib_s=1024)
    estimates.learn(of_node(1024))
    alone_s = estimates.all_s([gib(4)])
    assert estimates.all_s([gib(1)] * 4) == pytest.approx(alone_s, rel=0.2)
    assert estimates.all_s([gib(4), gib(0.1, Way.SELF)]) == alone_s
    assert estimates.all_s([]) == 0


def test_a_node_that_has_saved_only_tiny_jobs_is_not_taken_to_be_far_too_slow_for_a_large_one() -> None:
    estimates = SaveEstimates(Way.SHIM, at_once=1)
    for kib in (100, 500, 2000):
        estimates.note(Load(kib * 1024, Way.SHIM), at_once=1, took_s=1.0)
    assert estimates.expected_s(gib(1)) == pytest.approx(1024 / 16)
    for tiny in (0, 100 * 1024):
        assert estimates.expected_s(Load(tiny, Way.SHIM)) == pytest.approx(1.0)
        assert estimates.all_s([Load(tiny, Way.SHIM)] * 5) > 5.0


@given(st.floats(0, 1e6), samples, samples)
def test_more_memory_never_takes_less_time_and_no_rate_is_absurd(
    mib: float, seen: list[CostSample], earlier: list[CostSample]
) -> None:
    if (cost := fit(seen, earlier)) is None:
        assert not seen
        assert not earlier
        return
    assert 0 <= cost.fixed_s <= LONGEST_S
    assert SLOWEST_MIB_S <= cost.mib_s <= FASTEST_MIB_S * 1.001
    assert cost.time_s(mib) <= cost.time_s(mib + 1)
    assert cost.all_s([0] * 5, at_once=2) >= 3 * LEAST_FIXED_S


@given(st.lists(st.floats(0, 1e6), max_size=30))
def test_safety_has_its_bounds_whatever_estimates_were_worth(errors: list[float]) -> None:
    assert LEAST_SAFETY <= safety(errors, at_least=MEASURED_SAFETY) <= MOST_SAFETY


@given(st.floats(0, 10), st.floats(10, 1000), st.lists(st.integers(1, 4096), min_size=2, max_size=30, unique=True))
def test_saves_that_follow_a_line_give_that_line(fixed_s: float, mib_s: float, sizes_mib: list[int]) -> None:
    line = SaveCost(fixed_s, mib_s)
    if max(sizes_mib) > 2 * min(sizes_mib):
        cost = fitted(on_line(line, *sizes_mib))
        for mib in sizes_mib:
            assert cost.time_s(mib) == pytest.approx(line.time_s(mib), abs=1e-3)


@pytest.mark.parametrize("pair", ["[0, 1]", "[-1, 1]", "[1, -1]", "[NaN, 1]", "[1, NaN]", "[1e300, 1]", "[1, 1e300]"])
def test_what_cannot_have_been_measured_is_no_message(pair: str) -> None:
    with pytest.raises(ValidationError):
        NodeRates.model_validate_json(f'{{"saves": [{pair}]}}')
