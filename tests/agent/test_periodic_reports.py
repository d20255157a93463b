"""A job that goes on after a periodic save does so when that save can no longer be lost with its agent."""

import asyncio

import pytest
from tests.agent.control_harness import FAR_S, Control

from gleaner.agent.agent import Agent
from gleaner.agent.job import lifecycle
from gleaner.agent.runtime.interface import ContainerId
from gleaner.control.daemon.report_spool import take_spooled_reports


async def live(control: Control, agent: Agent) -> None:
    """Save the agent's job while it goes on, and end the agent after that."""
    loop = asyncio.get_running_loop()

    def save() -> None:
        control.go_away()  # control hears nothing from here on
        for job in agent._jobs:
            loop.call_soon_threadsafe(job.feed, lifecycle.SaveDue())

    control.once_it_counts(save)
    await agent.live()


def test_a_periodic_save_counts_although_its_agent_is_killed_as_soon_as_the_job_goes_on_and_control_is_away(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S, periodic_saves=False)
    unpause = control.runtime.unpause
    known: list[list[int]] = []

    def go_on(container: ContainerId) -> None:
        """Take what there is at this instant: it is all that is left of an agent that is killed now."""
        take_spooled_reports(control.state, control.now_s)
        known.append([checkpoint.number for checkpoint in control.job(job).checkpoints])
        unpause(container)
        control.end_soon(agent)

    monkeypatch.setattr(control.runtime, "unpause", go_on)
    control.clock.run(live(control, agent))
    assert known[0] == [1]
