"""Choose the runtime that an agent uses, from the agent's settings and from what its node offers."""

from pathlib import Path
from typing import Literal

import structlog

from gleaner.agent.privileged.common import config
from gleaner.agent.runtime.core import ContainerRuntime
from gleaner.agent.runtime.docker_runtime import DockerRuntime
from gleaner.agent.runtime.helper_runtime import RuncRuntime
from gleaner.agent.runtime.interface import RuntimeFault

log = structlog.get_logger()

Kind = Literal["auto", "docker", "criu"]
"""`auto` is Docker if it can save memory, else the node helper, else Docker for jobs that save themselves."""


def choose_runtime(
    kind: Kind, *, docker_url: str, images: Path | None, pulled_images: Path | None = None, images_pull: bool = True
) -> ContainerRuntime:
    """Return the runtime. Raises `RuntimeFault` if this node lacks what the runtime needs."""
    if kind == "criu":
        return _criu(images)
    docker = DockerRuntime(docker_url, pulled_images=pulled_images, images_pull=images_pull)
    if kind == "auto":
        no_docker: RuntimeFault | None = None
        try:
            if docker.facts().checkpoints:
                return docker
        except RuntimeFault as error:
            no_docker = error
        try:
            runtime = _criu(images)
        except RuntimeFault as no_helper:
            if no_docker is None:
                return docker
            raise RuntimeFault(f"{no_docker}; and {no_helper}") from no_docker
        log.info("using the node helper", reason=str(no_docker or "Docker cannot save containers here"))
        return runtime
    return docker


def _criu(images: Path | None) -> ContainerRuntime:
    try:
        runtime = RuncRuntime.of_agent(config.load(), images=images)
    except config.Misconfigured as error:
        raise RuntimeFault(f"there is no node helper here: {error}") from error
    runtime.facts()
    return runtime
