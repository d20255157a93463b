"""The expected end of a campaign: an interval from the rate at which its jobs end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from gleaner.control.policy.expected_end import LEAST_ENDED, RECENT_S, ExpectedEnd, expected_end, poisson_interval

COUNTS = st.fixed_dictionaries(
    {
        "submitted_s": st.floats(0, 1e9),
        "unfinished": st.integers(0, 100_000),
        "held": st.integers(0, 100_000),
        "ended": st.integers(0, 100_000),
        "ended_recently": st.integers(0, 100_000),
    }
)


@given(COUNTS, st.floats(0, 1e7))
def test_there_is_an_interval_or_a_reason_and_the_interval_lies_ahead(counts: dict[str, float], age_s: float) -> None:
    counts["held"] = min(counts["held"], counts["unfinished"])
    counts["ended_recently"] = min(counts["ended_recently"], counts["ended"])
    now_s = counts["submitted_s"] + age_s
    found = expected_end(**counts, now_s=now_s)  # type: ignore[arg-type]
    has_reason = counts["ended"] < LEAST_ENDED or counts["held"] == counts["unfinished"]
    assert bool(found.unknown_because) == has_reason == (found.earliest_s is None) == (found.latest_s is None)
    if found.earliest_s is None or found.latest_s is None:
        return
    middle_s = now_s + (counts["unfinished"] - counts["held"]) * 3600 / found.jobs_per_h
    assert now_s <= found.earliest_s <= middle_s <= found.latest_s


@given(st.integers(LEAST_ENDED, 1_000_000))
def test_the_interval_is_nearly_the_exact_one_of_a_poisson_distribution(ended: int) -> None:
    exact = chi2.ppf(0.025, 2 * ended) / 2, chi2.ppf(0.975, 2 * ended + 2) / 2
    assert poisson_interval(ended) == pytest.approx(exact, rel=0.03)


def test_the_last_hours_count_unless_too_few_jobs_have_ended_in_them() -> None:
    counts = {"submitted_s": 0.0, "unfinished": 10, "held": 4, "ended": 100}
    rate = ExpectedEnd(12, RECENT_S, 2.0)
    found = expected_end(**counts, ended_recently=12, now_s=50 * 3600)  # type: ignore[arg-type]
    assert replace(found, earliest_s=None, latest_s=None) == rate
    found = expected_end(**counts, ended_recently=LEAST_ENDED - 1, now_s=50 * 3600)  # type: ignore[arg-type]
    assert (found.ended, found.over_s, found.jobs_per_h) == (100, 50 * 3600, 2.0)


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
