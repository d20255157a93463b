"""The owners' jobs and nodes as Slurm tells of them: `sinfo` and `squeue`, one call each.

A comment may hold anything that its user likes, line ends too. So what parts the fields is a word that was made up for
this one question, and a line without it, in the right number, is no job.
"""

import math
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import TYPE_CHECKING

from gleaner.control.cluster import programs
from gleaner.control.cluster.accounting import check_accounting
from gleaner.control.cluster.features import features_of, lacking
from gleaner.control.cluster.gateway import GatewayError
from gleaner.control.cluster.hosts import expanded
from gleaner.control.cluster.owners import OwnedJob, OwnedNode, OwnedPhase, OwnersCluster, OwnersView
from gleaner.control.cluster.slurm_words import ASK_ENVIRONMENT, UNSET, WAITING_STATES
from gleaner.control.policy.governing_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room
from gleaner.control.steward.conf import CHECKPOINTABLE, PREEMPTIBLE, class_of
from gleaner.control.steward.marks import is_held_for_us

_NODE_FIELDS = ("NodeHost", "StateLong", "CPUsState", "Memory", "AllocMem", "Features")
_JOB_FIELDS = (
    "JobArrayID", "State", "Account", "Partition", "NumCPUs", "NumTasks", "OverSubscribe", "ReqNodes", "ExcNodes",
    "NodeList", "tres-alloc", "SubmitTime", "StartTime", "EligibleTime", "PriorityLong", "Reason", "Dependency",
    "Feature", "restartcnt", "admin_comment", "Comment",
)  # fmt: skip
_USABLE = frozenset({"idle", "mixed", "allocated", "planned", "completing"})
_ASLEEP = "~#"
"""Powered down to save energy, or being powered up: Slurm starts jobs there all the same."""
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_LIMITS = ("Assoc", "QOS")
_NOT_READY = (
    *_LIMITS, "Dependency", "BeginTime", "JobArrayTaskLimit", "Licenses", "Reservation", "PartitionDown",
    "PartitionInactive", "PartitionTimeLimit",
)  # fmt: skip
"""How the reasons of a job begin that more room would not help. While a job is held Slurm does not tell them."""
_REQUEUE_WAIT_S = 600
"""A requeued job begins two minutes later at Slurm's own wish: that one is not to be waited for."""
_CLASSES = {PREEMPTIBLE: JobClass.PREEMPTIBLE, CHECKPOINTABLE: JobClass.CHECKPOINTABLE}
_UNITS_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


class SlurmOwners:
    """Governed partitions of Slurm's, by its command-line tools."""

    def __init__(self, partitions: tuple[str, ...], *, agents: str, timeout_s: float) -> None:
        self._partitions = partitions
        self._governed = ",".join(partitions)
        self._agents = agents
        self._timeout_s = timeout_s

    def check(self, owners: Sequence[str]) -> None:
        """See `OwnersCluster.check`."""
        check_accounting(timeout_s=self._timeout_s)
        there = self._run(["sinfo", "--noheader", f"--partition={self._governed}", "--format=%R"]).split()
        for partition in self._partitions:
            if partition not in there:
                raise GatewayError(f"[governing] partitions names {partition}, which is no partition of Slurm's")
        accounts = self._run(["sacctmgr", "--parsable2", "--noheader", "list", "account", "format=Account"]).split()
        for owner in owners:
            if owner not in accounts:
                known = ", ".join(sorted(accounts))
                raise GatewayError(
                    f"[governing] entitled names {owner}, which is no account of Slurm's; there are {known}"
                )

    def look(self, now_s: float) -> OwnersView:
        """See `OwnersCluster.look`."""
        word = "x" + secrets.token_hex(8)  # digits at its beginning would be a column's width
        of_nodes = [f"--partition={self._governed}", _format(_NODE_FIELDS, word)]
        nodes = self._run(["sinfo", "--noheader", "--Node", *of_nodes])
        of_jobs = [f"--partition={self._governed},{self._agents}", _format(_JOB_FIELDS, word)]
        jobs = self._run(["squeue", "--noheader", "--array", *of_jobs])
        return parse(nodes, jobs, word, read_s=now_s)

    def send_home(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `OwnersCluster.send_home`."""
        for agent in agents:
            self._run(["scontrol", "update", f"JobId={agent}", f"EndTime={_utc(gone_s)}"])
        if agents:
            self._run(["scancel", "--batch", "--signal=USR1", *agents])

    def _run(self, words: list[str]) -> str:
        return programs.run(words, ASK_ENVIRONMENT, timeout_s=self._timeout_s)


def parse(nodes: str, jobs: str, word: str, *, read_s: float) -> OwnersView:
    """The view, from the two answers whose fields each end with `word`.

    It may have no node: all may be down or drained, and are shown then. Of a partition that it does not know Slurm
    shows nothing.
    """
    there: dict[str, OwnedNode] = {}
    rows = _rows(nodes, word, len(_NODE_FIELDS))
    if not rows:
        raise GatewayError("Slurm knows no node of the governed partitions; see [governing] partitions")
    for fields in rows:
        if (node := _node(fields)) is not None:
            there[node.name] = node
    features = {name: node.features for name, node in there.items()}
    lack = cache(partial(lacking, nodes=features))
    found = tuple(_job(fields, there, lack, read_s) for fields in _rows(jobs, word, len(_JOB_FIELDS)))
    return OwnersView(read_s, tuple(there.values()), tuple(sorted(found, key=_by_submission)))


def job_class(comment: str) -> JobClass:
    """What a job's comment allows to be done with it.

    >>> job_class("nightly gleaner:preemptible"), job_class("gleaner:mortal")
    (<JobClass.PREEMPTIBLE: 1>, <JobClass.NON_PREEMPTIBLE: 0>)
    """
    return _CLASSES.get(class_of(comment) or "", JobClass.NON_PREEMPTIBLE)


def _format(fields: tuple[str, ...], word: str) -> str:
    return "--Format=" + ",".join(f"{field}:{word}" for field in fields)


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(math.floor(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _by_submission(job: OwnedJob) -> tuple[float, int, str]:
    digits = job.id.partition("_")[0]
    return job.submitted_s, int(digits) if digits.isdigit() else 0, job.id


def _rows(answer: str, word: str, count: int) -> list[list[str]]:
    """The fields of each row; a field may go over several lines."""
    pieces = answer.split(word)[:-1]
    if len(pieces) % count:
        raise GatewayError(f"Slurm answered {len(pieces)} fields where a multiple of {count} was expected")
    return [[field.strip() for field in pieces[at : at + count]] for at in range(0, len(pieces), count)]


def _node(fields: list[str]) -> OwnedNode | None:
    name, state, cpus, memory, used_memory, features = fields
    if state.rstrip("-" + _ASLEEP) not in _USABLE:  # draining, down, reserved, not responding ...
        return None
    _, idle, _, total = (_whole(part, fields) for part in cpus.split("/"))
    size = Room(total, _whole(memory, fields))
    free = Room(idle, max(0, size.memory_mib - _whole(used_memory, fields)))
    return OwnedNode(name, size, free, features_of(features))


def _job(
    fields: list[str], nodes: dict[str, OwnedNode], lack: Callable[[str], frozenset[str]], read_s: float
) -> OwnedJob:
    (id_, state, account, partition, cpus, tasks, shared, wanted, unwanted, hosts, tres, submitted, start, begins,
     priority, reason, dependency, constraint, restarts, admin, comment) = fields  # fmt: skip
    phase = phase_of(state)
    is_pending = phase is OwnedPhase.PENDING
    asked = dict(part.split("=", 1) for part in tres.split(",") if "=" in part)
    all_of_it = Room(_whole(cpus, fields), _mib(asked.get("mem", "0")))
    places = expanded(hosts) if not is_pending else []
    among = _among(expanded(wanted), expanded(unwanted), lack(constraint), nodes) if is_pending else None
    return OwnedJob(
        id=id_,
        account=account,
        partition=partition,
        phase=phase,
        job_class=job_class(comment),
        wish=_wish(
            all_of_it,
            nodes_at_least=_whole(asked.get("node", "1"), fields),
            tasks=max(1, _whole(tasks, fields)),
            whole=shared == "NO",
            among=among,
            sizes=[node.size for node in nodes.values() if among is None or node.name in among],
        ),
        submitted_s=float(submitted) if submitted.isdigit() else 0.0,
        priority=_whole(priority, fields),
        held=is_pending and priority == "0",
        ours=is_held_for_us(admin, restarted=restarts != "0", reason=reason),
        said=admin,
        is_ready=not reason.startswith(_NOT_READY) and dependency in UNSET,
        at_limit=reason.startswith(_LIMITS),
        begins_later=begins.isdigit() and int(begins) > read_s + (_REQUEUE_WAIT_S if restarts != "0" else 0),
        since_s=float(start) if start.isdigit() and not is_pending else None,
        holds=None if is_pending else dict(zip(places, _dealt(all_of_it, len(places)), strict=True)),
    )


def _wish(
    all_of_it: Room, *, nodes_at_least: int, tasks: int, whole: bool, among: tuple[str, ...] | None, sizes: list[Room]
) -> Wish:
    """What the job asks for, as far as `squeue` tells: it does not say whether tasks may be apart."""
    if whole and sizes:
        least = Room(min(size.cpus for size in sizes), min(size.memory_mib for size in sizes))
        nodes = max(nodes_at_least, math.ceil(all_of_it.cpus / max(1, least.cpus)))
        return Wish(nodes, least, apart=True, whole=True, nodes=among)
    is_apart = nodes_at_least > 1 or tasks == 1
    pieces = nodes_at_least if is_apart else tasks
    piece = Room(math.ceil(all_of_it.cpus / pieces), math.ceil(all_of_it.memory_mib / pieces))
    in_all = None if pieces * piece.cpus == all_of_it.cpus else all_of_it.cpus
    return Wish(pieces, piece, apart=is_apart, nodes=among, all_cpus=in_all)


def _dealt(room: Room, places: int) -> list[Room]:
    """What there is of it on each of so many nodes, as far as `squeue` tells: it says only what that is together.

    >>> _dealt(Room(7, 1001), 2)
    [Room(cpus=4, memory_mib=501), Room(cpus=3, memory_mib=500)]
    """
    return [
        Room((room.cpus + places - 1 - at) // places, (room.memory_mib + places - 1 - at) // places)
        for at in range(places)
    ]


def _among(
    wanted: list[str], unwanted: list[str], lacking: frozenset[str], nodes: dict[str, OwnedNode]
) -> tuple[str, ...] | None:
    if not wanted and not unwanted and not lacking:
        return None
    return tuple(sorted((set(wanted) if wanted else nodes.keys()) - set(unwanted) - lacking))


def phase_of(state: str) -> OwnedPhase:
    """Where a job in this state stands; one that is not known, perhaps of a newer version, has its nodes."""
    if state in WAITING_STATES:  # not CONFIGURING: such a job has its nodes
        return OwnedPhase.PENDING
    return OwnedPhase.ENDING if state in _ENDING else OwnedPhase.RUNNING


def _mib(text: str) -> int:
    """Slurm's way to write an amount of memory.

    >>> _mib("4000M"), _mib("1.50G"), _mib("0")
    (4000, 1536, 0)
    """
    unit = text[-1:].upper()
    return math.ceil(float(text[:-1]) * _UNITS_MIB[unit]) if unit in _UNITS_MIB else int(float(text or 0))


def _whole(text: str, fields: list[str]) -> int:
    digits = text.rstrip("+")
    if not digits.isdigit():
        raise GatewayError(f"Slurm said {text!r} where a number was expected, of {fields[0]}")
    return int(digits)


if TYPE_CHECKING:
    _: type[OwnersCluster] = SlurmOwners
