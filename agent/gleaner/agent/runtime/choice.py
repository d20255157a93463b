"""Which runtime an agent uses, by its settings and by what its node has."""

from pathlib import Path
from typing import Literal

import structlog

from gleaner.agent.privileged import config
from gleaner.agent.runtime.criu import CriuRuntime
from gleaner.agent.runtime.docker import DockerRuntime
from gleaner.agent.runtime.protocol import Runtime, RuntimeFault

log = structlog.get_logger()

Kind = Literal["auto", "docker", "criu"]
"""`auto`: Docker if its engine answers and has our runtime, else the node helper."""


def chosen(
    kind: Kind, *, docker_url: str, images: Path | None, pulled: Path | None = None, docker_own_way: bool = False
) -> Runtime:
    """The runtime. Raises `RuntimeFault` if this node lacks what it needs."""
    if kind == "criu":
        return _criu(images)
    docker = DockerRuntime(docker_url, pulled=pulled, own_way=docker_own_way)
    if kind == "auto":
        try:
            docker.facts()
        except RuntimeFault as no_docker:
            try:
                found = _criu(images)
            except RuntimeFault as no_helper:
                raise RuntimeFault(f"{no_docker}; and {no_helper}") from no_docker
            log.info("using the node helper", reason=str(no_docker))
            return found
    return docker


def _criu(images: Path | None) -> Runtime:
    try:
        found = CriuRuntime.of_agent(config.load(), images=images)
    except config.Misconfigured as error:
        raise RuntimeFault(f"there is no node helper here: {error}") from error
    found.facts()
    return found
