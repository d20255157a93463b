"""Slurm's command lines and answers: pure functions, no program is run here.

The formats were captured from Slurm 24.11 and use only options that Slurm 20.11 and newer know. All instants
go in and out as UTC or as seconds since the epoch (`ENVIRONMENT`), so no daylight saving time can shift them.
"""

import math
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from gleaner.control.cluster.gateway import (
    AGENT_PREFIX,
    AgentPhase,
    AgentRequest,
    ClusterView,
    GatewayError,
    Node,
    QueuedAgent,
    SchedulerId,
)
from gleaner.control.settings import ClusterSettings

SUBMIT_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}
"""For sbatch, which reads `--deadline` in its own time zone."""

ASK_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
"""For squeue and sinfo. Not for sbatch: it would hand the time format on to the agent."""

UNSET = frozenset({"", "(null)", "N/A"})
"""How Slurm says that there is nothing to say."""

NODE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

WARNING_S = 60
"""How long before the end Slurm signals. Only a second source: the agent's own clock decides. But a preemption
with `send_user_signal` warns only jobs that have asked for a signal."""

NICE = 10_000
"""Behind every other job of the same partition."""

LIMIT_STEP_S = 60
"""Slurm's limits are whole minutes."""

_FLAGS = "*~#!%$@^-+"
_IN_USE = frozenset({"allocated", "mixed", "completing"})
WAITING_STATES = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""In these a job has no node."""
_PENDING = WAITING_STATES | {"CONFIGURING"}
"""No agent runs while its node is being made ready."""
_RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"})
"""Not STAGE_OUT: its processes have ended."""


def ask_nodes(partition: str) -> list[str]:
    """All nodes of the partition, one a line."""
    return ["sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N|%c|%m|%T"]


def ask_agents(partition: str) -> list[str]:
    """All our jobs in the partition that have not ended, one a line."""
    return ["squeue", "--me", "--noheader", f"--partition={partition}", "--format=%i|%T|%N|%V|%S|%e|%j"]


def ask_name(name: str) -> list[str]:
    """The ids of our jobs of this name, also of those that ended within the last minutes (MinJobAge)."""
    return ["squeue", "--me", "--noheader", f"--name={name}", "--states=all", "--format=%i"]


def withdraw(ids: Sequence[SchedulerId]) -> list[str]:
    """End these jobs."""
    return ["scancel", *ids]


def submit(settings: ClusterSettings, request: AgentRequest, now_s: float) -> list[str]:
    """Ask for one agent on a whole node; the script goes to standard input.

    Slurm cuts a limit that passes the deadline to whole minutes, downwards. With the deadline one minute
    after the shared end the limit therefore passes that end, by at most a minute, however late the start.
    """
    words = [
        "sbatch",
        "--parsable",
        f"--job-name={request.name}",
        f"--partition={settings.partition}",
        *([f"--account={settings.account}"] if settings.account else []),
        *([f"--qos={settings.qos}"] if settings.qos else []),
        "--nodes=1",
        "--exclusive",
        "--mem=0",
        f"--time={minutes_up(request.end_s - now_s)}",
        f"--time-min={minutes_down(request.end_s - request.latest_start_s)}",
        f"--deadline={_utc(deadline_s(request))}",
        "--no-requeue",
        f"--signal=B:USR1@{WARNING_S}",
        f"--nice={NICE}",
        "--export=NIL",
        "--propagate=NONE",
        "--chdir=/",
        "--input=/dev/null",
        f"--output={settings.agent_logs / '%x.log'}",
        "--open-mode=append",
    ]
    if request.avoid:
        words.append(f"--exclude={','.join(request.avoid)}")
    return words


def deadline_s(request: AgentRequest) -> int:
    """The deadline of a submission, see `submit`."""
    return math.ceil(request.end_s + LIMIT_STEP_S)


def script(settings: ClusterSettings, logs: Path, request: AgentRequest) -> str:
    """The batch script: the agent as a step, since Slurm's SIGTERM at a preemption reaches steps only.

    A warning comes to this shell as SIGUSR1. It is handed on as SIGUSR1: at a SIGTERM srun would kill the
    step at once. Until the agent can handle it, SIGUSR1 is ignored; the agent asks for its end when it starts.
    In the end what it has printed goes to the storage, if that answers: `logs` is a folder there.
    """
    agent = shlex.join(agent_command(settings, request))
    printed = shlex.join([str(settings.agent_logs / f"{request.name}.log")])
    kept = shlex.join([str(logs / f"{request.name}.log")])
    return f"""\
#!/bin/bash
export PATH={NODE_PATH}
step=
trap '[ -z "$step" ] || kill -USR1 "$step" 2>/dev/null' USR1 TERM
srun --ntasks=1 --mem=0 --whole --cpu-bind=none --export=ALL sh -c 'trap "" USR1; exec "$@"' agent \\
    {agent} &
step=$!
status=1
while kill -0 "$step" 2>/dev/null; do
    wait "$step"
    status=$?
done
timeout -k 1 2 cp {printed} {kept} && rm -f {printed}
exit "$status"
"""


def agent_command(settings: ClusterSettings, request: AgentRequest) -> list[str]:
    """The agent program's command line. It names the token's file, never the token."""
    return [
        *settings.agent_command,
        "run",
        "--name",
        request.name,
        "--end",
        f"{request.end_s:.3f}",
        "--token-file",
        str(request.token_file),
        "--settings",
        str(settings.agent_settings),
    ]


def parse_submitted(answer: str) -> SchedulerId:
    """The job id in sbatch's answer.

    >>> parse_submitted("4711;cluster")
    '4711'
    """
    id_ = answer.strip().partition(";")[0]
    if not id_.isdigit():
        raise GatewayError(f"sbatch said {answer.strip()!r} where a job id was expected")
    return SchedulerId(id_)


def parse_ids(answer: str) -> list[SchedulerId]:
    """The job ids in the answer to `ask_name`."""
    ids = answer.split()
    for id_ in ids:
        if not id_.isdigit():
            raise GatewayError(f"squeue said {id_!r} where a job id was expected")
    return [SchedulerId(id_) for id_ in ids]


def parse_view(nodes: str, agents: str, *, partition: str, read_s: float) -> ClusterView:
    """The cluster, from the answers to `ask_nodes` and `ask_agents`."""
    ours = tuple(agent for line in agents.splitlines() if (agent := _agent(line)) is not None)
    found = [_node(line) for line in nodes.splitlines()]
    if not found:
        raise GatewayError(f"Slurm knows no node in a partition {partition!r}; see [cluster] partition")
    our_nodes = {agent.node for agent in ours}
    regular = {node.name for node in found if _base(node.state) in _IN_USE and node.name not in our_nodes}
    return ClusterView(read_s=read_s, nodes=tuple(found), agents=ours, regular_nodes=frozenset(regular))


def parse_names(nodes: str) -> frozenset[str]:
    """The names of the nodes in the answer to `ask_nodes`."""
    return frozenset(_node(line).name for line in nodes.splitlines())


def asked(settings: ClusterSettings) -> str:
    """Where agents are submitted to, for the message of a refusal."""
    said = f"partition {settings.partition}"
    said += f", account {settings.account}" if settings.account else ""
    return said + (f", qos {settings.qos}" if settings.qos else "")


def _node(line: str) -> Node:
    fields = line.strip().split("|")
    if len(fields) != 4:
        raise GatewayError(f"sinfo said {line!r}")
    name, cpus, memory_mib, state = fields
    is_planned = state in {"planned", "idle-"}
    return Node(
        name=name,
        cpus=_whole(cpus, line),
        memory_mib=_whole(memory_mib, line),
        idle=is_planned or state == "idle",
        planned=is_planned,
        state=state,
    )


def _agent(line: str) -> QueuedAgent | None:
    fields = line.strip().split("|", 6)
    if len(fields) != 7:
        raise GatewayError(f"squeue said {line!r}")
    id_, state, node, submitted, start, end, name = fields
    if not name.startswith(AGENT_PREFIX):
        return None
    phase = phase_of(state)
    is_placed = phase is not AgentPhase.PENDING
    return QueuedAgent(
        id=SchedulerId(id_),
        name=name,
        phase=phase,
        submitted_s=float(_whole(submitted, line)),
        node=node or None,
        start_s=_instant(start) if is_placed else None,
        end_s=_instant(end) if is_placed else None,
    )


def phase_of(state: str) -> AgentPhase:
    """A state that is none of Slurm's known living ones, perhaps of a newer version, is one that will not last."""
    if state in _PENDING:
        return AgentPhase.PENDING
    return AgentPhase.RUNNING if state in _RUNNING else AgentPhase.ENDING


def _base(state: str) -> str:
    return state.rstrip(_FLAGS)


def _whole(text: str, line: str) -> int:
    digits = text.rstrip("+")  # sinfo marks values that differ within a group
    if not digits.isdigit():
        raise GatewayError(f"Slurm said {line!r}")
    return int(digits)


def _instant(text: str) -> float | None:
    return float(text) if text.isdigit() else None


def minutes_up(seconds: float) -> int:
    """A limit as Slurm takes it, at least so long."""
    return max(1, math.ceil(seconds / LIMIT_STEP_S))


def minutes_down(seconds: float) -> int:
    """A limit as Slurm takes it, at most so long, but a minute at least."""
    return max(1, math.floor(seconds / LIMIT_STEP_S))


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
