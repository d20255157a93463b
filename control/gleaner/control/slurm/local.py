"""The cluster of a machine without Slurm, in which agents are processes of this machine.

There are `local_agents` simulated nodes that share the machine's cores and memory evenly. After a restart, control
finds an agent again by its record and its pid file. A process counts as the agent only if its command line contains the
agent's name, which no other process ever has.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from gleaner.agent.system import atomic
from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.commands import agent_command
from gleaner.control.slurm.interface import (
    AgentRequest,
    Cluster,
    ClusterError,
    ClusterRefused,
    ClusterUnavailable,
    SchedulerId,
)
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot

OVERTIME_S = 60.0
"""An agent that still runs this long after its end is killed, as Slurm would kill it."""

START_LIMIT_S = 10.0
"""The time within which a started process writes its pid file. If the file is missing after that, no process was
started."""

EXEC_LIMIT_S = 1.0
"""The time for which a process without a command line is checked again. A process has no command line for a moment
while it starts another program."""

PAUSE_S = 0.005

_LAUNCH = 'umask 077; echo $$ >"$1.new" && mv "$1.new" "$1" && shift && exec "$@"'
"""The script that starts an agent. The process itself writes its pid file, so that the agent can be found even if
control is killed right after the start."""


@dataclass(frozen=True, slots=True)
class _Record:
    """The record of a request, written before its process is started."""

    name: str
    node: str
    submitted_s: float
    end_s: float
    withdrawn: bool = False


_RECORD = TypeAdapter(_Record)


class LocalCluster:
    """Processes of this machine and this user. An agent's id is its name."""

    def __init__(self, settings: ClusterSettings, *, logs: Path, records: Path) -> None:
        self._settings = settings
        self._logs = logs
        self._records = records
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """Processes that this program started itself. It must wait for them, or they stay as zombies."""

    def read(self, now_s: float) -> Snapshot:
        """See `Cluster.read`. This method also kills agents that still run after their end."""
        jobs: list[SlurmJob] = []
        for record in self._all_records():
            if self._is_gone(record, now_s):
                self._forget(record.name)
                continue
            if now_s > record.end_s + OVERTIME_S:
                self._signal(record.name, signal.SIGKILL)
            is_ending = record.withdrawn or now_s > record.end_s
            jobs.append(
                SlurmJob(
                    id=record.name,
                    name=record.name,
                    is_own=True,
                    partitions=(self._settings.partition,),
                    states=frozenset({"COMPLETING" if is_ending else "RUNNING"}),
                    nodes=(record.node,),
                    submitted_s=record.submitted_s,
                    start_s=record.submitted_s,
                    end_s=record.end_s,
                )
            )
        taken = {node for job in jobs for node in job.nodes}
        return Snapshot(now_s, {name: self._node(name, taken=name in taken) for name in self._node_names}, tuple(jobs))

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        """See `Cluster.read_nodes`."""
        snapshot = self.read(now_s)
        there = {name: node for name, node in snapshot.nodes.items() if name in nodes}
        return Snapshot(now_s, there, tuple(job for job in snapshot.jobs if set(job.nodes) & set(nodes)))

    def read_job(self, job: str) -> SlurmJob | None:
        """See `Cluster.read_job`. This machine has no jobs other than our agents."""
        return None

    def read_recent(self, nodes: Sequence[str]) -> tuple[SlurmJob, ...]:
        """Return no job, because regular jobs never take this machine from agents."""
        return ()

    def check_owners(self, owners: Sequence[str]) -> None:
        """See `Cluster.check_owners`. Raises `ClusterRefused`, because this machine has no owners."""
        raise ClusterRefused("[cluster] backend is local: only a Slurm cluster can have entitlements")

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Cluster.submit`. Raises `ClusterUnavailable` if every simulated node has an agent."""
        there = self.read(now_s)
        if any(job.name == request.name for job in there.jobs):
            return SchedulerId(request.name)
        free = [node.name for node in there.nodes.values() if node.is_idle and node.name not in request.exclude]
        if not free:
            raise ClusterUnavailable(f"all {len(there.nodes)} local agents are in use; see [cluster] local_agents")
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._write(_Record(request.name, free[0], now_s, request.end_s))
        try:
            self._start(request, node=free[0])
        except OSError as error:
            self._forget(request.name)
            raise ClusterRefused(f"the agent cannot be started: {error}") from error
        return SchedulerId(request.name)

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Cluster.withdraw`. The agent is told to end, and saves its jobs first."""
        wanted = set(ids)
        for record in self._all_records():
            if SchedulerId(record.name) in wanted:
                self._write(_Record(record.name, record.node, record.submitted_s, record.end_s, withdrawn=True))
                self._signal(record.name, signal.SIGTERM)

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `Cluster.vacate`. It ends the agents at once, because a local agent saves its jobs first in any case."""
        self.withdraw([SchedulerId(agent) for agent in agents])

    def _node(self, name: str, *, taken: bool) -> SlurmNode:
        state = "taken" if taken else "idle"
        return SlurmNode(
            name=name,
            partitions=frozenset({self._settings.partition}),
            states=frozenset({state.upper()}),
            state=state,
            cpus=self._cpus,
            memory_mib=self._memory_mib,
        )

    @property
    def _node_names(self) -> list[str]:
        return [f"local{number}" for number in range(1, self._settings.local_agents + 1)]

    @property
    def _cpus(self) -> int:
        return max(1, len(os.sched_getaffinity(0)) // self._settings.local_agents)

    @property
    def _memory_mib(self) -> int:
        memory_mib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        return max(1, memory_mib // self._settings.local_agents)

    def _start(self, request: AgentRequest, *, node: str) -> None:
        command = agent_command(self._settings, request)
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        program = shutil.which(command[0], path=path)
        if program is None:
            raise FileNotFoundError(f"{command[0]} is not on the PATH; see [cluster] agent_command")
        environment = {
            "PATH": path,
            "HOME": str(Path.home()),
            "SLURMD_NODENAME": node,
            "GLEANER_AGENT_CPUS": str(self._cpus),
            "GLEANER_AGENT_MEMORY_MIB": str(self._memory_mib),
        }
        pid_file = self._pid_file(request.name)
        with (self._logs / f"{request.name}.log").open("ab") as log:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _LAUNCH, "agent", str(pid_file), program, *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        self._children[request.name] = child
        until_s = time.monotonic() + START_LIMIT_S
        while not pid_file.exists() and child.poll() is None and time.monotonic() < until_s:
            time.sleep(PAUSE_S)  # from now on a withdrawal must find the process

    def _all_records(self) -> list[_Record]:
        paths = sorted(self._records.glob("*.json"))
        try:
            return [_RECORD.validate_json(path.read_bytes()) for path in paths]
        except (OSError, ValidationError) as error:
            raise ClusterError(f"a record in {self._records} cannot be read: {error}") from error

    def _write(self, record: _Record) -> None:
        atomic.replace(self._records / f"{record.name}.json", json.dumps(asdict(record)).encode())

    def _forget(self, name: str) -> None:
        self._pid_file(name).unlink(missing_ok=True)
        (self._records / f"{name}.json").unlink(missing_ok=True)
        self._children.pop(name, None)

    def _pid_file(self, name: str) -> Path:
        return self._records / f"{name}.pid"

    def _is_gone(self, record: _Record, now_s: float) -> bool:
        child = self._children.get(record.name)
        if child is not None:
            return child.poll() is not None
        if self._pid(record.name) is not None:
            return False
        return self._pid_file(record.name).exists() or now_s - record.submitted_s > START_LIMIT_S

    def _pid(self, name: str) -> int | None:
        """Return the pid of the agent's live process, or None if it has ended or has not begun."""
        child = self._children.get(name)
        if child is not None:
            return child.pid if child.poll() is None else None
        try:
            pid = int(self._pid_file(name).read_text())
        except (OSError, ValueError):
            return None
        return pid if name.encode() in _command_line(pid) else None

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._pid(name)
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return


def _command_line(pid: int) -> list[bytes]:
    """Return the words of a live process's command line, or an empty list if the process has ended."""
    process = Path(f"/proc/{pid}")
    until_s = time.monotonic() + EXEC_LIMIT_S
    try:
        while not (line := (process / "cmdline").read_bytes()) and time.monotonic() < until_s:
            if (process / "stat").read_bytes().rpartition(b") ")[2][:1] in b"ZX":
                break
            time.sleep(PAUSE_S)
    except OSError:
        return []
    return line.split(b"\0")


if TYPE_CHECKING:
    _: type[Cluster] = LocalCluster
