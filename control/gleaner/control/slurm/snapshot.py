"""Slurm's jobs and nodes at one instant, as Slurm shows them, in records that all readers share.

Each policy uses its own reduced view of a snapshot, `agents_view` for provisioning and `owners_view` for entitlements.
The drains and the Slurm admin service use the records themselves. This module needs only the standard library, because
the privileged process imports it.

Owners and Gleaner write marks into comments and reasons. An owner declares a job's class in its Comment. Gleaner's
marks are in a job's AdminComment, which only administrators can write, and in the reason of a drained node. slurmctld's
job_submit.lua and the dead man's switch use the same words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
"""The states in which a job has no node."""
ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip
"""The states in which a job is over."""
_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_LONGEST_ID = 15
_IN_USE = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_HARMLESS = frozenset({"IDLE", "PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})
_STARTABLE = frozenset({*_HARMLESS, *_IN_USE, "POWERED_DOWN", "POWERING_UP"})

DEFAULT_CLASS = "non-preemptible"
"""The class of a job that declares none. Gleaner never acts on such a job once it runs."""
PREEMPTIBLE = "preemptible"
CHECKPOINTABLE = "checkpointable"
CLASSES = (DEFAULT_CLASS, PREEMPTIBLE, CHECKPOINTABLE)

_WORD = "gleaner:"

OURS = "gleaner: "
WAITS_FOR_ITS_TURN = OURS + "waits for its turn"
ASKED_TO_SAVE = OURS + "was asked to save itself, and waits for its turn"
RELEASED = OURS + "released"
RELEASED_ON_TOP = RELEASED + " on top"
DRAINED_BY = OURS + "drained by "

_BY_AN_ADMIN = "JobHeldAdmin"


class JobPhase(StrEnum):
    """The phase of a job that Slurm still shows. A job that Slurm no longer shows has ended."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    """The job's processes are being ended, and the job still holds its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node. A field that was not queried has its default value."""

    name: str
    partitions: frozenset[str]
    states: frozenset[str]
    """Slurm's words in capitals, with each flag as a separate word, such as `IDLE` and `DRAIN`."""
    state: str = ""
    """The state as Slurm's programs show it to users."""
    cpus: int = 0
    idle_cpus: int = 0
    memory_mib: int = 0
    allocated_mib: int = 0
    features: frozenset[str] = frozenset()
    reason: str = ""
    reason_by: str = ""

    @property
    def is_idle(self) -> bool:
        """Return True if the whole node is free and usable now, even if Slurm reserves the node for a waiting job."""
        return "IDLE" in self.states and self.states <= _HARMLESS

    @property
    def is_planned(self) -> bool:
        """Return True if the node is idle, but reserved for a waiting job."""
        return self.is_idle and "PLANNED" in self.states

    @property
    def is_drained(self) -> bool:
        """Return True if Slurm starts nothing new here."""
        return "DRAIN" in self.states

    @property
    def is_used(self) -> bool:
        """Return True if any job uses a part of the node, even a job that Slurm does not show us."""
        return bool(self.states & _IN_USE)

    @property
    def is_startable(self) -> bool:
        """Return True if Slurm would start jobs here. This includes a node that is powered down to save energy."""
        return self.states <= _STARTABLE and bool(self.states & {"IDLE", *_IN_USE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """One job, or one task of an array. A field that was not queried has its default value."""

    id: str
    """The id as users write it, such as 4711, 4711_3 for a task of an array, or 4711+0 for a part of a heterogeneous
    job."""
    partitions: tuple[str, ...]
    """The job's partitions. There can be several only while the job waits."""
    states: frozenset[str]
    name: str = ""
    user: str = ""
    is_own: bool = False
    """True if the user of this program submitted the job."""
    account: str = ""
    nodes: tuple[str, ...] = ()
    cpus: int = 0
    memory_mib: int = 0
    nodes_at_least: int = 1
    tasks: int = 1
    is_exclusive: bool = False
    """True if the job takes whole nodes."""
    wanted_nodes: tuple[str, ...] = ()
    unwanted_nodes: tuple[str, ...] = ()
    constraint: str = ""
    dependency: str = ""
    priority: int = 0
    """The job's priority, which is 0 while the job is held."""
    nice: int = 0
    reason: str = ""
    comment: str = ""
    admin_comment: str = ""
    restarts: int = 0
    can_requeue: bool = False
    is_batch: bool = False
    submitted_s: float = 0.0
    """The time when the job was submitted or requeued. It distinguishes the job from another one with the same
    number."""
    begins_s: float | None = None
    """The earliest start that the user has requested."""
    preempted_s: float | None = None
    """The time at which Slurm told the job to leave its nodes to another job, or None."""
    start_s: float | None = None
    end_s: float | None = None
    """The time at which Slurm will end the job, or None if the time is unlimited or unknown."""

    @property
    def node(self) -> str | None:
        """Return the node of a job that uses one node, such as an agent, or None while it has none."""
        return self.nodes[0] if self.nodes else None

    @property
    def phase(self) -> JobPhase:
        """Return the job's phase.

        A job in an unknown state, which a newer Slurm might have, counts as running on its nodes.
        """
        if self.states & _ENDING:
            return JobPhase.ENDING
        waits = self.states & WAITING and "RUNNING" not in self.states
        return JobPhase.PENDING if waits else JobPhase.RUNNING  # a job that is CONFIGURING already has its nodes

    @property
    def is_held(self) -> bool:
        """Return True if the job waits, and must be released before it can start."""
        return self.is_pending and self.priority == 0

    @property
    def is_pending(self) -> bool:
        """Return True if the job waits, held or not, and has no processes left on a node from an earlier start."""
        return self.phase is JobPhase.PENDING

    @property
    def is_running(self) -> bool:
        """Return True if the job computes now."""
        return "RUNNING" in self.states and not self.is_completing

    @property
    def is_completing(self) -> bool:
        """Return True if the job's processes are being ended."""
        return "COMPLETING" in self.states

    @property
    def is_requeuable(self) -> bool:
        """Return True for a batch job whose owner has not forbidden a requeue."""
        return self.can_requeue and self.is_batch

    @property
    def has_ended(self) -> bool:
        """Return True if the job is over."""
        return bool(self.states & ENDED)


def is_held_for_us(job: SlurmJob) -> bool:
    """Return True if a job is held for Gleaner, and not by its owner or an administrator.

    After a requeue, any of our marks is enough, because such a job held itself to wait for its turn. Slurm shows
    `JobHeldUser` both for our holds and for the owner's. An administrator's hold has a different reason.
    """
    is_marked = job.admin_comment.startswith(OURS)
    is_released = job.admin_comment.startswith(RELEASED) and job.restarts == 0
    return job.is_held and is_marked and not is_released and job.reason != _BY_AN_ADMIN


def class_of(comment: str) -> str | None:
    """Return the class that a job's comment declares, or None if the comment names an unknown class or two classes.

    >>> class_of("mine gleaner:preemptible"), class_of(""), class_of("gleaner:mortal")
    ('preemptible', 'non-preemptible', None)
    """
    words = comment.replace(",", " ").replace(";", " ").split()
    declared = {word.removeprefix(_WORD) for word in words if word.startswith(_WORD)}
    if not declared:
        return DEFAULT_CLASS
    return declared.pop() if len(declared) == 1 and declared <= set(CLASSES) else None


def number_of(job: str) -> int:
    """Return the number in a job's id, by which jobs are sorted, or 0 if it has none.

    >>> number_of("4711_3"), number_of("4711+0"), number_of("²")
    (4711, 4711, 0)
    """
    digits = job.partition("_")[0].partition("+")[0]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _LONGEST_ID else 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Nodes by name, and jobs. `read_s` is the time of the snapshot in seconds since the epoch, which is not later than
    the query.

    `gaps` is a line about the nodes and jobs that are left out because their records are unreadable. If it is not
    empty, a node or a job that is missing here might still exist.
    """

    read_s: float
    nodes: Mapping[str, SlurmNode] = field(default_factory=dict[str, SlurmNode])
    jobs: tuple[SlurmJob, ...] = ()
    gaps: str = ""
    closed: Mapping[str, str] = field(default_factory=dict[str, str])
    """The state of each partition that is not up, which is `down`, `drain` or `inact`."""
