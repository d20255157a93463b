"""The messages between agents and control.

Both sides have the same version. Each message names its version, and a message of another version is refused with a
one-line error. Times are in seconds since the epoch, durations in seconds, memory in MiB. Every report names its
attempt. If the attempt is no longer the current one, control refuses the report with status 409 and changes nothing.
"""

from enum import StrEnum
from typing import Annotated, NamedTuple, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SecretStr, model_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.job_spec import MAX_ID, NUMBER, Digest, Flag, InputName, JobSpec, UrlInputSpec, few_fields
from gleaner.agent.system import keep_patterns
from gleaner.agent.system.untrusted import storable

LONGEST_TEXT = 2000
MOST_IMAGES = 1000
LONGEST_LOG_LINE = 65_536


def _clean(text: object, longest: int) -> object:
    if not isinstance(text, str):
        return text
    return storable(text[:longest])  # a job can print anything, and its text must never stop an agent


Text = Annotated[str, BeforeValidator(lambda text: _clean(text, LONGEST_TEXT))]
"""Text for a person. It is never refused, since long text is cut, and characters that databases cannot store are
replaced."""
LogLine = Annotated[str, BeforeValidator(lambda text: _clean(text, LONGEST_LOG_LINE))]
"""One line that a job wrote, cleaned in the same way."""
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==|[A-Za-z0-9+/]=))?$"
OpenLine = Annotated[str, Field(pattern=_BASE64, max_length=4 * -(-LONGEST_LOG_LINE // 3))]
"""The beginning of a line, in base64 because it might end in the middle of a character."""
NodeName = InputName


JobNumber = Annotated[int, Field(ge=1, le=MAX_ID), NUMBER]
AttemptNumber = Annotated[int, Field(ge=1, le=2**31 - 1), NUMBER]
Count = Annotated[int, Field(ge=0, le=MAX_ID), NUMBER]
Cores = Annotated[int, Field(ge=0, le=1_000_000), NUMBER]
Mebibytes = Annotated[int, Field(ge=0, le=2**31 - 1), NUMBER]
Seconds = Annotated[float, Field(ge=-MAX_ID, le=MAX_ID), NUMBER]
Duration = Annotated[float, Field(ge=0, le=MAX_ID), NUMBER]
"""A time in seconds, with a limit that keeps the sum of many such values finite."""
Weight = Annotated[float, Field(ge=0, le=MAX_ID), NUMBER]


VERSION = 1
"""The version of all messages together.

It stays 1 until the tag of 0.2.0, because agents and control are always installed together. From the tag on, the first
change of a message after each release raises it by one, and `_same` also accepts the previous version.
"""


class Message(BaseModel):
    """An immutable value on the wire, whose numbers are finite. Fields that the receiver does not know are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


def _same(version: object) -> object:
    if version != VERSION:
        raise PydanticCustomError(
            "other_version",
            "this message is of version {found}, and here version {known} is read: install the same Gleaner everywhere",
            {"found": str(version), "known": VERSION},
        )
    return version


class VersionedMessage(Message):
    """A whole message. Its version is checked before anything else is read."""

    version: Annotated[int, Field(ge=VERSION, le=VERSION), NUMBER, BeforeValidator(_same)] = VERSION

    @model_validator(mode="before")
    @classmethod
    def _version_first(cls, fields: object) -> object:
        same = fields  # `isinstance` would narrow the returned value to a dict of unknown types
        if isinstance(fields, dict):
            _same(cast("dict[str, object]", fields).get("version", VERSION))
        return same


class NodeFacts(Message):
    """The facts of a node that determine which jobs can run or be restored there.

    A checkpoint with memory in it fits a node of the same architecture and runtime family, if the node has at least the
    processor features of the node that saved it and no older CRIU.
    """

    node: NodeName
    cpus: Annotated[int, Field(ge=1, le=1_000_000), NUMBER]
    memory_mib: Annotated[int, Field(ge=1, le=2**31 - 1), NUMBER]
    runtime: Text
    """The container runtime with its version, for example `docker 26.1.5`. The name is the runtime's family, and a
    checkpoint can be restored only within that family."""
    criu: Text
    """CRIU's version, for example `4.1.1`; empty without CRIU."""
    kernel: Text
    architecture: Text
    cpu_features: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=4096)] = ()
    """The kernel's names of the processor's features, sorted."""
    mounts: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=256)] = ()
    """The folders that jobs can mount here. A job that mounts any other folder is not offered to this node."""
    fetches: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=32)] = ()
    """The schemes of the URLs from which this agent can fetch inputs. A job that still needs an input from a URL of
    another scheme is not offered to this agent."""
    disk_mib: Mebibytes | None = None
    """The most that a job is allowed to write here, even if its own limit is higher."""


class NodeImages(Message):
    """The container images that jobs are allowed to run on a node, except those that groups have pushed."""

    names: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=MOST_IMAGES)] = ()
    """The images that are on the node."""
    brings: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=256)] = ("*",)
    """Patterns of the names of images that the node can pull or load when a job needs one
    (`system.image_names.matches`)."""


class Registration(VersionedMessage):
    """An agent's first message."""

    facts: NodeFacts
    images: NodeImages = NodeImages()
    end_s: Seconds
    """The instant of the agent's end, which is the boundary of its round or earlier."""
    slurm_job: Text | None = None


class CostSample(NamedTuple):
    """One measured save or restore, with the total size of all saves or restores that ran at the same time, and the
    time that each took."""

    mib: Annotated[float, Field(ge=1, le=MAX_ID), NUMBER]
    took_s: Annotated[float, Field(ge=0, le=MAX_ID), NUMBER]


_Samples = Annotated[tuple[CostSample, ...], Field(fail_fast=True, max_length=100)]


class NodeRates(Message):
    """The latest measurements of a node, the newest last. `timing.save_cost` fits a line to them.

    >>> NodeRates.model_validate_json('{"saves": [[400, 2.5]]}').saves
    (CostSample(mib=400.0, took_s=2.5),)
    """

    saves: _Samples = ()
    restores: _Samples = ()
    """The size of a restore is that of its checkpoint."""
    saves_elsewhere: Count = 0
    """The number of jobs that the agents of all other nodes saved to the storage around the last boundary."""
    errors: Annotated[tuple[Weight, ...], Field(fail_fast=True, max_length=100)] = ()
    """For the end of each of the latest agents, the time of all saves divided by the expected time, the newest last."""
    late: Flag = False
    """True if a save on that node came too late for its agent's end, and none has been in time since."""
    borrowed: Flag = False
    """True if `saves` are from another node of the same type, because this node has no measurements yet."""


class Welcome(VersionedMessage):
    """Control's answer to a registration."""

    heartbeat_s: float
    lease_s: float
    """The time without a heartbeat after which control gives the agent's jobs to other agents."""
    rates: NodeRates = NodeRates()
    """The measurements of earlier agents on this node."""
    node_mtbf_s: Annotated[float, Field(gt=0), NUMBER] | None = None
    """The mean time between losses of one agent without notice, as observed over all agents."""


class Way(StrEnum):
    """The way in which a job's state is saved and restored."""

    SHIM = "shim"
    """Docker with our OCI runtime, which lets CRIU write to a place of our choice."""
    CRIU = "criu"
    """runc and CRIU through the node helper."""
    SELF = "self"
    """The workload saves itself on a signal, and the checkpoint is its folder."""


class Stream(StrEnum):
    """One of the two streams of a process's output."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Checkpoint(Message):
    """A published checkpoint, by its attempt and its number. `digest` is that of its manifest."""

    attempt: AttemptNumber
    number: AttemptNumber
    digest: Digest
    size_bytes: Count
    log_lines: Count
    """The number of lines that the job had written, over all its slices, at the time of the save."""
    _few_fields = model_validator(mode="before")(few_fields)
    open_lines: dict[Stream, OpenLine] = {}
    """The beginnings of lines that were still open at the save. They are not counted, and the next slice completes
    them."""
    chain: Annotated[str, Field(pattern=r"^[0-9]{1,10}/[0-9]{1,10}$")] | None = None
    """The name of the chain. Checkpoints of a job in the same chain can share files. A chain is named after its first
    checkpoint (attempt/number), which is this checkpoint if it shares no files. None if the chain is not known."""
    silent_s: Duration = 0.0
    """The time, including earlier slices, for which the job had computed without writing anything when it was saved."""
    has_memory: Flag = True
    """False if it contains only the job's folder, written by a workload that saves itself. Such a checkpoint fits every
    node."""


class ClaimRequest(VersionedMessage):
    """A request for work, with the cores and the memory that are free on the node."""

    cpus: Cores
    memory_mib: Mebibytes
    most: Annotated[int, Field(ge=1, le=1024), NUMBER] = 64
    """The largest number of jobs to assign."""
    left_s: Duration | None = None
    """The time for which a job can compute here before it is saved; None if it is unknown."""


class StoredInput(Message):
    """A file or folder that the job reads and does not change. It is in the storage as a tar archive."""

    name: InputName
    """Its name in `/inputs`."""
    content: Digest
    """The SHA-256 of the tar archive."""
    digest: Digest
    """The digest of the manifest in the storage."""
    size_bytes: Count
    into_job: Flag = False
    """True if it is copied into the job's folder before the first start, and belongs to the job from then on."""


class CredentialGiven(Message):
    """The secret of a job's group for the URL of an input or a target."""

    url: Text
    """The URL below which the secret can be used."""
    value: Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value, when_used="json")]
    """The secret, which is shown only in the JSON on the wire."""
    fault: Text = ""
    """Why control cannot read the secret, in which case the value is empty."""


class UrlInput(UrlInputSpec):
    """A file that the job reads and that is not in the storage yet. The agent fetches and stores it.

    It is one of the inputs, so that an agent that cannot fetch it does not start the job without it.
    """

    credential: CredentialGiven | None = None
    """The group's secret for the URL."""


class FetchRules(Message):
    """The admin's rules for fetching inputs from URLs."""

    allowed: tuple[str, ...]
    """The allowed URLs, in the form that `common.allowed_urls` reads."""
    largest_bytes: Count
    total_s: Duration
    silent_s: Duration
    """The time without data after which a server counts as hanging."""


class InputFetched(VersionedMessage):
    """The message that an attempt has fetched one of its inputs, sent to `/jobs/J/attempts/A/input` before the job
    starts."""

    name: InputName
    content: Digest
    """The SHA-256 of its tar archive, as in `StoredInput`."""
    size_bytes: Count
    digest: Digest | None = None
    """The digest of its manifest in the storage; None if it is not stored yet."""


class InputFixed(VersionedMessage):
    """Control's answer with the input that the job reads from now on; None if control does not find it in the
    storage."""

    input: StoredInput | None = None


class Assignment(Message):
    """One job that the agent has claimed, with a new attempt."""

    job: int
    attempt: int
    group: str
    submission: int = 0
    """The number of the submission. All jobs of a submission read the same inputs."""
    spec: JobSpec
    """The job's specification, resolved."""
    memory_mib: int
    """The job's current memory limit, within the range that its specification allows."""
    image_id: Digest | None = None
    """The id of the container image if the group has pushed it; None if the node has the image or pulls it."""
    image_digest: Digest | None = None
    """The digest of the pushed image's manifest in the storage."""
    checkpoint: Checkpoint | None = None
    """The checkpoint from which the job continues; None if it starts from the beginning."""
    compute_left_s: Duration | None = None
    """The rest of the job's compute limit after its earlier slices; None without a limit."""
    inputs: tuple[Annotated[StoredInput | UrlInput, Field(union_mode="left_to_right")], ...] = ()
    fetch_rules: FetchRules | None = None
    """The rules for its `UrlInput`s; None if it has none."""

    @property
    def image(self) -> str:
        """The name of the container image, or its id if it was pushed."""
        return self.image_id or self.spec.image

    @property
    def stored_inputs(self) -> tuple[StoredInput, ...]:
        """The inputs that are in the storage. When the job starts, these are all of its inputs."""
        return tuple(one for one in self.inputs if isinstance(one, StoredInput))


class Assignments(VersionedMessage):
    """The answer to a `ClaimRequest`; empty when nothing fits."""

    jobs: tuple[Assignment, ...] = ()


class AttemptRef(Message):
    """One attempt of one job."""

    job: JobNumber
    attempt: AttemptNumber
    unsaved: Text = ""
    """In a heartbeat, why the latest save failed: a `ReturnReason` and its detail. Empty if it did not fail."""


class Heartbeat(VersionedMessage):
    """A heartbeat with the attempts that the agent is still working on."""

    attempts: Annotated[tuple[AttemptRef, ...], Field(fail_fast=True, max_length=4096)] = ()
    clock_ahead_s: Seconds | None = None
    """A lower bound on the time by which the agent's clock is ahead of control's, negative if behind; None if not
    measured."""


class Order(StrEnum):
    """An order to an agent, about one attempt."""

    GO_ON = "go-on"
    VACATE = "vacate"
    """Save the job and report it as saved."""
    DROP = "drop"
    """Kill the job and report nothing, because it was cancelled or another attempt is the current one."""


class Orders(VersionedMessage):
    """The answer to a heartbeat, with one order for each attempt that the heartbeat names, in the same sequence."""

    orders: tuple[Order, ...] = ()
    vacate: bool = False
    """True if the agent must save all jobs and end."""
    now_s: Seconds | None = None
    """The time by control's clock at some instant between the heartbeat and this answer."""
    deliveries: bool = False
    """True if a result is waiting for delivery."""


class Delivery(Message):
    """A result to copy to its target. Every agent that delivers it copies the same bytes, so it can be delivered more
    than once."""

    job: JobNumber
    attempt: AttemptNumber  # the attempt that has the result
    number: AttemptNumber  # the number of this try; reports of other tries do not count
    digest: Digest
    to: Text
    keep: tuple[str, ...] = ()  # as in the assignment
    allowed: tuple[str, ...]
    total_s: Duration
    silent_s: Duration
    credential: CredentialGiven | None = None
    """The group's secret for the target."""


class DeliveryOffer(VersionedMessage):
    """Control's answer to an agent that asks for a result to deliver; None if no result is waiting."""

    delivery: Delivery | None = None


class DeliveryReport(VersionedMessage):
    """The outcome of one try to deliver a result: the files that were delivered, or the reason for the failure."""

    job: JobNumber
    number: AttemptNumber
    files: Count = 0
    size_bytes: Count = 0
    failed: Text = ""
    may_pass: Flag = True


class RestoreMeasurement(Message):
    """The cost of one restore.

    >>> RestoreMeasurement(stored_bytes=300_000_000, took_s=0.9, way=Way.SHIM).at_once
    1
    """

    stored_bytes: Count
    """The checkpoint's `size_bytes`."""
    took_s: Duration
    """The time from the beginning of the restore, when inputs and image were ready, until the process ran."""
    at_once: Annotated[int, Field(ge=1, le=1024), NUMBER] = 1
    """The number of restores on this node in that time, including this one."""
    way: Way


class SaveMeasurement(Message):
    """The cost of one save, which improves the estimate of the next.

    >>> SaveMeasurement(memory_bytes=2**30, stored_bytes=2**29, took_s=1.4, at_once=4, way=Way.SHIM).failed
    0
    """

    memory_bytes: Count
    """The job's memory in use when the save began, or the size of its folder if it saves itself."""
    stored_bytes: Count
    """The compressed bytes written to the storage, without those that the previous checkpoint already contains."""
    took_s: Duration
    """The time from the order to save until the checkpoint was published."""
    expected_s: Duration | None = None
    """The agent's estimate of that time."""
    at_once: Annotated[int, Field(ge=1, le=1024), NUMBER] = 1
    """The number of saves on this node in that time, including this one."""
    way: Way
    failed: Count = 0
    """The number of saves of this attempt that failed since its last report of a checkpoint."""


class Slice(Message):
    """The times of one attempt. Instants are times of the agent's clock."""

    started_s: Seconds
    """The instant at which the agent began to prepare the job."""
    start_s: Duration = 0.0
    """The time from `started_s` until the process ran or its restore began, in which the inputs and the image are
    fetched."""
    restore_s: Duration = 0.0
    """For a job with a checkpoint, the time from the beginning of its restore until the process ran."""
    memory_s: Duration = 0.0
    """The time from the restore until all memory had arrived, if it arrived while the process ran; 0 until then."""
    compute_s: Duration = 0.0
    save_s: Duration = 0.0
    """The time from the order to save until the checkpoint was published, summed over all saves of the attempt."""
    restored: RestoreMeasurement | None = None
    """The cost of its restore; None if the attempt began without a restore. Reports can repeat the cost, which control
    counts only once."""


class Checkpointed(VersionedMessage):
    """The attempt published this complete checkpoint in a periodic save, and continues to compute.

    The message is sent to `/jobs/J/attempts/A/checkpointed`. Within an attempt the checkpoints' numbers increase. A
    repeated report is not an error. `slice` contains the times of the attempt so far.

    >>> Checkpointed(
    ...     checkpoint=Checkpoint(attempt=3, number=2, digest="sha256:" + "0" * 64, size_bytes=5, log_lines=0),
    ...     slice=Slice(started_s=1_790_000_000, compute_s=600, save_s=1.4),
    ...     measured=SaveMeasurement(memory_bytes=2**30, stored_bytes=5, took_s=1.4, way=Way.SHIM),
    ... ).checkpoint.number
    2
    """

    checkpoint: Checkpoint
    slice: Slice
    measured: SaveMeasurement | None = None


class Saved(VersionedMessage):
    """The attempt ended with this complete, published checkpoint."""

    checkpoint: Checkpoint
    slice: Slice
    measured: SaveMeasurement | None = None


class Output(Message):
    """A job's published folder, identified by the digest of its manifest."""

    digest: Digest
    size_bytes: Count
    unmatched: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=keep_patterns.MOST)] = ()
    """The patterns of `keep` that matched no file."""


class Completed(VersionedMessage):
    """The workload exited on its own."""

    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), NUMBER]
    output: Output | None = None
    log_lines: Count = 0
    reason: Text = ""
    """One line for a person where the exit code alone is not enough, for example why the command could not start."""
    slice: Slice
    may_retry: Flag = True
    """False if another try would end in the same way, so that retries do not help. `reason` explains why."""
    out_of_memory: Flag = False
    """True if the job has reached its memory limit. `reason` names the limit."""
    at_limit: Flag = False
    """True if the agent has ended the job at another limit. `reason` names the limit, which determines the exit
    code."""


class ReturnReason(StrEnum):
    """Why an agent returns a job that it has not saved."""

    UNSTARTED = "unstarted"
    """Too little time was left, or the agent is ending. The job is not to blame."""
    IMAGE_MISSING = "image missing"
    """The image is not on the node and cannot be pulled. The job is held if another node also reports this."""
    IMAGE_REFUSED = "image refused"
    """The site does not allow the image, or files that a job writes in it cannot be saved. The job is held."""
    INPUT_MISSING = "input missing"
    """An input is incomplete in the storage, or cannot be fetched. The job is held if another node also reports
    this."""
    INPUT_UNREACHABLE = "input unreachable"
    """An input cannot be fetched at present, for example because its server does not answer. The job waits for a while
    and is tried again."""
    NODE_LACKS = "node lacks"
    """The node lacks something that the job needs at each start, such as room for its image or its inputs, or at each
    save, such as a newer CRIU. The job is not offered to this node for a while."""
    MOUNT_MISSING = "mount missing"
    """The node lacks a folder that the job mounts. `detail` begins with this folder and a colon. Jobs that mount the
    folder are offered to this node only after the node's next agent has found the folder."""
    CHECKPOINT_BROKEN = "checkpoint broken"
    """A file of the checkpoint is missing or damaged."""
    CANNOT_RESTORE = "cannot restore"
    """The checkpoint is intact, but the restore failed on this node. It might succeed on another node."""
    INCOMPATIBLE = "incompatible"
    """This node lacks something that the checkpoint needs, as `detail` explains. The checkpoint still counts as intact.
    The job is not offered to this node again."""
    SAVE_FAILED = "save failed"
    """The job ran, and every save failed. `detail` explains why the first one failed."""
    UNSAVABLE = "cannot be saved"
    """The job ran, and a save failed for a reason that applies on every node until the program changes. `detail`
    explains what to do. It begins with `head_room.NEEDS_MEMORY` if the job can be saved with more memory."""
    TOO_LATE = "too late"
    """The job ran, but its save or its result was not finished at the agent's end, for which the job is not to blame.
    `detail` explains why an earlier save failed, if one did. If the save is finished later, the agent reports it, and
    it counts until another agent has claimed the job."""
    NODE_FAULT = "node fault"
    """The runtime of this node does not work, or the job was killed from outside."""
    STORAGE_FAULT = "storage fault"
    """The storage refused a request or failed, before the job ran or at its end. The job is not to blame."""


class Returned(VersionedMessage):
    """The attempt ended with neither a new checkpoint nor an exit of the workload."""

    why: ReturnReason
    detail: Text = ""
    slice: Slice | None = None
    measured: SaveMeasurement | None = None
    """The cost of a save that came too late. `took_s` is the time that the save had taken so far, so a whole save takes
    longer."""


class LogLines(VersionedMessage):
    """Lines of a job's output. `first` is the number of the first line, counted from 0 over all slices."""

    first: Annotated[int, Field(ge=0, le=2**52), NUMBER]
    lines: Annotated[tuple[LogLine, ...], Field(fail_fast=True, max_length=10_000)]


class Deregistration(VersionedMessage):
    """An agent's last message. Its remaining attempts, if any, count as returned before they started."""

    ended_s: Seconds
    """The instant at which the agent had finished, by its own clock."""
    reason: Text = ""
    fault: Flag = False
    """True if the agent ended because its node does not work, which counts against the node."""
    saving_s: Duration | None = None
    """The time that all saves at its end took together; None if no save had a previously known cost."""
    saving_expected_s: Duration | None = None
    """The agent's estimate of that time, without the safety factor."""
    was_late: Flag = False
    """True if a save was not finished at the end, in which case `saving_s` is a lower bound."""
