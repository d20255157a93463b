"""Jobs, as users submit, list and change them, with their attempts, events, checkpoints and output."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, computed_field, model_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.job_spec import MAX_ID, NUMBER, Flag, JobSpec, Name, Shape
from gleaner.agent.messages import ReturnReason
from gleaner.control.models.base import Reply
from gleaner.control.models.campaigns import MAX_CAMPAIGN
from gleaner.control.models.inputs import JobInput
from gleaner.control.models.outputs import DeliveryRow
from gleaner.control.models.parameters import MOST_JOBS, ParameterSpace, misuse, of_single
from gleaner.control.states import Outcome, State


def _each_once(indices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(indices)) < len(indices):
        raise PydanticCustomError("unique_items", "an index stands there twice")
    return indices


class Submission(Shape):
    """One job, or a campaign: with `indices` one job an index, with `parameters` one for each of their values."""

    job: JobSpec
    indices: (
        Annotated[
            tuple[Annotated[int, Field(ge=0, le=2**31 - 1), NUMBER], ...],
            Field(fail_fast=True, min_length=1, max_length=MOST_JOBS, json_schema_extra={"uniqueItems": True}),
            AfterValidator(_each_once),
        ]
        | None
    ) = None
    parameters: ParameterSpace | None = None
    """Its jobs have the indices 1, 2 and so on."""
    group: Name | None = None
    """Only an admin may name a group other than the token's own."""
    hold: Flag = False
    max_running: Annotated[int, Field(ge=1, le=MOST_JOBS), NUMBER] | None = None
    """So many jobs of the campaign run at once; None: all that there is room for."""
    try_first: Annotated[int, Field(ge=1, le=MOST_JOBS), NUMBER] | None = None
    """So many jobs start first, and must succeed before the others start."""
    max_failures: Annotated[str, Field(pattern=r"^(\d{1,6}|100%|\d{1,2}%)$")] | None = None
    """The number or the part of all jobs that may fail; after one more the rest is held."""
    dry_run: Flag = False
    """Nothing is submitted: the answer has no job, and what would be refused is."""

    @model_validator(mode="after")
    def _placeholders_have_values(self) -> Self:
        if self.indices is not None and self.parameters is not None:
            raise _wrong_use("parameters", "parameters and indices are both there: make the indices a parameter")
        rules = {"max_running", "try_first", "max_failures"} & self.model_dump(
            exclude_none=True, exclude={"job"}
        ).keys()
        if rules and not self.is_campaign:
            raise _wrong_use(min(rules), "only a campaign has it: give indices or parameters")
        if not self.is_campaign:
            field, why = "outputs", of_single(self.job)
        else:
            columns = self.parameters.values if self.parameters else {}
            field, why = misuse(self.job, {**columns, "index": [str(index) for index, _ in self.runs()]})
        if why:
            raise _wrong_use(field, why)
        return self

    @property
    def is_campaign(self) -> bool:
        """True if it may be several jobs."""
        return self.indices is not None or self.parameters is not None

    def may_fail(self, jobs: int) -> int | None:
        """Return how many of so many jobs may fail before the rest is held; None: all."""
        if self.max_failures is None or not self.max_failures.endswith("%"):
            return None if self.max_failures is None else int(self.max_failures)
        return jobs * int(self.max_failures[:-1]) // 100

    def runs(self) -> Iterator[tuple[int, dict[str, str] | None]]:
        """Yield the index of each job of a campaign, and its parameters; None if there are none."""
        if self.parameters is not None:
            return enumerate(self.parameters.each(), start=1)
        return ((index, None) for index in self.indices or ())


def _wrong_use(field: str, why: str) -> PydanticCustomError:
    """Return the error of a field that is wrong together with another."""
    return PydanticCustomError("wrong_use", "{why}", {"field": field, "why": why})


class Submitted(Reply):
    """The ids of the new jobs, in the order of the indices."""

    campaign: int | None
    jobs: tuple[int, ...]
    warning: str = ""
    """A sentence on what might go wrong with them; empty: nothing is foreseen."""


class JobRow(Reply):
    """One job in a list."""

    id: int
    name: str
    group: str
    campaign: int | None
    index: int | None
    parameters: dict[str, str] | None = None
    state: State
    outcome: Outcome | None
    exit_code: int | None
    held: bool
    priority: int
    cpus: int
    memory_mib: int
    attempt: int
    """The number of claims of the job."""
    node: str | None
    submitted_s: float
    ended_s: float | None
    submitter: str = ""
    """The user who submitted the job; empty for a job from before that was stored."""


class Ending(StrEnum):
    """The ways in which an attempt ends."""

    SAVED = "saved"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """Its agent fell silent."""
    FORGOTTEN = "forgotten"
    """Its agent lives but does not name the attempt: the answer to the claim never arrived there."""
    RETURNED = "returned"
    """It ended without a save and without a result."""
    CANCELLED = "cancelled"


class AttemptRow(Reply):
    """One claim of a job by one agent, and how its time was spent."""

    attempt: int
    agent: str
    node: str
    claimed_s: float
    ended_s: float | None
    ending: Ending | None
    """None while it lives."""
    why: ReturnReason | None = None
    """The reason of a returned attempt; `detail` begins with it."""
    detail: str
    started_s: float | None
    from_attempt: int | None
    """The checkpoint it went on from; None: from the beginning."""
    from_number: int | None
    start_s: float = 0.0
    """For inputs, the image, and the start of a new job."""
    restore_s: float
    compute_s: float
    save_s: float

    @computed_field  # type: ignore[prop-decorator]  # mypy takes no decorator above a property
    @property
    def restored_from(self) -> str | None:
        """The checkpoint it went on from, as ATTEMPT/NUMBER."""
        return None if self.from_attempt is None else f"{self.from_attempt}/{self.from_number}"


NOTHING_TO_KEEP = "nothing to keep"
"""The event of a pattern of `outputs` that fitted no file of the job's result. The detail is the pattern."""
NOT_SAVED = "not saved"
"""The event of a save that failed while its attempt goes on."""


class EventRow(Reply):
    """Something that happened to a job."""

    at_s: float
    what: str
    detail: str


class CheckpointRow(Reply):
    """A checkpoint that the queue still names."""

    attempt: int
    number: int
    size_bytes: int
    published_s: float


class JobDetail(Reply):
    """All that is known of one job."""

    job: JobRow
    spec: JobSpec
    """The specification with which it was accepted, with its numbers filled in."""
    image_id: str | None = None
    """The id of the image that the group had pushed under this name when the job was submitted. None: it had not."""
    inputs: tuple[JobInput, ...] = ()
    unmatched: tuple[str, ...] = ()
    """The patterns of `outputs` that have fitted no file of the result."""
    delivery: DeliveryRow | None = None
    """None: the job names no target, or has not succeeded yet."""
    counted_s: float = 0.0
    """The seconds computed that count against such a limit: all but what was lost since a last checkpoint."""
    failed_because: str | None = None
    """The reason why the job has failed, in one line; None if it has not."""
    last_failure: str | None = None
    """The reason why its newest try failed, in one line, if the job goes on all the same."""
    failures: int
    unsaved_because: str | None = None
    """The reason why the newest slice to end could not be saved, in one line; None if it was, or did not need to be."""
    not_saved_because: str | None = None
    """The reason why the slice that runs could not be saved so far, in one line; None if no save of it has failed."""
    waits_because: str | None
    """The reason why the job does not run now, in one line; None unless the job waits."""
    attempts: tuple[AttemptRow, ...]
    events: tuple[EventRow, ...]
    """The first events of the job and its newest ones; those between them are not kept."""
    checkpoints: tuple[CheckpointRow, ...]
    output_bytes: int | None


class JobFilter(Shape):
    """The choice of jobs to list: all given conditions must hold."""

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


class Priority(Shape):
    """A change of a job's priority."""

    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000), NUMBER]


class LogPage(Reply):
    """Lines of a job's output from `first` on; `ended`: no more will come.

    `first` is later than the one asked for if control no longer keeps the lines in between.
    """

    first: int
    lines: tuple[str, ...]
    next: int | None = None
    """The first line of the next page, if there is one: a page has a bound in lines and one in bytes."""
    ended: bool


class MigrateRequest(Shape):
    """The node on which a job is to continue. None: any other node."""

    to: Name | None = None
