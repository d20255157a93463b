"""How a task's process ended, as an event of the task."""

import time

from gleaner.agent import task
from gleaner.agent.runtime.protocol import ContainerId, ContainerKilled, Runtime, RuntimeFault

TERMINATED = 143
"""The exit code of a process that was terminated: by its own doing, or by an engine that ends."""
ENGINE_ENDS_S = 1.0
RUNTIME_BACK_S = 20.0
"""So long a runtime may be away before its containers are taken for lost."""


def exit_of(runtime: Runtime, container: ContainerId) -> task.Event:
    """Wait for the process to end.

    A runtime that goes away takes its containers along, and somebody may kill them: neither is their fault.
    """
    give_up_s = float("inf")
    while True:
        try:
            exit_code = runtime.wait(container)
            if exit_code == TERMINATED:
                time.sleep(ENGINE_ENDS_S)
                runtime.facts()
            return task.Exited(exit_code)
        except ContainerKilled as error:
            return task.Lost(str(error))
        except RuntimeFault as error:
            give_up_s = min(give_up_s, time.monotonic() + RUNTIME_BACK_S)
            if time.monotonic() >= give_up_s:
                return task.Lost(f"the container runtime went away: {error}")
            time.sleep(1)
