"""End or save jobs that have passed a limit: of the time that they compute, over all slices, or of the node's disk."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gleaner.agent.common.quantities import in_words
from gleaner.agent.job import lifecycle
from gleaner.agent.job.executor import Executor
from gleaner.agent.messages import Assignment
from gleaner.agent.node.disk_usage import DiskWatch, InTheWay, TooLarge, Verdict
from gleaner.agent.runtime.interface import ContainerExited, ContainerId, Runtime, RuntimeFault


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


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DiskGuard:
    """Carries out what the look at a node's disk says of its agent's jobs."""

    watch: DiskWatch
    runtime: Runtime

    async def look(self, jobs: Sequence[Executor]) -> None:
        """Look at what the jobs have written, and end or save those that must go."""
        here = {job.container: job for job in jobs if job.container is not None}
        folders = {container: job.stored.folder for container, job in here.items()}
        for container, verdict in (await asyncio.to_thread(self.watch.look, folders)).items():
            await self._heed(here[container], container, verdict)

    async def _heed(self, job: Executor, container: ContainerId, verdict: Verdict) -> None:
        if job.container != container:
            return
        log.warning("the disk", job=job.assignment.job, verdict=verdict)
        match verdict:
            case TooLarge(detail):
                with suppress(ContainerExited):  # that will be heard
                    with suppress(RuntimeFault):  # until it is killed it may have to wait, and writes no more
                        await asyncio.to_thread(self.runtime.pause, container)
                    job.feed(lifecycle.LimitPassed(detail))
            case InTheWay(detail, at_once=True):
                job.feed(lifecycle.Lost(detail))
            case InTheWay():
                job.feed(lifecycle.VacateAsked())
