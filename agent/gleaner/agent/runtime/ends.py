"""How a container ended, by what the engine knows: by itself, or from outside."""

import time

import docker.errors

from gleaner.agent.runtime.engine import Engine
from gleaner.agent.runtime.protocol import ContainerKilled

KILLED = 137
"""The exit code of a process that was killed (SIGKILL): for its memory limit, or by somebody."""
_TOLD_WITHIN_S = 1.0
"""So long after a container's end the engine may still hear that its memory limit was hit."""


def exit_code_of(engine: Engine, container: str) -> int:
    """Block until a container has ended by itself; its exit code. Raises `ContainerKilled`."""
    try:
        while (exit_code := engine.wait(container)) is None:
            pass
        if exit_code == KILLED and not _was_out_of_memory(engine, container):
            raise ContainerKilled("its process was killed from outside, and not for its memory limit")
    except docker.errors.NotFound as error:
        raise ContainerKilled("its container was removed by somebody else") from error
    return exit_code


def _was_out_of_memory(engine: Engine, container: str) -> bool:
    told_s = time.monotonic() + _TOLD_WITHIN_S
    while not (known := bool(engine.inspect(container)["State"]["OOMKilled"])) and time.monotonic() < told_s:
        time.sleep(0.1)
    return known
