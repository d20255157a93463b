"""The expected end of a campaign, estimated from the rate at which its jobs end. The module is pure."""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

RECENT_S = 6 * 3600.0
"""The period over which the rate is measured. It is a few hours, because a cluster's idle time changes from day to
night."""
LEAST_ENDED = 3
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """The rate at which a campaign's jobs end, and the interval in which the last of them is expected to end."""

    ended: int
    """The number of jobs from which the rate is computed."""
    over_s: float
    """The time in which they ended, in seconds."""
    jobs_per_h: float
    earliest_s: float | None
    latest_s: float | None
    unknown_because: str = ""
    """The reason why there is no interval, or "" if there is one."""


def poisson_interval(ended: int) -> tuple[float, float]:
    """Return the 95 % confidence interval for the mean of a Poisson distribution, given one count.

    This is Byar's approximation of the exact interval (Breslow and Day, Statistical Methods in Cancer Research II,
    1987, p. 69). For counts of three or more, it differs from the exact interval by less than 3 %.

    >>> [round(limit, 1) for limit in poisson_interval(10)]
    [4.8, 18.4]
    """
    upper = ended + 1
    return (
        ended * (1 - 1 / (9 * ended) - _Z / (3 * sqrt(ended))) ** 3,
        upper * (1 - 1 / (9 * upper) + _Z / (3 * sqrt(upper))) ** 3,
    )


def expected_end(
    *, submitted_s: float, unfinished: int, held: int, ended: int, ended_recently: int, now_s: float
) -> ExpectedEnd:
    """Return the rate of the last `RECENT_S` seconds, or the rate since the submission if too few jobs have ended
    recently.

    The ends are treated as a Poisson process, and the limits of its rate give the limits of the interval. Jobs that are
    held are left out, because they end only after their release. Cancelled jobs do not count as ended.
    """
    age_s = max(now_s - submitted_s, 1.0)
    over_s = min(age_s, RECENT_S) if ended_recently >= LEAST_ENDED else age_s
    ended = ended_recently if ended_recently >= LEAST_ENDED else ended
    left, why = unfinished - held, ""
    if not left:
        why = "all jobs that have not ended are held" if held else "all jobs have ended"
    elif ended < LEAST_ENDED:
        why = f"that needs {LEAST_ENDED} jobs that have ended, and there are {ended}"
    low, high = poisson_interval(max(ended, 1))
    earliest_s, latest_s = (None, None) if why else (now_s + left * over_s / high, now_s + left * over_s / low)
    return ExpectedEnd(ended, over_s, ended * 3600 / over_s, earliest_s, latest_s, why)
