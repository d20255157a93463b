"""The requests to PySlurm, and the reading of its answers. Pure: PySlurm itself is not imported here.

Each value has a form that PySlurm 25.11 hands on correctly. PySlurm takes a signal only with its SIG, a limit as
minutes, an instant as seconds since the epoch, and a script that is no path. Without an environment in the request,
PySlurm would send its own.
"""

from pathlib import Path
from typing import cast

from pydantic import BaseModel, PositiveInt, TypeAdapter, ValidationError

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm import commands
from gleaner.control.slurm.interface import AGENT_PREFIX, AgentRequest, ClusterError, SchedulerId
from gleaner.control.slurm.parse_json import read_each
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot

HELD_BACK_S = 60
"""The time for which a submission waits for `complete`, which says what PySlurm cannot. If `complete` never runs, the
agent starts all the same."""
_LONGEST_NUMBER = 10


class Versions(BaseModel):
    """The version of PySlurm, of the Slurm that it was built for, and of the cluster's."""

    pyslurm: str
    built: str
    cluster: str

    @property
    def match(self) -> bool:
        """True if the first two numbers agree: Slurm changes its structures between releases that differ in them.

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
    nodes: tuple[object, ...]
    jobs: tuple[object, ...]


def submit(settings: ClusterSettings, logs: Path, request: AgentRequest, now_s: float) -> dict[str, object]:
    """Return the request for one agent on a whole node, like `commands.submit`.

    Slurm holds the agent back until `complete` has run.
    """
    return {
        "name": request.name,
        "partitions": [settings.partition],
        "account": settings.account,
        "qos": settings.qos,
        "nodes": 1,
        "ntasks": 1,
        "resource_sharing": "exclusive",
        "time_limit": commands.minutes_up(request.end_s - now_s),
        "time_limit_min": commands.minutes_down(request.end_s - request.latest_start_s),
        "deadline": commands.deadline_s(request),
        "begin_time": int(now_s) + HELD_BACK_S,
        "is_requeueable": False,
        "signal": f"B:SIGUSR1@{commands.WARNING_S}",
        "nice": commands.NICE,
        "profile_types": ["none"],
        "environment": {"PATH": commands.NODE_PATH},
        "working_directory": "/",
        "standard_in": "/dev/null",
        "standard_output": str(settings.agent_logs / f"{request.name}.log"),
        "log_files_open_mode": "append",
        "excluded_nodes": list(request.avoid),
        "script": commands.script(settings, logs, request),
    }


def complete(id_: SchedulerId) -> list[str]:
    """Return the command that completes a submission, and lets the agent start.

    It asks for all of the node's memory. PySlurm cannot say that, since it takes a 0 for nothing. Without this command
    an agent would get the memory that the site gives to jobs that name none.
    """
    return ["scontrol", "update", f"JobId={id_}", "MinMemoryNode=0", "StartTime=now"]


def parse_versions(said: object) -> Versions:
    """Return the versions in the answer to `versions`."""
    try:
        return Versions.model_validate(said)
    except ValidationError as error:
        raise ClusterError(f"PySlurm said {said!r:.200} where its versions were expected") from error


def parse_ids(said: object) -> list[SchedulerId]:
    """Return the job ids in an answer."""
    try:
        return [SchedulerId(str(id_)) for id_ in _IDS.validate_python(said)]
    except ValidationError as error:
        raise ClusterError(f"PySlurm said {said!r:.200} where job ids were expected") from error


def parse_snapshot(said: object, *, partition: str, read_s: float) -> Snapshot:
    """Return the partition's nodes and the agents' jobs there, from the answer to `look`."""
    try:
        found = _Said.model_validate(said)
    except ValidationError as error:
        raise ClusterError(f"PySlurm said what cannot be read: {error.errors()[0]}") from error
    nodes, gaps = read_each(found.nodes, lambda said: _node(said, partition), _name)
    jobs, job_gaps = read_each(found.jobs, lambda said: _job(said, partition), _name)
    gaps = "; ".join(filter(None, (gaps, job_gaps)))
    return Snapshot(read_s, {node.name: node for node in nodes}, tuple(jobs), gaps)


def _name(said: object) -> str:
    return f"{said!r:.80}"


def _node(record: object, partition: str) -> SlurmNode:
    said = _NodeSaid.model_validate(record)
    return SlurmNode(
        name=said.name,
        partitions=frozenset({partition}),
        states=frozenset(said.state.split("+")),
        state=said.state.lower(),
        cpus=said.cpus,
        memory_mib=said.memory_mib,
    )


def _job(record: object, partition: str) -> SlurmJob:
    """Return the job. Raises `ClusterError` for an agent: one that is left out would be taken for gone."""
    try:
        said = _JobSaid.model_validate(record)
    except ValidationError as error:
        if isinstance(record, dict) and str(cast("dict[str, object]", record).get("name")).startswith(AGENT_PREFIX):
            raise ClusterError(f"PySlurm said of an agent what cannot be read: {error.errors()[0]}") from error
        raise
    return SlurmJob(
        id=str(said.id),
        name=said.name or "",
        is_own=True,
        partitions=(partition,),
        states=frozenset({said.state}),
        nodes=(said.node,) if said.node else (),
        submitted_s=said.submitted_s,
        start_s=said.start_s,
        end_s=said.end_s,
    )


def _release(version: str) -> tuple[int, ...]:
    numbers = version.split(".")[:2]
    if not all(number.isascii() and number.isdigit() and len(number) < _LONGEST_NUMBER for number in numbers):
        raise ClusterError(f"PySlurm said {version!r} where a version was expected")
    return tuple(int(number) for number in numbers)
