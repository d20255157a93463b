"""What PySlurm is told and how its answers are read: pure functions. PySlurm itself is not imported here.

Each value is one that PySlurm 25.11 hands on rightly: it takes a signal with its SIG only, a limit as minutes, an
instant as seconds since the epoch, a script that is no path, and without an environment it would ship its own.
"""

from pathlib import Path

from pydantic import BaseModel, PositiveInt, TypeAdapter, ValidationError

from gleaner.control.cluster import slurm_words
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

HELD_BACK_S = 60
"""How long a submission waits for what PySlurm cannot say (`complete`). If that never comes, it starts all the same."""

_HARMLESS = frozenset({"IDLE", "PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})
_IN_USE = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


class Versions(BaseModel):
    """Which PySlurm there is, the Slurm that it was built for, and the cluster's."""

    pyslurm: str
    built: str
    cluster: str

    @property
    def match(self) -> bool:
        """Whether the first two numbers are the same: between those Slurm changes its structures.

        >>> Versions(pyslurm="25.11.2", built="25.11.0", cluster="25.11.4").match
        True
        >>> Versions(pyslurm="25.11.2", built="25.11.0", cluster="26.05.1").match
        False
        """
        return _release(self.built) == _release(self.cluster)


_IDS = TypeAdapter(list[PositiveInt])


class _NodeSaid(BaseModel):
    name: str
    cpus: int
    memory_mib: int
    state: str


class _JobSaid(BaseModel):
    id: int
    name: str | None
    state: str
    node: str | None
    submitted_s: float
    start_s: float | None
    end_s: float | None


class _Said(BaseModel):
    nodes: tuple[_NodeSaid, ...]
    jobs: tuple[_JobSaid, ...]


def submit(settings: ClusterSettings, logs: Path, request: AgentRequest, now_s: float) -> dict[str, object]:
    """One agent on a whole node, like `slurm_words.submit`; held back until `complete` has been told."""
    return {
        "name": request.name,
        "partitions": [settings.partition],
        "account": settings.account,
        "qos": settings.qos,
        "nodes": 1,
        "ntasks": 1,
        "resource_sharing": "exclusive",
        "time_limit": slurm_words.minutes_up(request.end_s - now_s),
        "time_limit_min": slurm_words.minutes_down(request.end_s - request.latest_start_s),
        "deadline": slurm_words.deadline_s(request),
        "begin_time": int(now_s) + HELD_BACK_S,
        "is_requeueable": False,
        "signal": f"B:SIGUSR1@{slurm_words.WARNING_S}",
        "nice": slurm_words.NICE,
        "profile_types": ["none"],
        "environment": {"PATH": slurm_words.NODE_PATH},
        "working_directory": "/",
        "standard_in": "/dev/null",
        "standard_output": str(settings.agent_logs / f"{request.name}.log"),
        "log_files_open_mode": "append",
        "excluded_nodes": list(request.avoid),
        "script": slurm_words.script(settings, logs, request),
    }


def complete(id_: SchedulerId) -> list[str]:
    """What PySlurm cannot say of a submission: all of the node's memory (it takes a 0 for nothing). Then it may start.

    Without it an agent would get what the site gives to jobs that name no memory.
    """
    return ["scontrol", "update", f"JobId={id_}", "MinMemoryNode=0", "StartTime=now"]


def parse_versions(said: object) -> Versions:
    """The answer to `versions`."""
    try:
        return Versions.model_validate(said)
    except ValidationError as error:
        raise GatewayError(f"PySlurm said {said!r} where its versions were expected") from error


def parse_ids(said: object) -> list[SchedulerId]:
    """The job ids in an answer."""
    try:
        return [SchedulerId(str(id_)) for id_ in _IDS.validate_python(said)]
    except ValidationError as error:
        raise GatewayError(f"PySlurm said {said!r} where job ids were expected") from error


def parse_view(said: object, *, partition: str, read_s: float) -> ClusterView:
    """The cluster, from the answer to `look`."""
    try:
        found = _Said.model_validate(said)
    except ValidationError as error:
        raise GatewayError(f"PySlurm said what cannot be read: {error.errors()[0]}") from error
    if not found.nodes:
        raise GatewayError(f"Slurm knows no node in a partition {partition!r}; see [cluster] partition")
    agents = tuple(_agent(job, job.name) for job in found.jobs if job.name and job.name.startswith(AGENT_PREFIX))
    our_nodes = {agent.node for agent in agents}
    regular = {node.name for node in found.nodes if _is_in_use(node.state) and node.name not in our_nodes}
    return ClusterView(read_s, tuple(_node(node) for node in found.nodes), agents, frozenset(regular))


def _node(said: _NodeSaid) -> Node:
    flags = set(said.state.split("+"))
    is_idle = "IDLE" in flags and flags <= _HARMLESS
    return Node(
        name=said.name,
        cpus=said.cpus,
        memory_mib=said.memory_mib,
        idle=is_idle,
        planned=is_idle and "PLANNED" in flags,
        state=said.state.lower(),
    )


def _agent(said: _JobSaid, name: str) -> QueuedAgent:
    phase = slurm_words.phase_of(said.state)
    is_placed = phase is not AgentPhase.PENDING
    return QueuedAgent(
        id=SchedulerId(str(said.id)),
        name=name,
        phase=phase,
        submitted_s=said.submitted_s,
        node=(said.node or None) if is_placed else None,
        start_s=said.start_s if is_placed else None,
        end_s=said.end_s if is_placed else None,
    )


def _is_in_use(state: str) -> bool:
    flags = set(state.split("+"))
    return bool(flags & _IN_USE) and "DRAIN" not in flags


def _release(version: str) -> tuple[int, ...]:
    numbers = version.split(".")[:2]
    if not all(number.isdigit() for number in numbers):
        raise GatewayError(f"PySlurm said {version!r} where a version was expected")
    return tuple(int(number) for number in numbers)
