"""What agents and control say to each other.

The two need not be of one version: a receiver passes over fields that it does not know, and what was added later has a
default. Whatever an older receiver would misunderstand makes a new `MAJOR`: each message says its own, and one of a
newer major is refused in one line. Times are seconds
since the epoch, durations are seconds, memory is MiB. Every report names its attempt: control refuses the
report of an attempt that is no longer the current one with status 409, and changes nothing.
"""

from enum import StrEnum
from typing import Annotated, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

LONGEST_TEXT = 2000
LONGEST_LOG_LINE = 65_536
_LARGEST = 2**53 - 1
"""The largest whole number that every JSON reader and every database column of ours holds."""


def _clean(text: object, longest: int) -> object:
    if not isinstance(text, str):
        return text
    # PostgreSQL takes no NUL, UTF-8 no lone surrogate; a workload may print either, and that must not stop an agent.
    return text[:longest].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


Text = Annotated[str, BeforeValidator(lambda text: _clean(text, LONGEST_TEXT))]
"""Words for a person. What is too long is cut, and what no database stores is replaced: never a reason to refuse."""
LogLine = Annotated[str, BeforeValidator(lambda text: _clean(text, LONGEST_LOG_LINE))]
"""One line that a job wrote, cleaned in the same way."""
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==|[A-Za-z0-9+/]=))?$"
OpenLine = Annotated[str, Field(pattern=_BASE64, max_length=4 * -(-LONGEST_LOG_LINE // 3))]
"""The beginning of a line, byte for byte, as base64: it may end within a character."""
NodeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""A SHA-256 digest as `sha256:` and 64 hexadecimal digits."""


def _a_number(value: object) -> object:
    if isinstance(value, bool | str | bytes):
        raise PydanticCustomError("number", "input should be a number")
    return value


NUMBER = BeforeValidator(_a_number)
"""As JSON has it: true, false and text are no numbers, 2.0 is a whole one."""
JobNumber = Annotated[int, Field(ge=1, le=_LARGEST), NUMBER]
AttemptNumber = Annotated[int, Field(ge=1, le=2**31 - 1), NUMBER]
Count = Annotated[int, Field(ge=0, le=_LARGEST), NUMBER]
Cores = Annotated[int, Field(ge=0, le=1_000_000), NUMBER]
Mebibytes = Annotated[int, Field(ge=0, le=2**31 - 1), NUMBER]
Seconds = Annotated[float, NUMBER]
Duration = Annotated[float, Field(ge=0), NUMBER]
Weight = Annotated[float, Field(ge=0), NUMBER]
Flag = Annotated[bool, Field(strict=True)]


MAJOR = 1
"""The version of all messages together; a message that does not say one is of the first."""


class Message(BaseModel):
    """A value on the wire: immutable, all numbers finite. Fields that the receiver does not know are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _readable(version: object) -> object:
    if isinstance(version, int) and version > MAJOR:
        raise PydanticCustomError(
            "newer_version",
            "this message is of version {found}, and here messages up to version {known} are read: upgrade this side",
            {"found": version, "known": MAJOR},
        )
    return version


class Letter(Message):
    """A whole message. The version comes first: of what is newer, nothing else is looked at."""

    version: Annotated[int, Field(ge=1, le=MAJOR), NUMBER, BeforeValidator(_readable)] = MAJOR

    @model_validator(mode="before")
    @classmethod
    def _version_first(cls, told: object) -> object:
        whole = told  # `isinstance` would narrow what is given back to a dict of unknown things
        if isinstance(told, dict):
            _readable(cast("dict[str, object]", told).get("version"))
        return whole


class NodeFacts(Message):
    """What a node is, as far as it decides which jobs may run or be restored there.

    A generation with memory in it fits a node of the same architecture and runtime family, with at least the
    processor features of the node that saved it and no older CRIU.
    """

    node: NodeName
    cpus: Annotated[int, Field(ge=1, le=1_000_000), NUMBER]
    memory_mib: Annotated[int, Field(ge=1, le=2**31 - 1), NUMBER]
    runtime: Text
    """The container runtime with its version, for example `docker 26.1.5`. The first word is its family: what one
    family has saved, no other restores."""
    criu: Text
    """CRIU's version, for example `4.1.1`; empty where there is none."""
    kernel: Text
    architecture: Text
    cpu_features: Annotated[tuple[Text, ...], Field(max_length=4096)] = ()
    """The kernel's names of the processor's features, sorted."""


class Registration(Letter):
    """An agent's first words."""

    facts: NodeFacts
    end_s: Seconds
    """When the agent will be gone: the shared end, or earlier."""
    slurm_job: Text | None = None


class NodeRates(Message):
    """What saves and restores have cost on a node: averages in which newer ones weigh more.

    A save is expected to take `save_fixed_s` plus the memory in use over `save_mib_s`. The rates are those of the
    whole node: of several saves at once, the sum of their memory counts.

    >>> rates = NodeRates(saves=9.5, save_fixed_s=0.5, save_mib_s=400)
    >>> rates.save_fixed_s + 1000 / rates.save_mib_s
    3.0
    """

    saves: Weight = 0.0
    """How many measured saves stand behind the figures, older ones counted for less; 0: there are no figures."""
    save_fixed_s: Duration | None = None
    save_mib_s: Annotated[float, Field(gt=0), NUMBER] | None = None
    restores: Weight = 0.0
    """The same for restores; there the size is the generation's."""
    restore_fixed_s: Duration | None = None
    restore_mib_s: Annotated[float, Field(gt=0), NUMBER] | None = None
    saves_elsewhere: Count = 0
    """How many jobs the agents of all other nodes saved to the storage around the last boundary."""
    errors: Annotated[tuple[Weight, ...], Field(max_length=100)] = ()
    """How many times as long as expected all saves of its latest agents' ends took together, the newest last."""
    late: Flag = False
    """Whether a save there came too late for its agent's end, and none has been in time since."""
    borrowed: Flag = False
    """Whether the figures of saves are those of other nodes of the same type: this one has none of its own."""


class Welcome(Letter):
    """Control's answer to a registration."""

    heartbeat_s: float
    lease_s: float
    """How long the agent may be silent before its jobs are given to others."""
    rates: NodeRates | None = None
    """What was measured on this node before; None: nothing."""
    node_mtbf_s: Annotated[float, Field(gt=0), NUMBER] | None = None
    """Mean time between losses of one agent without notice, as observed over the whole fleet."""


class Way(StrEnum):
    """How a job's state was saved or brought back."""

    DOCKER = "docker"
    """Docker's own checkpoint."""
    SHIM = "shim"
    """Docker with our OCI runtime, which lets CRIU write where we say."""
    CRIU = "criu"
    """runc and CRIU through the node helper."""
    SELF = "self"
    """The workload itself, on a signal; the generation is its folder."""


class SelfSave(Message):
    """A workload that saves itself: on the signal it writes its state into its folder and exits with the code.

    HTCondor's convention (`+SuccessCheckpointExitCode`), with its usual code 85. The same command is started anew
    in that folder to go on.

    >>> SelfSave().model_dump()
    {'signal': 'SIGTERM', 'exit_code': 85}
    """

    signal: Literal["SIGTERM", "SIGUSR1"] = "SIGTERM"
    exit_code: Annotated[int, Field(ge=1, le=255), NUMBER] = 85


class Stream(StrEnum):
    """Where a process writes its output to."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Generation(Message):
    """A published checkpoint generation, by name. `digest` is that of its manifest."""

    attempt: AttemptNumber
    number: AttemptNumber
    digest: Digest
    size_bytes: Count
    log_lines: Count
    """How many lines the job had written, over all its slices, when its memory was saved."""
    open_lines: dict[Stream, OpenLine] = {}
    """What it had written then of a line that was not at its end: not among those lines, the next slice ends it."""
    chain: Annotated[str, Field(pattern=r"^[0-9]{1,10}/[0-9]{1,10}$")] | None = None
    """With which of the job's generations it may share files: those with the same. It names the first of them, as
    attempt/number, which is itself if it stands alone. None: it is not known."""
    has_memory: Flag = True
    """False: only the job's folder is in it, written by a workload that saves itself. It fits every node."""


class Ask(Letter):
    """A request for work: what is free on the node, and for how long."""

    cpus: Cores
    memory_mib: Mebibytes
    most: Annotated[int, Field(ge=1, le=1024), NUMBER] = 64
    """At most this many jobs."""


class Assignment(Message):
    """One job, claimed by the asking agent under a new attempt."""

    job: int
    attempt: int
    group: str
    name: str
    image: str
    command: tuple[str, ...]
    environment: dict[str, str] = {}
    cpus: int
    memory_mib: int
    generation: Generation | None = None
    """Where to go on from; None means: from the beginning."""
    saves_itself: SelfSave | None = None
    """None: the agent saves its memory."""


class Assignments(Letter):
    """The answer to an `Ask`; empty when nothing fits."""

    jobs: tuple[Assignment, ...] = ()


class AttemptRef(Message):
    """One attempt of one job."""

    job: JobNumber
    attempt: AttemptNumber


class Beat(Letter):
    """A heartbeat: which attempts the agent still works on."""

    attempts: Annotated[tuple[AttemptRef, ...], Field(max_length=4096)] = ()


class Order(StrEnum):
    """What an agent is to do with one attempt."""

    GO_ON = "go-on"
    VACATE = "vacate"
    """Save the job and report it saved."""
    DROP = "drop"
    """Kill it and report nothing: it was cancelled, or another attempt is the current one."""


class Orders(Letter):
    """The answer to a heartbeat: one order for each attempt named in it, in the same order."""

    orders: tuple[Order, ...] = ()
    vacate: bool = False
    """Save everything and end."""


class RestoreMeasured(Message):
    """What one restore cost.

    >>> RestoreMeasured(stored_bytes=300_000_000, took_s=0.9, way=Way.SHIM).at_once
    1
    """

    stored_bytes: Count
    """The generation's `size_bytes`."""
    took_s: Duration
    """From the order to restore until the process ran."""
    at_once: Annotated[int, Field(ge=1, le=1024), NUMBER] = 1
    """How many restores went on at this node meanwhile, this one included."""
    way: Way


class Measured(Message):
    """What one save cost, so that the next is estimated better.

    >>> Measured(memory_bytes=2**30, stored_bytes=2**29, took_s=1.4, expected_s=1.6, at_once=4, way=Way.SHIM).failed
    0
    """

    memory_bytes: Count
    """The job's memory in use when the save began (of one that saves itself: its folder)."""
    stored_bytes: Count
    """What was written to the storage: compressed, and without what the generation before holds."""
    took_s: Duration
    """From the order to save until the generation was published."""
    expected_s: Duration | None = None
    """What the agent had estimated."""
    at_once: Annotated[int, Field(ge=1, le=1024), NUMBER] = 1
    """How many saves went on at this node meanwhile, this one included."""
    way: Way
    failed: Count = 0
    """How many tries of this attempt to save failed since its last report of a generation."""


class Slice(Message):
    """How one attempt spent its time. Instants are those of the agent's clock."""

    started_s: Seconds
    """When the agent began to prepare the job."""
    restore_s: Duration = 0.0
    """From then until the process ran."""
    compute_s: Duration = 0.0
    save_s: Duration = 0.0
    """From the order to save until the generation was published; all saves of the attempt together."""
    restored: RestoreMeasured | None = None
    """What its restore cost; None: it began without one. Each report may say it again, control counts it once."""


class Checkpointed(Letter):
    """The attempt published this whole generation and goes on computing: a periodic save.

    Reported at `/jobs/J/attempts/A/checkpointed`. Within an attempt the generations' numbers go up. Saying it again
    is no error. `slice` is how the attempt has spent its time so far.

    >>> Checkpointed(
    ...     generation=Generation(attempt=3, number=2, digest="sha256:" + "0" * 64, size_bytes=5, log_lines=0),
    ...     slice=Slice(started_s=1_790_000_000, compute_s=600, save_s=1.4),
    ...     measured=Measured(memory_bytes=2**30, stored_bytes=5, took_s=1.4, way=Way.SHIM),
    ... ).generation.number
    2
    """

    generation: Generation
    slice: Slice
    measured: Measured | None = None


class Saved(Letter):
    """The attempt ended with this whole, published generation."""

    generation: Generation
    slice: Slice
    measured: Measured | None = None


class Output(Message):
    """A job's published folder, by the digest of its manifest."""

    digest: Digest
    size_bytes: Count


class Completed(Letter):
    """The workload exited by itself."""

    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), NUMBER]
    output: Output | None = None
    log_lines: Count = 0
    reason: Text = ""
    """One line for a person where the exit code alone does not tell, for example why the command could not start."""
    slice: Slice


class Why(StrEnum):
    """Why an agent gives a job back without having saved it."""

    UNSTARTED = "unstarted"
    """There was no time left, or the agent is ending: no fault of the job."""
    IMAGE_MISSING = "image missing"
    """The image is not on the node and cannot be pulled. The job is held."""
    IMAGE_REFUSED = "image refused"
    """The site does not allow the image, or it cannot be saved with all that it writes. The job is held."""
    GENERATION_BROKEN = "generation broken"
    """The generation that the assignment named is not whole."""
    CANNOT_RESTORE = "cannot restore"
    """That generation is whole, but its process did not come back on this node; on another it may."""
    INCOMPATIBLE = "incompatible"
    """This node lacks what the generation needs, found before anything was touched. `detail` says what. The
    generation counts as whole as before, and the job is not offered to this node again."""
    SAVE_FAILED = "save failed"
    """It ran, and could not be saved: every try failed."""
    TOO_LATE = "too late"
    """It ran, and its save (or storing its result) was not done at the agent's end. That says nothing against the job.
    Should it still be done, the agent reports so: until another agent has claimed the job, that counts."""
    NODE_FAULT = "node fault"
    """The runtime of this node does not work, or somebody killed the job."""
    STORAGE_FAULT = "storage fault"
    """The storage refused or failed, before the job ran or at its end: no sign against the job."""


class GivenBack(Letter):
    """The attempt ended without a new generation and without an exit of the workload."""

    why: Why
    detail: Text = ""
    slice: Slice | None = None
    measured: Measured | None = None
    """Of a save that came too late: `took_s` is how long it had taken by then, so the least that it takes."""


class LogLines(Letter):
    """Lines of a job's output. `first` counts from 0 over the job's whole life, all slices together."""

    first: Annotated[int, Field(ge=0, le=2**52), NUMBER]
    lines: tuple[LogLine, ...] = Field(max_length=10_000)


class Farewell(Letter):
    """An agent's last words. Its remaining attempts, if any, count as given back unstarted."""

    ended_s: Seconds
    """When the agent was done, by its own clock."""
    reason: Text = ""
    fault: Flag = False
    """Whether the agent ended because its node does not work (counts against the node)."""
    saving_s: Duration | None = None
    """How long all saves of its end took together; None: there were none whose cost had been known before."""
    saving_expected_s: Duration | None = None
    """What the agent had expected of that, without what it had added for safety."""
    was_late: Flag = False
    """Whether a save was not done at the end: `saving_s` is then the least that it takes."""
