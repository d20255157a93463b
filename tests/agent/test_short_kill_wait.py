"""An agent that is terminated where Slurm kills after four seconds: most of them belong to its jobs' saves."""

import asyncio
import os
import signal
import threading
from dataclasses import replace

import pytest
from tests.agent.control_harness import FAR_S, Control

from gleaner.agent.checkpoints.interface import Draft
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.runtime.interface import ContainerId
from gleaner.control.states import State

KILL_WAIT_S = 4.0
SAVE_TAKES_S = 2.0
"""Longer than an agent has that keeps its usual three last seconds, and shorter than one has that keeps a fifth."""


class StandingClock(SystemClock):
    """Its wall clock goes on only when the test says so; durations and waits are real, and the waits are short."""

    def __init__(self) -> None:
        super().__init__()
        self.shown_s = super().now_s()
        self.watching: asyncio.Task[object] | None = None
        """The task in which the agent watches the clock."""
        self.looks = 0
        """So often has the agent looked at the clock and gone on waiting, since the clock was last moved."""

    def now_s(self) -> float:
        return self.shown_s

    def move_to(self, shown_s: float) -> None:
        self.shown_s, self.looks = shown_s, 0

    async def sleep(self, duration_s: float) -> None:
        if asyncio.current_task() is self.watching:
            self.looks += 1
        await super().sleep(min(duration_s, 0.02))


def test_a_job_whose_agent_is_terminated_with_a_kill_wait_of_four_seconds_is_saved(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, left = StandingClock(), threading.Event()
    job = control.submit("100000")
    agent = replace(control.agent("a1", lives_s=FAR_S, kill_wait_s=KILL_WAIT_S, periodic_saves=False), clock=clock)
    checkpoint, remove = control.runtime.checkpoint, control.runtime.remove

    def save_slowly(container: ContainerId, draft: Draft) -> None:
        """By its own clock the agent has seen the time pass, twice, before the save goes on."""
        clock.move_to(clock.now_s() + SAVE_TAKES_S)
        while clock.looks < 2 and not left.wait(0.01):
            pass
        checkpoint(container, draft)

    def remove_late(container: ContainerId) -> None:
        """The agent leaves only when its container is removed: until then control hears of the job."""
        while control.job(job).job.state is State.RUNNING and not left.wait(0.01):
            pass
        remove(container)

    async def live() -> None:
        clock.watching = asyncio.current_task()
        try:
            await agent.live()
        finally:
            left.set()

    monkeypatch.setattr(control.runtime, "checkpoint", save_slowly)
    monkeypatch.setattr(control.runtime, "remove", remove_late)
    control.once_it_counts(lambda: os.kill(os.getpid(), signal.SIGTERM))
    asyncio.run(live())
    (attempt,) = control.job(job).attempts
    assert (attempt.ending, attempt.detail) == ("saved", "")
    assert control.job(job).job.state is State.SAVED
