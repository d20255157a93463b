"""What becomes of the jobs that take more of the node's disk than they may: the verdicts of `disk`, carried out."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from gleaner.agent import task
from gleaner.agent.disk import DiskWatch, InTheWay, TooLarge, Verdict
from gleaner.agent.runtime.protocol import ContainerExited, ContainerId, Runtime, RuntimeFault
from gleaner.agent.shell import TaskShell

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DiskGuard:
    """Between the looks at a node's disk and its agent's jobs."""

    watch: DiskWatch
    runtime: Runtime

    async def look(self, shells: Sequence[TaskShell]) -> None:
        """Look at what the jobs have written, and end or save those that must go."""
        here = {shell.container: shell for shell in shells if shell.container is not None}
        folders = {container: shell.stored.folder for container, shell in here.items()}
        for container, verdict in (await asyncio.to_thread(self.watch.look, folders)).items():
            await self._heed(here[container], container, verdict)

    async def _heed(self, shell: TaskShell, container: ContainerId, verdict: Verdict) -> None:
        if shell.container != container:
            return
        log.warning("the disk", job=shell.assignment.job, verdict=verdict)
        match verdict:
            case TooLarge(detail):
                with suppress(ContainerExited):  # that will be heard
                    with suppress(RuntimeFault):  # until it is killed it may have to wait, and writes no more
                        await asyncio.to_thread(self.runtime.pause, container)
                    shell.feed(task.LimitPassed(detail))
            case InTheWay(detail, at_once=True):
                shell.feed(task.Lost(detail))
            case InTheWay():
                shell.feed(task.VacateAsked())
