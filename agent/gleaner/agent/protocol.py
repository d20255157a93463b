"""What agents and control say to each other.

Both sides import these messages, so neither can say what the other does not understand. Times are seconds
since the epoch, durations are seconds, memory is MiB. Every report names its attempt: control refuses the
report of an attempt that is no longer the current one with status 409, and changes nothing.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
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
Flag = Annotated[bool, Field(strict=True)]


class Message(BaseModel):
    """A value on the wire: immutable, without fields that the receiver does not know, and all numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class NodeFacts(Message):
    """What a node is, as far as it decides which jobs may run or be restored there."""

    node: NodeName
    cpus: Annotated[int, Field(ge=1, le=1_000_000), NUMBER]
    memory_mib: Annotated[int, Field(ge=1, le=2**31 - 1), NUMBER]
    runtime: Text
    """The container runtime with its version, for example `docker 26.1.5`."""
    criu: Text
    """CRIU's version, for example `4.1.1`; empty where there is none."""
    kernel: Text
    architecture: Text
    cpu_features: Annotated[tuple[Text, ...], Field(max_length=4096)] = ()
    """The kernel's names of the processor's features, sorted."""


class Registration(Message):
    """An agent's first words."""

    facts: NodeFacts
    end_s: Seconds
    """When the agent will be gone: the shared end, or earlier."""
    slurm_job: Text | None = None


class Welcome(Message):
    """Control's answer to a registration."""

    heartbeat_s: float
    lease_s: float
    """How long the agent may be silent before its jobs are given to others."""


class Generation(Message):
    """A published checkpoint generation, by name. `digest` is that of its manifest."""

    attempt: AttemptNumber
    number: AttemptNumber
    digest: Digest
    size_bytes: Count
    log_lines: Count
    """How many lines the job had written, over all its slices, when its memory was saved."""


class Ask(Message):
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


class Assignments(Message):
    """The answer to an `Ask`; empty when nothing fits."""

    jobs: tuple[Assignment, ...] = ()


class AttemptRef(Message):
    """One attempt of one job."""

    job: JobNumber
    attempt: AttemptNumber


class Beat(Message):
    """A heartbeat: which attempts the agent still works on."""

    attempts: Annotated[tuple[AttemptRef, ...], Field(max_length=4096)] = ()


class Order(StrEnum):
    """What an agent is to do with one attempt."""

    GO_ON = "go-on"
    VACATE = "vacate"
    """Save the job and report it saved."""
    DROP = "drop"
    """Kill it and report nothing: it was cancelled, or another attempt is the current one."""


class Orders(Message):
    """The answer to a heartbeat: one order for each attempt named in it, in the same order."""

    orders: tuple[Order, ...] = ()
    vacate: bool = False
    """Save everything and end."""


class Slice(Message):
    """How one attempt spent its time. Instants are those of the agent's clock."""

    started_s: Seconds
    """When the agent began to prepare the job."""
    restore_s: Duration = 0.0
    """From then until the process ran."""
    compute_s: Duration = 0.0
    save_s: Duration = 0.0
    """From the order to save until the generation was published."""


class Saved(Message):
    """The attempt ended with this whole, published generation."""

    generation: Generation
    slice: Slice


class Output(Message):
    """A job's published folder, by the digest of its manifest."""

    digest: Digest
    size_bytes: Count


class Completed(Message):
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
    GENERATION_BROKEN = "generation broken"
    """The generation that the assignment named is not whole."""
    CANNOT_RESTORE = "cannot restore"
    """That generation is whole, but its process did not come back on this node; on another it may."""
    SAVE_FAILED = "save failed"
    """It ran, but could not be saved before the agent's end."""
    NODE_FAULT = "node fault"
    """The runtime or the storage of this node does not work."""


class GivenBack(Message):
    """The attempt ended without a new generation and without an exit of the workload."""

    why: Why
    detail: Text = ""
    slice: Slice | None = None


class LogLines(Message):
    """Lines of a job's output. `first` counts from 0 over the job's whole life, all slices together."""

    first: Annotated[int, Field(ge=0, le=2**52), NUMBER]
    lines: tuple[LogLine, ...] = Field(max_length=10_000)


class Farewell(Message):
    """An agent's last words. Its remaining attempts, if any, count as given back unstarted."""

    ended_s: Seconds
    """When the agent was done, by its own clock."""
    reason: Text = ""
    fault: Flag = False
    """Whether the agent ended because its node does not work (counts against the node)."""
