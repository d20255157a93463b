"""The places where the backends are tested: faked and real Slurm programs."""

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.agents_view import agents_view
from gleaner.control.slurm.interface import AGENT_PREFIX, AgentRequest, Cluster, SchedulerId
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.pyslurm import PySlurmCluster
from gleaner.control.slurm.snapshot import Snapshot

PROGRAMS = ("sinfo", "squeue", "sbatch", "scancel")
SAME_NAMES = {name: name for name in PROGRAMS}
HEAD = os.environ.get("GLEANER_TEST_HEAD", "head")
ENGINE = os.environ.get("GLEANER_TEST_ENGINE", "unix:///run/gleaner/docker.sock")
DOCKER = f"{'/usr/bin/docker' if Path('/usr/bin/docker').exists() else 'docker'} -H {ENGINE}"
AGENT = ("sh", "-c", "exec sleep 300", "agent")
"""An agent that does nothing until it is told to end."""


@dataclass
class Place:
    """A backend under test. `again` makes another one of the same cluster, as a restarted program would."""

    again: Callable[[], Cluster]
    folder: Path
    partition: str = "gleaner"
    cluster: Cluster = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = self.again()

    def request(self, *, exclude: tuple[str, ...] = (), last_s: float = 240) -> AgentRequest:
        """A request under a fresh name, for an agent that ends at a full second."""
        end_s = float(int(time.time() + last_s))
        name = f"{AGENT_PREFIX}test-{secrets.token_hex(4)}"
        return AgentRequest(name, end_s, end_s - 60, self.folder / "agents" / name / "token", exclude)

    def submit(self, request: AgentRequest) -> SchedulerId:
        """Submit it now."""
        return self.cluster.submit(request, time.time())

    def look(self) -> Snapshot:
        """Look now."""
        return agents_view(self.cluster.read(time.time()), self.partition)

    def eventually(self, holds: Callable[[Snapshot], bool], *, within_s: float = 180) -> Snapshot:
        """The first view for which this holds."""
        until_s = time.monotonic() + within_s
        while not holds(view := self.look()):
            assert time.monotonic() < until_s, f"not within {within_s} s: {view}"
            time.sleep(0.1)
        return view


@dataclass
class FakedSlurm:
    """The folder of the faked programs and its switches."""

    folder: Path

    def put_on(self, path: Path) -> None:
        """Put the programs into the folder `path`."""
        path.mkdir(exist_ok=True)
        source = (Path(__file__).parent / "fake_slurm.py").read_text()
        (path / "fake_slurm.py").write_text(f"#!{sys.executable}\n{source}")
        for program in (*PROGRAMS, "scontrol", "sacctmgr"):
            (path / program).symlink_to("fake_slurm.py")
        (path / "fake_slurm.py").chmod(0o755)

    def calls(self, program: str) -> list[dict[str, Any]]:
        """Return the calls of this program so far."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in map(json.loads, lines) if call["program"] == program]

    def switch(self, name: str, text: str = "") -> None:
        """Turn a misbehaviour on."""
        (self.folder / name).write_text(text)

    def heal(self, name: str) -> None:
        """Turn it off."""
        (self.folder / name).unlink()


def slurm(
    folder: Path,
    *,
    logs: Path,
    timeout_s: float = 30,
    account: str | None = None,
    partition: str = "gleaner",
    agent: tuple[str, ...] = AGENT,
) -> Place:
    """Whatever Slurm programs stand on the PATH."""
    settings = ClusterSettings(
        backend="slurm",
        partition=partition,
        agent_command=agent,
        timeout_s=timeout_s,
        submits_per_s=50,
        account=account,
        qos=account,
    )
    return Place(lambda: SlurmCluster(settings, logs), folder, partition)


def pyslurm(folder: Path, *, python: Path, logs: Path, timeout_s: float = 30, agent: tuple[str, ...] = AGENT) -> Place:
    """PySlurm as this Python has it."""
    settings = ClusterSettings(
        backend="pyslurm", agent_command=agent, timeout_s=timeout_s, submits_per_s=50, pyslurm_python=python
    )
    return Place(lambda: PySlurmCluster(settings, logs), folder)


def wrap_real_programs(path: Path, container: str = HEAD, programs: Mapping[str, str] = SAME_NAMES) -> None:
    """Put programs into `path` that run the real ones as the service account in a container of Slurm's."""
    passed = "-e LC_ALL -e TZ -e SLURM_TIME_FORMAT"
    path.mkdir(exist_ok=True)
    for name, program in programs.items():
        wrapper = path / name
        wrapper.write_text(f'#!/bin/sh\nexec {DOCKER} exec -i -u gleaner {passed} {container} {program} "$@"\n')
        wrapper.chmod(0o755)
