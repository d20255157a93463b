"""Retries: whether a job that has failed by itself is tried again, and after which pause. Pure."""

from collections.abc import Collection

from gleaner.control.policy.node_health import doubled

FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0


def refusal(exit_code: int, *, retry_on: Collection[int] | None, never_retry_on: Collection[int] | None) -> str:
    """Return why a job is not tried again after this exit code, whatever retries are left; empty if it may be.

    `retry_on` None: all codes may be tried again.

    >>> refusal(2, retry_on=None, never_retry_on=(2,))
    'never_retry_on names exit code 2'
    >>> refusal(2, retry_on=(75,), never_retry_on=None)
    'retry_on does not name exit code 2'
    >>> refusal(75, retry_on=(75,), never_retry_on=(2,))
    ''
    """
    if exit_code in (never_retry_on or ()):
        return f"never_retry_on names exit code {exit_code}"
    if retry_on is not None and exit_code not in retry_on:
        return f"retry_on does not name exit code {exit_code}"
    return ""


def pause_s(failures: int) -> float:
    """Return the pause of a job after so many failures, at least one, in seconds: it doubles up to a bound.

    >>> [pause_s(failures) for failures in (1, 2, 3, 7, 99)]
    [10.0, 20.0, 40.0, 600.0, 600.0]
    """
    return doubled(FIRST_PAUSE_S, failures, LONGEST_PAUSE_S)
