"""The expected end of a campaign: an interval from the rate at which its jobs end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from gleaner.control.policy.expected_end import LEAST_ENDED, RECENT_S, expected_end, poisson_interval


@given(st.lists(st.integers(0, 100_000), min_size=4, max_size=4), st.floats(0, 1e9), st.floats(0, 1e7))
def test_there_is_an_interval_or_a_reason_and_the_interval_lies_ahead(
    counts: list[int], submitted_s: float, age_s: float
) -> None:
    unfinished, held, ended, recently = counts
    held, recently, now_s = min(held, unfinished), min(recently, ended), submitted_s + age_s
    found = expected_end(
        submitted_s=submitted_s, unfinished=unfinished, held=held, ended=ended, ended_recently=recently, now_s=now_s
    )
    assert bool(found.unknown_because) == (ended < LEAST_ENDED or held == unfinished) == (found.latest_s is None)
    if found.earliest_s is not None and found.latest_s is not None:
        middle_s = now_s + (unfinished - held) * 3600 / found.jobs_per_h
        assert now_s <= found.earliest_s <= middle_s <= found.latest_s


@given(st.integers(LEAST_ENDED, 1_000_000))
def test_the_interval_is_nearly_the_exact_one_of_a_poisson_distribution(ended: int) -> None:
    exact = chi2.ppf(0.025, 2 * ended) / 2, chi2.ppf(0.975, 2 * ended + 2) / 2
    assert poisson_interval(ended) == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize(("recently", "of"), [(12, (12, RECENT_S, 2.0)), (2, (100, 50 * 3600, 2.0))])
def test_the_last_hours_count_unless_too_few_jobs_have_ended_in_them(
    recently: int, of: tuple[int, float, float]
) -> None:
    found = expected_end(submitted_s=0, unfinished=9, held=4, ended=100, ended_recently=recently, now_s=50 * 3600)
    assert (found.ended, found.over_s, found.jobs_per_h) == of


@pytest.mark.parametrize(
    ("unfinished", "held", "ended", "why"),
    [
        (5, 0, 2, "that needs 3 jobs that have ended, and there are 2"),
        (5, 5, 9, "all jobs that have not ended are held"),
        (0, 0, 9, "all jobs have ended"),
    ],
)
def test_without_an_interval_the_answer_has_the_reason(unfinished: int, held: int, ended: int, why: str) -> None:
    found = expected_end(submitted_s=0, unfinished=unfinished, held=held, ended=ended, ended_recently=0, now_s=3600)
    assert (found.unknown_because, found.jobs_per_h) == (why, ended)
