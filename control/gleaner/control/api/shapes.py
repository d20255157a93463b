"""What users, admins and the command line send and receive: the API's shapes (agents have `agent.protocol`).

Times are seconds since the epoch, durations seconds, memory MiB.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.protocol import NUMBER, Flag, SelfSave
from gleaner.control.life import Outcome, State

MAX_ID = 2**53 - 1
"""The largest whole number that every JSON reader and every database column of ours holds."""
MAX_CAMPAIGN = 2**31 - 1

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Word = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
"""One argument or value for a program: anything but NUL, which no program can be given."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


def _each_once(indices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(indices)) < len(indices):
        raise PydanticCustomError("unique_items", "an index stands there twice")
    return indices


class Shape(BaseModel):
    """A value that people send: immutable, and an unknown field is an error, for it may be a misspelt one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Reply(BaseModel):
    """A value that control answers with: a `glean` of another version passes over fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class SelfSaveSpec(SelfSave):
    """The same as people write it: there a key that nobody knows is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _as_written(how: object) -> object:
    return how.model_dump() if isinstance(how, SelfSave) else how


class JobSpec(Shape):
    """What to run. In a campaign, `{index}` in command and environment values becomes the run's index."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "zmumu",
                    "image": "gleaner/pythia",
                    "command": ["generate", "--seed", "{index}", "--events", "2000", "--process", "zmumu"],
                    "cpus": 1,
                    "memory_mib": 512,
                }
            ]
        },
    )

    name: Name
    image: Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]
    command: Annotated[tuple[Word, ...], Field(max_length=256)] = ()
    environment: Annotated[
        dict[Variable, Word], Field(max_length=256, json_schema_extra={"additionalProperties": False})
    ] = {}
    cpus: Annotated[int, Field(ge=1, le=4096), NUMBER] = 1
    memory_mib: Annotated[int, Field(ge=16, le=16 * 1024 * 1024), NUMBER] = 512
    nodes: Annotated[int, Field(ge=1, json_schema_extra={"maximum": 1}), NUMBER] = 1
    """Anything but 1 is refused: Gleaner runs jobs of one node or less."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000), NUMBER] = 0
    retries: Annotated[int, Field(ge=0, le=100), NUMBER] | None = None
    """Starts over after the job's own failure; None: the site's default."""
    saves_itself: Annotated[SelfSaveSpec | None, BeforeValidator(_as_written)] = None
    """The workload writes its state into its folder on a signal, and goes on from there when it is started again."""

    @field_validator("nodes")
    @classmethod
    def _one_node_or_less(cls, nodes: int) -> int:
        if nodes > 1:
            raise PydanticCustomError("too_wide", "a job runs on one node or less; wider jobs are only simulated")
        return nodes


class Submission(Shape):
    """One job, or with `indices` a campaign of one job an index."""

    job: JobSpec
    indices: (
        Annotated[
            tuple[Annotated[int, Field(ge=0, le=2**31 - 1), NUMBER], ...],
            Field(min_length=1, max_length=100_000, json_schema_extra={"uniqueItems": True}),
            AfterValidator(_each_once),
        ]
        | None
    ) = None
    group: Name | None = None
    """Only an admin may name a group other than the token's own."""
    hold: Flag = False


class Submitted(Reply):
    """The ids of the new jobs, in the order of the indices."""

    campaign: int | None
    jobs: tuple[int, ...]


class JobRow(Reply):
    """One job in a list."""

    id: int
    name: str
    group: str
    campaign: int | None
    index: int | None
    state: State
    outcome: Outcome | None
    exit_code: int | None
    held: bool
    priority: int
    cpus: int
    memory_mib: int
    attempt: int
    """How often it has been claimed."""
    node: str | None
    submitted_s: float
    ended_s: float | None
    submitter: str = ""
    """Empty: nobody knows, it is of before that was kept."""


class AttemptRow(Reply):
    """One claim of a job by one agent, and how its time was spent."""

    attempt: int
    agent: str
    node: str
    claimed_s: float
    ended_s: float | None
    ending: str | None
    """saved, succeeded, failed, lost, given back, cancelled; None while it lives."""
    detail: str
    started_s: float | None
    restored_from: str | None
    """ATTEMPT/NUMBER of the generation it went on from; None: from the beginning."""
    restore_s: float
    compute_s: float
    save_s: float


class EventRow(Reply):
    """Something that happened to a job."""

    at_s: float
    what: str
    detail: str


class GenerationRow(Reply):
    """A checkpoint generation that the queue still names."""

    attempt: int
    number: int
    size_bytes: int
    published_s: float


class JobDetail(Reply):
    """All that is known of one job."""

    job: JobRow
    image: str
    command: tuple[str, ...]
    environment: dict[str, str]
    retries: int
    saves_itself: SelfSave | None
    failures: int
    waits_because: str | None
    """Why it does not run now, in one line; None unless it waits."""
    attempts: tuple[AttemptRow, ...]
    events: tuple[EventRow, ...]
    generations: tuple[GenerationRow, ...]
    output_bytes: int | None


class TokenFilter(Shape):
    """Which tokens to list."""

    all: bool = False
    """Also those that have ended."""


class JobFilter(Shape):
    """Which jobs to list; all that is given must hold."""

    state: State | None = None
    group: Name | None = None
    campaign: int | None = Field(default=None, ge=1, le=MAX_CAMPAIGN)
    held: bool | None = None
    after: int = Field(default=0, ge=0, le=MAX_ID)
    """Only jobs with a higher id: the last one of the page before."""
    limit: int = Field(default=100, ge=1, le=1000)


class JobList(Reply):
    """A page of jobs, by ascending id, and how many match in all."""

    jobs: tuple[JobRow, ...]
    total: int


class Change(Shape):
    """A change of a job's priority."""

    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000), NUMBER]


class LogPage(Reply):
    """Lines of a job's output from `first` on; `ended`: no more will come.

    `first` is later than the one asked for if control no longer keeps the lines in between.
    """

    first: int
    lines: tuple[str, ...]
    ended: bool


class CampaignStatus(Reply):
    """How many jobs of a campaign (or, with `campaign` None, of all that the caller may see) are in each state."""

    campaign: int | None
    new: int
    running: int
    saved: int
    succeeded: int
    failed: int
    cancelled: int
    held: int


class DecisionRow(Reply):
    """One decision about jobs: what a policy was given, and what it answered.

    `given` holds what it was decided from, also of other groups: their cores, and the numbers and sizes of jobs.
    """

    id: int
    at_s: float
    kind: str
    """start, victim, hold or migrate."""
    policy: str
    acted: bool
    """False: a dry run, nothing was done."""
    subjects: tuple[str, ...]
    """The jobs that it is about: `job 7` of the queue, `slurm 4711` of the scheduler."""
    given: dict[str, Any]
    answer: dict[str, Any]


class AgentRow(Reply):
    """One agent that control knows."""

    name: str
    node: str | None
    phase: str
    """submitted, live, silent, ended."""
    scheduler_id: str | None
    end_s: float
    """The shared end it was submitted for."""
    submitted_s: float
    registered_s: float | None
    ended_s: float | None
    """When it was done, by its own word."""
    jobs: tuple[int, ...]
    reason: str


class NodeRow(Reply):
    """One node as the scheduler sees it, with what Gleaner knows of it."""

    name: str
    cpus: int
    memory_mib: int
    state: str
    idle: bool
    regular: bool
    """A regular job uses it."""
    agent: str | None
    failures: int
    avoided_until_s: float | None
    doubted: str = ""
    """Why it gets one job at a time or none: what jobs met there. Empty if it is trusted."""
    drained: str = ""
    """By whom, if it was drained through Gleaner, and what is left there."""


class ClusterStatus(Reply):
    """The cluster at the last poll."""

    read_s: float | None
    """None: not read yet."""
    stale: bool
    problem: str
    """Why the last poll failed, empty if it did not."""
    boundary_s: float
    nodes: tuple[NodeRow, ...]


class Health(Reply):
    """Whether control works; the only answer that needs no token."""

    status: str
    leader: bool
    version: str
    queue: str
    """`ok`, or what is wrong with the database."""


class TokenRequest(Shape):
    """A new token (agents get theirs from control itself)."""

    role: Annotated[str, StringConstraints(pattern="^(user|admin|metrics)$")]
    name: Name
    group: Name | None = None
    manager: Flag = False
    """A user who may change all jobs of the group, and not only the own ones."""
    days: Annotated[int, Field(ge=1, le=36_500), NUMBER] | None = None
    """It ends after so many; None: not by itself."""


class TokenIssued(Reply):
    """The secret, shown once; only its hash is stored."""

    token: str
    id: str = ""
    expires_s: float | None = None


class TokenRow(Reply):
    """A token without its secret."""

    id: str
    role: str
    name: str
    group: str | None
    manager: bool
    issued_s: float
    expires_s: float | None
    """None: it does not end by itself."""
    revoked_s: float | None


class Problem(Reply):
    """Every error's body: one line that says what is wrong and what to do."""

    detail: str
