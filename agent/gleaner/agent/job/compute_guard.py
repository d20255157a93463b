"""End jobs that have computed, over all their slices, for as long as they may."""

from collections.abc import Sequence

from gleaner.agent.common.durations import in_words
from gleaner.agent.job import lifecycle
from gleaner.agent.job.executor import Executor
from gleaner.agent.messages import Assignment


def limit_passed(given: Assignment, computed_s: float) -> lifecycle.LimitPassed | None:
    """Return that the job has computed for as long as it may; None if it may go on, or has no such limit.

    `computed_s` is the time that it has computed in this slice.
    """
    limit = given.compute_limit
    if limit is None or computed_s < limit.left_s:
        return None
    return lifecycle.LimitPassed(f"compute limit {in_words(limit.limit_s)} reached", lifecycle.Limit.COMPUTING)


def end_jobs_at_limit(jobs: Sequence[Executor]) -> None:
    """End those of the jobs that compute and have reached their limit. A job that is being saved is not cut short."""
    for job in jobs:
        if job.is_computing and (passed := limit_passed(job.assignment, job.times.slice().compute_s)) is not None:
            job.feed(passed)
