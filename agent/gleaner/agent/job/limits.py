"""End or save jobs that have passed a limit: computing time or silence over all slices, or use of the node's disk."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gleaner.agent.common.quantities import in_words, memory_in_words
from gleaner.agent.job import lifecycle
from gleaner.agent.job.executor import Executor
from gleaner.agent.messages import Assignment
from gleaner.agent.node.disk_usage import DiskWatch, InTheWay, TooLarge, Verdict
from gleaner.agent.runtime.interface import ContainerExited, ContainerId, Runtime, RuntimeFault


def check_compute_limit(assignment: Assignment, computed_s: float) -> lifecycle.LimitPassed | None:
    """Return the event of a job that has used up its computing time, or None if it can continue.

    `computed_s` is the time that it has computed in this slice.
    """
    if assignment.compute_left_s is None or computed_s < assignment.compute_left_s:
        return None
    limit_s = assignment.spec.compute_limit_s or 0
    return lifecycle.LimitPassed(f"compute limit {in_words(limit_s)} reached", lifecycle.JobLimit.COMPUTING)


def memory_limit_reached(assignment: Assignment) -> str:
    """Return the reason to report for a job that was ended at its memory limit."""
    return f"memory limit {memory_in_words(assignment.memory_mib)} reached"


def end_jobs_at_limit(jobs: Sequence[Executor]) -> None:
    """End the computing jobs that have reached their compute limit. A job that is being saved is left alone."""
    for job in jobs:
        if job.is_computing and (event := check_compute_limit(job.assignment, job.times.slice().compute_s)) is not None:
            job.feed(event)


async def end_silent_jobs(jobs: Sequence[Executor]) -> None:
    """End the jobs that have computed without writing anything for as long as their silence limit."""
    for job in list(jobs):
        limit_s, container = job.assignment.spec.silent_limit_s, job.container
        if limit_s is None or container is None or not job.is_computing:
            continue
        written_bytes = await asyncio.to_thread(job.context.runtime.written_bytes, container)
        if job.is_computing:  # no save, whose writes would count as the job's, has begun
            computed_s = job.times.slice().compute_s
            job.silence.record_look(written_bytes, computed_s)
            if job.silence.length_s(computed_s) >= limit_s:
                reason = f"silent limit {in_words(limit_s)} reached: it has printed and written nothing for so long"
                job.feed(lifecycle.LimitPassed(reason, lifecycle.JobLimit.SILENCE))


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DiskGuard:
    """The part of the agent that checks how much its jobs use of the node's disk and acts on it."""

    watch: DiskWatch
    runtime: Runtime

    async def look(self, jobs: Sequence[Executor]) -> None:
        """Measure how much the jobs have written, and end or save those that use too much."""
        here = {job.container: job for job in jobs if job.container is not None}
        folders = {container: job.checkpoints.folder for container, job in here.items()}
        own = {container: job.assignment.spec.disk_mib for container, job in here.items()}
        own_mib = {container: mib for container, mib in own.items() if mib is not None}
        for container, verdict in (await asyncio.to_thread(self.watch.look, folders, own_mib)).items():
            await self._carry_out(here[container], container, verdict)

    async def _carry_out(self, job: Executor, container: ContainerId, verdict: Verdict) -> None:
        if job.container != container:
            return
        log.warning("the disk", job=job.assignment.job, verdict=verdict)
        match verdict:
            case TooLarge(detail):
                with suppress(ContainerExited):  # the executor learns of the exit by itself
                    with suppress(RuntimeFault):  # the job must not write any more before it is killed
                        await asyncio.to_thread(self.runtime.pause, container)
                    job.feed(lifecycle.LimitPassed(detail))
            case InTheWay(detail, at_once=True):
                job.feed(lifecycle.Lost(detail))
            case InTheWay():
                job.feed(lifecycle.VacateAsked())
