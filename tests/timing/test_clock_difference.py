"""The difference of two clocks, from answers that took their time."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.common.clock import Exchange, least_ahead_s

# Eighths of a second are exact in sums of floats.
eighths = st.integers(0, 800).map(lambda count: count / 8)


def exchanges(delays: list[tuple[float, float]], ahead_s: float) -> list[Exchange]:
    """Requests and answers that took so long on their ways, ten seconds apart."""
    begins = accumulate((there_s + back_s + 10 for there_s, back_s in delays), initial=1_790_000_000.0)
    return [
        Exchange(begin_s + ahead_s, begin_s + there_s, begin_s + there_s + back_s + ahead_s)
        for begin_s, (there_s, back_s) in zip(begins, delays, strict=False)
    ]


@given(st.lists(st.tuples(eighths, eighths), min_size=1), st.integers(-800, 800).map(lambda count: count / 8))
def test_no_delay_makes_a_difference_that_is_not_there(delays: list[tuple[float, float]], ahead_s: float) -> None:
    found_s = least_ahead_s(exchanges(delays, ahead_s))
    assert min(0.0, ahead_s) <= found_s <= max(0.0, ahead_s)


@given(st.lists(st.tuples(eighths, eighths), min_size=1), st.integers(-800, 800).map(lambda count: count / 8))
def test_one_quick_answer_among_slow_ones_tells_the_whole_difference(
    delays: list[tuple[float, float]], ahead_s: float
) -> None:
    delays[len(delays) // 2] = (0.0, 0.0)
    assert least_ahead_s(exchanges(delays, ahead_s)) == ahead_s


@pytest.mark.parametrize(("before_s", "after_s"), [(5.0, 0.0), (-5.0, 0.0), (0.0, 5.0), (0.0, -5.0), (9.0, -9.0)])
def test_after_a_clock_was_set_only_the_answers_since_count(before_s: float, after_s: float) -> None:
    quick = [(0.25, 0.25)] * 3
    found_s = least_ahead_s(exchanges(quick, before_s) + exchanges(quick, after_s))
    assert abs(found_s - after_s) <= 0.25
