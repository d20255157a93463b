"""An agent that is terminated where Slurm kills after four seconds: most of them belong to its jobs' saves."""

import os
import signal

from tests.agent.control_harness import FAR_S, Control

from gleaner.control.states import State

KILL_WAIT_S = 4.0
SAVE_TAKES_S = 2.0
"""Longer than an agent has that keeps its usual three last seconds, and shorter than one has that keeps a fifth."""


def test_a_job_whose_agent_is_terminated_with_a_kill_wait_of_four_seconds_is_saved(control: Control) -> None:
    control.runtime.checkpoint_takes_s = SAVE_TAKES_S
    job = control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S, kill_wait_s=KILL_WAIT_S, periodic_saves=False)
    control.once_it_counts(lambda: os.kill(os.getpid(), signal.SIGTERM))
    control.live(agent)
    (attempt,) = control.job(job).attempts
    assert (attempt.ending, attempt.detail) == ("saved", "")
    assert control.job(job).job.state is State.SAVED
