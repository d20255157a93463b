"""The gateway for a machine without Slurm: agents are processes of this machine.

There are `local_agents` pretended nodes that share its cores and memory evenly. An agent is found again after
a restart of control by its record and its pid file; a process counts as the agent only if its command line
holds the agent's name, which no other process ever has.
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

from gleaner.control.cluster.gateway import (
    AgentPhase,
    AgentRequest,
    ClusterView,
    Gateway,
    GatewayError,
    GatewayRefused,
    GatewayUnavailable,
    Node,
    QueuedAgent,
    SchedulerId,
)
from gleaner.control.cluster.slurm_words import agent_command
from gleaner.control.settings import ClusterSettings

OVERTIME_S = 60.0
"""An agent still there so long after its end is killed, as Slurm would."""

START_LIMIT_S = 10.0
"""A process that was to be started has its pid file by then, or was never started."""

EXEC_LIMIT_S = 1.0
"""While a process begins another program it has no command line for a moment: so long it is looked at again."""

PAUSE_S = 0.005

_LAUNCH = 'umask 077; echo $$ >"$1.new" && mv "$1.new" "$1" && shift && exec "$@"'
"""The process itself writes its pid file, so a control program killed right after the start still finds it."""


@dataclass(frozen=True, slots=True)
class _Record:
    """What was asked for, written before the process is started."""

    name: str
    node: str
    submitted_s: float
    end_s: float
    withdrawn: bool = False


class LocalGateway:
    """Processes of this machine and of this user. An agent's id is its name."""

    def __init__(self, settings: ClusterSettings, *, logs: Path, records: Path) -> None:
        self._settings = settings
        self._logs = logs
        self._records = records
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        """Processes that this program started itself and must wait for, or they stay as zombies."""

    def look(self, now_s: float) -> ClusterView:
        """See `Gateway.look`. Also kills agents that have stayed past their end."""
        agents: list[QueuedAgent] = []
        for record in self._all_records():
            if self._is_gone(record, now_s):
                self._forget(record.name)
                continue
            if now_s > record.end_s + OVERTIME_S:
                self._signal(record.name, signal.SIGKILL)
            is_ending = record.withdrawn or now_s > record.end_s
            agents.append(
                QueuedAgent(
                    id=SchedulerId(record.name),
                    name=record.name,
                    phase=AgentPhase.ENDING if is_ending else AgentPhase.RUNNING,
                    submitted_s=record.submitted_s,
                    node=record.node,
                    start_s=record.submitted_s,
                    end_s=record.end_s,
                )
            )
        taken = {agent.node for agent in agents}
        nodes = tuple(
            Node(name, self._cpus, self._memory_mib, idle=name not in taken, state="taken" if name in taken else "idle")
            for name in self._node_names
        )
        return ClusterView(read_s=now_s, nodes=nodes, agents=tuple(agents))

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Gateway.submit`. Raises `GatewayUnavailable` when every pretended node has an agent."""
        view = self.look(now_s)
        if any(agent.name == request.name for agent in view.agents):
            return SchedulerId(request.name)
        free = [node.name for node in view.nodes if node.idle and node.name not in request.avoid]
        if not free:
            raise GatewayUnavailable(f"all {len(view.nodes)} local agents are in use; see [cluster] local_agents")
        self._records.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._write(_Record(request.name, free[0], now_s, request.end_s))
        try:
            self._start(request, node=free[0])
        except OSError as error:
            self._forget(request.name)
            raise GatewayRefused(f"the agent cannot be started: {error}") from error
        return SchedulerId(request.name)

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Gateway.withdraw`. The agent is asked to end, and saves its jobs first."""
        wanted = set(ids)
        for record in self._all_records():
            if SchedulerId(record.name) in wanted:
                self._write(_Record(record.name, record.node, record.submitted_s, record.end_s, withdrawn=True))
                self._signal(record.name, signal.SIGTERM)

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
            time.sleep(PAUSE_S)  # a withdrawal must find the process from now on

    def _all_records(self) -> list[_Record]:
        paths = sorted(self._records.glob("*.json"))
        try:
            return [_Record(**json.loads(path.read_text())) for path in paths]
        except (OSError, ValueError, TypeError) as error:
            raise GatewayError(f"a record in {self._records} cannot be read: {error}") from error

    def _write(self, record: _Record) -> None:
        path = self._records / f"{record.name}.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record)))
        fresh.replace(path)

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
        """Return the pid of the agent's living process; None if it has ended, or has not begun."""
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
    """Return the words of a living process, nothing if it has ended."""
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
    _: type[Gateway] = LocalGateway
