"""The messages between agents and control.

Both are of one version: each message names its own, and one of another version is refused in one line. Times are
seconds since the epoch, durations are seconds, memory is MiB. Every report names its attempt: control refuses the
report of an attempt that is no longer the current one with status 409, and changes nothing.
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
    return storable(text[:longest])  # a job may print anything, and no text may stop an agent


Text = Annotated[str, BeforeValidator(lambda text: _clean(text, LONGEST_TEXT))]
"""Text for a person, never refused: long text is cut, and characters that no database stores are replaced."""
LogLine = Annotated[str, BeforeValidator(lambda text: _clean(text, LONGEST_LOG_LINE))]
"""One line that a job wrote, cleaned in the same way."""
_BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}(==|[A-Za-z0-9+/]=))?$"
OpenLine = Annotated[str, Field(pattern=_BASE64, max_length=4 * -(-LONGEST_LOG_LINE // 3))]
"""The beginning of a line as base64 of its bytes: it may end within a character."""
NodeName = InputName


JobNumber = Annotated[int, Field(ge=1, le=MAX_ID), NUMBER]
AttemptNumber = Annotated[int, Field(ge=1, le=2**31 - 1), NUMBER]
Count = Annotated[int, Field(ge=0, le=MAX_ID), NUMBER]
Cores = Annotated[int, Field(ge=0, le=1_000_000), NUMBER]
Mebibytes = Annotated[int, Field(ge=0, le=2**31 - 1), NUMBER]
Seconds = Annotated[float, Field(ge=-MAX_ID, le=MAX_ID), NUMBER]
Duration = Annotated[float, Field(ge=0, le=MAX_ID), NUMBER]
"""The limit keeps the sum of many of these finite."""
Weight = Annotated[float, Field(ge=0, le=MAX_ID), NUMBER]


VERSION = 1
"""The version of all messages together.

It stays 1 before the tag of 0.2.0, because agents and control are always installed together. From the tag on, the first
change of a message after each release raises it by one, and `_same` also accepts the version before.
"""


class Message(BaseModel):
    """A value on the wire: immutable, all numbers finite. Fields that the receiver does not know are ignored."""

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
    """A whole message. Its version is checked first: nothing else of another version's message is read."""

    version: Annotated[int, Field(ge=VERSION, le=VERSION), NUMBER, BeforeValidator(_same)] = VERSION

    @model_validator(mode="before")
    @classmethod
    def _version_first(cls, fields: object) -> object:
        same = fields  # `isinstance` would narrow what is returned to a dict of unknown things
        if isinstance(fields, dict):
            _same(cast("dict[str, object]", fields).get("version", VERSION))
        return same


class NodeFacts(Message):
    """The facts of a node that decide which jobs may run or be restored there.

    A checkpoint with memory in it fits a node of the same architecture and runtime family, with at least the
    processor features of the node that saved it and no older CRIU.
    """

    node: NodeName
    cpus: Annotated[int, Field(ge=1, le=1_000_000), NUMBER]
    memory_mib: Annotated[int, Field(ge=1, le=2**31 - 1), NUMBER]
    runtime: Text
    """The container runtime with its version, for example `docker 26.1.5`. The name is its family: no family restores
    what another one has saved."""
    criu: Text
    """CRIU's version, for example `4.1.1`; empty where there is none."""
    kernel: Text
    architecture: Text
    cpu_features: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=4096)] = ()
    """The kernel's names of the processor's features, sorted."""
    mounts: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=256)] = ()
    """The folders that jobs may mount here. A job that mounts another one is not offered to this node."""
    fetches: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=32)] = ()
    """The schemes of the URLs from which this agent can fetch inputs. A job with an input that is still to be fetched
    from another one is not offered to it."""
    disk_mib: Mebibytes | None = None
    """The most that a job may write here, whatever it asks for itself."""


class NodeImages(Message):
    """The container images that jobs may run on a node; those that groups have pushed are not among them."""

    names: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=MOST_IMAGES)] = ()
    """Those that are there."""
    brings: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=256)] = ("*",)
    """Patterns of the names of those that the node can bring when a job needs one (`system.image_names.matches`)."""


class Registration(VersionedMessage):
    """An agent's first message."""

    facts: NodeFacts
    images: NodeImages = NodeImages()
    end_s: Seconds
    """The instant of the agent's end: the shared end, or earlier."""
    slurm_job: Text | None = None


class CostSample(NamedTuple):
    """One measured save or restore: the size of all that ran at the same time, and the time that each of them took."""

    mib: Annotated[float, Field(ge=1, le=MAX_ID), NUMBER]
    took_s: Annotated[float, Field(ge=0, le=MAX_ID), NUMBER]


_Samples = Annotated[tuple[CostSample, ...], Field(fail_fast=True, max_length=100)]


class NodeRates(Message):
    """The newest measurements of a node, the newest last. `timing.save_cost` fits a line to them.

    >>> NodeRates.model_validate_json('{"saves": [[400, 2.5]]}').saves
    (CostSample(mib=400.0, took_s=2.5),)
    """

    saves: _Samples = ()
    restores: _Samples = ()
    """Their size is the checkpoint's."""
    saves_elsewhere: Count = 0
    """The number of jobs that the agents of all other nodes saved to the storage around the last boundary."""
    errors: Annotated[tuple[Weight, ...], Field(fail_fast=True, max_length=100)] = ()
    """The times that all saves of the latest agents' ends took, divided by the expected ones, the newest last."""
    late: Flag = False
    """True if a save there came too late for its agent's end, and none has been in time since."""
    borrowed: Flag = False
    """True if `saves` are those of another node of the same type: this one has none of its own."""


class Welcome(VersionedMessage):
    """Control's answer to a registration."""

    heartbeat_s: float
    lease_s: float
    """After this long without a heartbeat, control gives the agent's jobs to others."""
    rates: NodeRates = NodeRates()
    """The measurements of earlier agents on this node."""
    node_mtbf_s: Annotated[float, Field(gt=0), NUMBER] | None = None
    """Mean time between losses of one agent without notice, as observed over the whole fleet."""


class Way(StrEnum):
    """The way in which a job's state is saved and restored."""

    SHIM = "shim"
    """Docker with our OCI runtime, which lets CRIU write where we say."""
    CRIU = "criu"
    """runc and CRIU through the node helper."""
    SELF = "self"
    """The workload itself, on a signal; the checkpoint is its folder."""


class Stream(StrEnum):
    """One of the two streams of a process's output."""

    STDOUT = "stdout"
    STDERR = "stderr"


class Checkpoint(Message):
    """A published checkpoint, by name. `digest` is that of its manifest."""

    attempt: AttemptNumber
    number: AttemptNumber
    digest: Digest
    size_bytes: Count
    log_lines: Count
    """The number of lines that the job had written, over all its slices, when its memory was saved."""
    _few_fields = model_validator(mode="before")(few_fields)
    open_lines: dict[Stream, OpenLine] = {}
    """The beginnings of lines that were not at their end then. They are not counted; the next slice ends them."""
    chain: Annotated[str, Field(pattern=r"^[0-9]{1,10}/[0-9]{1,10}$")] | None = None
    """The chain: checkpoints of a job with the same one may share files. It is named after its first checkpoint, as
    attempt/number, which is this one if it shares none. None if it is not known."""
    silent_s: Duration = 0.0
    """The time for which the job had computed without writing anything when it was saved, earlier slices included."""
    has_memory: Flag = True
    """False: only the job's folder is in it, written by a workload that saves itself. It fits every node."""


class ClaimRequest(VersionedMessage):
    """A request for work: the cores and the memory that are free on the node."""

    cpus: Cores
    memory_mib: Mebibytes
    most: Annotated[int, Field(ge=1, le=1024), NUMBER] = 64
    """At most this many jobs."""
    left_s: Duration | None = None
    """The time for which a job may compute here before it is saved. None: nobody knows."""


class StoredInput(Message):
    """A file or folder that the job reads and does not change. It is in the storage, as a tar archive."""

    name: InputName
    """Its name in `/inputs`."""
    content: Digest
    """The SHA-256 of the tar archive."""
    digest: Digest
    """The digest of the manifest in the storage."""
    size_bytes: Count
    into_job: Flag = False
    """True: it is copied into the job's folder before the first start, and is the job's own from then on."""


class CredentialGiven(Message):
    """The secret of a job's group for the URL of an input or a target."""

    url: Text
    """The secret is for the URLs below this one only."""
    value: Annotated[SecretStr, PlainSerializer(SecretStr.get_secret_value, when_used="json")]
    """Only the JSON on the wire shows it."""
    fault: Text = ""
    """Why control cannot read the secret; then the value is empty."""


class UrlInput(UrlInputSpec):
    """A file that the job reads and that is not in the storage yet: the agent fetches it and stores it.

    It stands among the inputs, so that an agent that cannot fetch it does not start the job without it.
    """

    credential: CredentialGiven | None = None
    """The group's secret for the URL."""


class FetchRules(Message):
    """The admin's rules for fetching inputs from URLs."""

    allowed: tuple[str, ...]
    """As `allowed_urls` reads them."""
    largest_bytes: Count
    total_s: Duration
    silent_s: Duration
    """A server that sends nothing for so long hangs."""


class InputFetched(VersionedMessage):
    """An attempt has fetched one of its inputs. Sent to `/jobs/J/attempts/A/input`, before the job starts."""

    name: InputName
    content: Digest
    """The SHA-256 of its tar archive, as in `StoredInput`."""
    size_bytes: Count
    digest: Digest | None = None
    """The digest of its manifest in the storage; None: it is not stored yet."""


class InputFixed(VersionedMessage):
    """Control's answer: the input that the job reads from now on. None: control does not find it in the storage."""

    input: StoredInput | None = None


class Assignment(Message):
    """One job, claimed by the asking agent under a new attempt."""

    job: int
    attempt: int
    group: str
    submission: int = 0
    """The jobs with this number were submitted together, and read the same inputs."""
    spec: JobSpec
    """The job's specification, resolved."""
    memory_mib: int
    """The job's memory limit now: within the range that its specification allows."""
    image_id: Digest | None = None
    """The id of the container image, if the group has pushed it; None: the node has the image, or pulls it."""
    image_digest: Digest | None = None
    """The digest of the pushed image's manifest in the storage."""
    checkpoint: Checkpoint | None = None
    """The checkpoint from which the job goes on; None if it starts from the beginning."""
    compute_left_s: Duration | None = None
    """The part of the job's compute limit that earlier slices have left. None: no limit."""
    inputs: tuple[Annotated[StoredInput | UrlInput, Field(union_mode="left_to_right")], ...] = ()
    fetch_rules: FetchRules | None = None
    """The rules for its `UrlInput`s; None if it has none."""

    @property
    def image(self) -> str:
        """The name of the container image; its id if it was pushed."""
        return self.image_id or self.spec.image

    @property
    def stored_inputs(self) -> tuple[StoredInput, ...]:
        """The inputs that are in the storage. Before the job starts, all are."""
        return tuple(one for one in self.inputs if isinstance(one, StoredInput))


class Assignments(VersionedMessage):
    """The answer to a `ClaimRequest`; empty when nothing fits."""

    jobs: tuple[Assignment, ...] = ()


class AttemptRef(Message):
    """One attempt of one job."""

    job: JobNumber
    attempt: AttemptNumber
    unsaved: Text = ""
    """Why the latest save failed, in a heartbeat: a `ReturnReason` and its detail. Empty: none did."""


class Heartbeat(VersionedMessage):
    """A heartbeat: the attempts that the agent still works on."""

    attempts: Annotated[tuple[AttemptRef, ...], Field(fail_fast=True, max_length=4096)] = ()
    clock_ahead_s: Seconds | None = None
    """The least by which the agent's clock is ahead of control's; below 0: behind. None: not measured."""


class Order(StrEnum):
    """An order to an agent, about one attempt."""

    GO_ON = "go-on"
    VACATE = "vacate"
    """Save the job and report it saved."""
    DROP = "drop"
    """Kill it and report nothing: it was cancelled, or another attempt is the current one."""


class Orders(VersionedMessage):
    """The answer to a heartbeat: one order for each attempt named in it, in the same order."""

    orders: tuple[Order, ...] = ()
    vacate: bool = False
    """Save everything and end."""
    now_s: Seconds | None = None
    """Control's clock, between the heartbeat and this answer."""
    deliveries: bool = False
    """True if a result waits to be delivered."""


class Delivery(Message):
    """A result to copy to its target. Whoever delivers it, and however often, copies the same bytes."""

    job: JobNumber
    attempt: AttemptNumber  # whose result it is
    number: AttemptNumber  # of this try: only its own report counts
    digest: Digest
    to: Text
    keep: tuple[str, ...] = ()  # as in the assignment
    allowed: tuple[str, ...]
    total_s: Duration
    silent_s: Duration
    credential: CredentialGiven | None = None
    """The group's secret for the target."""


class DeliveryOffer(VersionedMessage):
    """Control's answer to an agent that asks for a result to deliver; None if nothing waits."""

    delivery: Delivery | None = None


class DeliveryReport(VersionedMessage):
    """The end of one try to deliver a result: the files that are there, or why it has failed."""

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
    """From the beginning of the restore, when inputs and image were there, until the process ran."""
    at_once: Annotated[int, Field(ge=1, le=1024), NUMBER] = 1
    """The number of restores on this node meanwhile, this one included."""
    way: Way


class SaveMeasurement(Message):
    """The cost of one save, from which the next is estimated better.

    >>> SaveMeasurement(memory_bytes=2**30, stored_bytes=2**29, took_s=1.4, at_once=4, way=Way.SHIM).failed
    0
    """

    memory_bytes: Count
    """The job's memory in use when the save began (of one that saves itself: its folder)."""
    stored_bytes: Count
    """The bytes written to the storage: compressed, and without those that the checkpoint before holds."""
    took_s: Duration
    """From the order to save until the checkpoint was published."""
    expected_s: Duration | None = None
    """The agent's estimate."""
    at_once: Annotated[int, Field(ge=1, le=1024), NUMBER] = 1
    """The number of saves on this node meanwhile, this one included."""
    way: Way
    failed: Count = 0
    """The number of saves of this attempt that failed since its last report of a checkpoint."""


class Slice(Message):
    """The times of one attempt. Instants are those of the agent's clock."""

    started_s: Seconds
    """The instant at which the agent began to prepare the job."""
    start_s: Duration = 0.0
    """From then until the process ran, or until its restore began: inputs and the image are brought in it."""
    restore_s: Duration = 0.0
    """From then until the process ran, of a job that had a checkpoint."""
    memory_s: Duration = 0.0
    """From the restore until all memory was there, if that came while the process ran; 0 until it is there."""
    compute_s: Duration = 0.0
    save_s: Duration = 0.0
    """From the order to save until the checkpoint was published; all saves of the attempt together."""
    restored: RestoreMeasurement | None = None
    """The cost of its restore; None if it began without one. Reports may repeat it; control counts it once."""


class Checkpointed(VersionedMessage):
    """The attempt published this whole checkpoint and goes on computing: a periodic save.

    Reported at `/jobs/J/attempts/A/checkpointed`. Within an attempt the checkpoints' numbers go up. A repeated
    report is no error. `slice` has the times of the attempt so far.

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
    """The attempt ended with this whole, published checkpoint."""

    checkpoint: Checkpoint
    slice: Slice
    measured: SaveMeasurement | None = None


class Output(Message):
    """A job's published folder, by the digest of its manifest."""

    digest: Digest
    size_bytes: Count
    unmatched: Annotated[tuple[Text, ...], Field(fail_fast=True, max_length=keep_patterns.MOST)] = ()
    """The patterns of `keep` that have fitted no file."""


class Completed(VersionedMessage):
    """The workload exited by itself."""

    exit_code: Annotated[int, Field(ge=-(2**31), le=2**31 - 1), NUMBER]
    output: Output | None = None
    log_lines: Count = 0
    reason: Text = ""
    """One line for a person where the exit code alone does not tell, for example why the command could not start."""
    slice: Slice
    may_retry: Flag = True
    """False: another try would end in the same way, whatever retries are left. `reason` says why."""
    out_of_memory: Flag = False
    """True if the job has met its memory limit. `reason` says so, with the limit."""
    at_limit: Flag = False
    """True if the agent has ended the job at another limit. `reason` says which, and the exit code is that of it."""


class ReturnReason(StrEnum):
    """Why an agent returns a job that it has not saved."""

    UNSTARTED = "unstarted"
    """Too little time was left, or the agent ends: no fault of the job."""
    IMAGE_MISSING = "image missing"
    """The image is not on the node and cannot be pulled. The job is held when another node says so, too."""
    IMAGE_REFUSED = "image refused"
    """The site does not allow the image, or what a job of it writes cannot be saved. The job is held."""
    INPUT_MISSING = "input missing"
    """An input is not whole in the storage, or cannot be fetched. The job is held when another node says so, too."""
    INPUT_UNREACHABLE = "input unreachable"
    """An input could not be fetched now, for example because its server does not answer. The job waits for a while,
    and is tried again."""
    NODE_LACKS = "node lacks"
    """The node lacks something that the job needs at each start, for example room for its image or its inputs, or at
    each save, for example a newer CRIU. The job is not offered to this node for a while."""
    MOUNT_MISSING = "mount missing"
    """The node lacks a folder that the job mounts: `detail` begins with it and a colon. Jobs that mount it are not
    offered to this node before its next agent has found it."""
    CHECKPOINT_BROKEN = "checkpoint broken"
    """A file of the checkpoint is missing or damaged."""
    CANNOT_RESTORE = "cannot restore"
    """The checkpoint is whole, but the restore failed on this node. It may succeed on another node."""
    INCOMPATIBLE = "incompatible"
    """This node lacks what the checkpoint needs: `detail` says what. The checkpoint still counts as whole. The job is
    not offered to this node again."""
    SAVE_FAILED = "save failed"
    """The job ran, and every save failed. `detail` says why the first one failed."""
    UNSAVABLE = "cannot be saved"
    """The job ran, and a save failed for a reason that holds on every node until the program changes. `detail` says
    what to do. It begins with `head_room.NEEDS_MEMORY` if the job can be saved with more memory."""
    TOO_LATE = "too late"
    """The job ran, but its save or its result was not finished at the agent's end: no fault of the job. `detail` says
    why an earlier save failed, if one did. If the save is finished later, the agent reports it: it counts until
    another agent has claimed the job."""
    NODE_FAULT = "node fault"
    """The runtime of this node does not work, or somebody killed the job."""
    STORAGE_FAULT = "storage fault"
    """The storage refused or failed, before the job ran or at its end: no sign against the job."""


class Returned(VersionedMessage):
    """The attempt ended without a new checkpoint and without an exit of the workload."""

    why: ReturnReason
    detail: Text = ""
    slice: Slice | None = None
    measured: SaveMeasurement | None = None
    """The cost of a save that came too late: `took_s` is what it had taken by then, so the least that it takes."""


class LogLines(VersionedMessage):
    """Lines of a job's output. `first` counts from 0 over the job's whole life, all slices together."""

    first: Annotated[int, Field(ge=0, le=2**52), NUMBER]
    lines: Annotated[tuple[LogLine, ...], Field(fail_fast=True, max_length=10_000)]


class Deregistration(VersionedMessage):
    """An agent's last message. Its remaining attempts, if any, count as returned unstarted."""

    ended_s: Seconds
    """The instant at which the agent was done, by its own clock."""
    reason: Text = ""
    fault: Flag = False
    """True if the agent ended because its node does not work: that counts against the node."""
    saving_s: Duration | None = None
    """The time that all saves of its end took together; None if there were none whose cost was known before."""
    saving_expected_s: Duration | None = None
    """The agent's estimate of that, without safety."""
    was_late: Flag = False
    """True if a save was not done at the end: `saving_s` is then the least that it takes."""
