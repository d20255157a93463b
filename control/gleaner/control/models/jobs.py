"""Jobs, as users submit, list and change them, with their attempts, events, checkpoints and output."""

from collections.abc import Iterator
from enum import StrEnum
from itertools import islice
from typing import Annotated, Self

from pydantic import AfterValidator, Field, computed_field, model_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.job_spec import NUMBER, Flag, Image, JobSpec, Memory, Name, Shape
from gleaner.agent.messages import ReturnReason
from gleaner.control.models.base import Reply
from gleaner.control.models.inputs import JobInput
from gleaner.control.models.outputs import DeliveryRow
from gleaner.control.models.parameters import MOST_JOBS, ParameterSpace, misuse, of_single
from gleaner.control.states import Outcome, State


def _each_once(indices: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(indices)) < len(indices):
        raise PydanticCustomError("unique_items", "an index stands there twice")
    return indices


Indices = Annotated[
    tuple[Annotated[int, Field(ge=0, le=2**31 - 1), NUMBER], ...],
    Field(fail_fast=True, min_length=1, max_length=MOST_JOBS, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_each_once),
]


class Submission(Shape):
    """One job, or a campaign with one job for each of the `indices`, or for each set of values of the `parameters`."""

    job: JobSpec
    indices: Indices | None = None
    parameters: ParameterSpace | None = None
    """With parameters, the jobs have the indices 1, 2 and so on."""
    group: Name | None = None
    """The group. Only an admin can name a group other than the token's own."""
    hold: Flag = False
    max_running: Annotated[int, Field(ge=1, le=MOST_JOBS), NUMBER] | None = None
    """The number of jobs of the campaign that can run at the same time, or None for as many as there is room for."""
    try_first: Annotated[int, Field(ge=1, le=MOST_JOBS), NUMBER] | None = None
    """The number of jobs that must succeed before the others start."""
    max_failures: Annotated[str, Field(pattern=r"^(\d{1,6}|100%|\d{1,2}%)$")] | None = None
    """The number or the percentage of jobs that can fail. After one more failure, the rest are held."""
    dry_run: Flag = False
    """True to submit nothing. The answer then contains no job, and the errors are those of a real submission."""

    @model_validator(mode="after")
    def _placeholders_have_values(self) -> Self:
        if self.indices is not None and self.parameters is not None:
            raise _wrong_use("parameters", "parameters and indices are both there: make the indices a parameter")
        rules = [name for name in ("max_failures", "max_running", "try_first") if getattr(self, name) is not None]
        if rules and not self.is_campaign:
            raise _wrong_use(rules[0], "only a campaign has it: give indices or parameters")
        if not self.is_campaign:
            field, why = "outputs", of_single(self.job)
        else:
            columns = self.parameters.values if self.parameters else {}
            indices = range(1, self.parameters.count + 1) if self.parameters else self.indices or ()
            field, why = misuse(self.job, {**columns, "index": list(map(str, indices))})
        if why:
            raise _wrong_use(field, why)
        return self

    @property
    def is_campaign(self) -> bool:
        """Return True if the submission can contain several jobs."""
        return self.indices is not None or self.parameters is not None

    def may_fail(self, jobs: int) -> int | None:
        """Return the number of jobs that can fail before the rest are held, or None for all, given the number of all
        jobs."""
        if self.max_failures is None or not self.max_failures.endswith("%"):
            return None if self.max_failures is None else int(self.max_failures)
        return jobs * int(self.max_failures[:-1]) // 100

    @property
    def count(self) -> int:
        """Return the number of jobs."""
        return self.parameters.count if self.parameters is not None else len(self.indices or (None,))

    def runs(self) -> Iterator[tuple[int | None, dict[str, str] | None]]:
        """Yield the index and the parameters of each job, with None in place of what the job does not have."""
        if self.parameters is not None:
            return enumerate(self.parameters.each(), start=1)
        return ((index, None) for index in self.indices or (None,))

    def first_jobs(self, at_most: int) -> Iterator[tuple[int | None, dict[str, str] | None, JobSpec]]:
        """Yield the index, the parameters and the specification of the first jobs, with their placeholders replaced."""
        for index, parameters in islice(self.runs(), at_most):
            yield index, parameters, self.job.resolved(job=0, campaign=0, index=index, parameters=parameters)


def _wrong_use(field: str, why: str) -> PydanticCustomError:
    """Return the error for a field that contradicts another."""
    return PydanticCustomError("wrong_use", "{why}", {"field": field, "why": why})


class Submitted(Reply):
    """The ids of the new jobs, in the order of the indices."""

    campaign: int | None
    jobs: tuple[int, ...]
    warning: str = ""
    """A warning about the jobs in one sentence, or ""."""


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
    """The number of times that the job was claimed."""
    node: str | None
    submitted_s: float
    ended_s: float | None
    submitter: str = ""
    """The user who submitted the job, or "" for jobs that are older than this field."""
    kept_until_s: float | None = None
    """The time until which its result is kept, or None if it has none or it is kept until a user removes it."""


class Ending(StrEnum):
    """The ways in which an attempt ends."""

    SAVED = "saved"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """The agent of the attempt fell silent."""
    FORGOTTEN = "forgotten"
    """The agent is live but does not list the attempt, because the answer to its claim never arrived."""
    RETURNED = "returned"
    """The attempt ended without a save and without a result."""
    CANCELLED = "cancelled"


class AttemptRow(Reply):
    """One claim of a job by one agent, and how its time was used."""

    attempt: int
    agent: str
    node: str
    claimed_s: float
    ended_s: float | None
    ending: Ending | None
    """The way in which the attempt ended, or None while it runs."""
    why: ReturnReason | None = None
    """The reason for which the attempt was returned. `detail` begins with it."""
    detail: str
    started_s: float | None
    from_attempt: int | None
    """The checkpoint from which the attempt continued, or None if it started from the beginning."""
    from_number: int | None
    start_s: float = 0.0
    """The time to fetch inputs and the image, and to start a new job."""
    restore_s: float
    memory_s: float = 0.0
    """The time from the restore until all memory was loaded, if it was loaded while the job ran."""
    compute_s: float
    save_s: float

    @computed_field  # type: ignore[prop-decorator]  # mypy takes no decorator above a property
    @property
    def restored_from(self) -> str | None:
        """Return the checkpoint from which the attempt continued, as ATTEMPT/NUMBER."""
        return None if self.from_attempt is None else f"{self.from_attempt}/{self.from_number}"


NOTHING_TO_KEEP = "nothing to keep"
"""The event for a pattern of `outputs` that matched no file of the job's result. The detail is the pattern."""
NOT_SAVED = "not saved"
"""The event for a failed save of an attempt that continues."""


class EventRow(Reply):
    """An event in a job's life."""

    at_s: float
    what: str
    detail: str


class CheckpointRow(Reply):
    """A checkpoint that is recorded in the queue."""

    attempt: int
    number: int
    size_bytes: int
    published_s: float


class JobDetail(Reply):
    """All known facts about one job."""

    job: JobRow
    spec: JobSpec
    """The specification as it was accepted, with defaults for the numbers that the user left out."""
    image_id: str | None = None
    """The id that the group's image of this name had at the submission, or None if the group had not pushed one."""
    inputs: tuple[JobInput, ...] = ()
    unmatched: tuple[str, ...] = ()
    """The patterns of `outputs` that matched no file of the result."""
    delivery: DeliveryRow | None = None
    """The delivery of the result, or None if the job names no target or has not succeeded yet."""
    counted_s: float = 0.0
    """The computing time, in seconds, that counts against the compute limit. Time that was lost since a checkpoint is
    excluded."""
    failed_because: str | None = None
    """The reason why the job has failed, in one line, or None if it has not failed."""
    last_failure: str | None = None
    """The reason why its latest try failed, in one line, if the job continues nevertheless."""
    failures: int
    unsaved_because: str | None = None
    """The reason why the slice that ended last could not be saved, in one line, or None if it was saved or needed no
    save."""
    not_saved_because: str | None = None
    """The reason why the running slice could not be saved so far, in one line, or None if no save of it has failed."""
    waits_because: str | None
    """The reason why the job does not run now, in one line, or None if the job does not wait."""
    attempts: tuple[AttemptRow, ...]
    events: tuple[EventRow, ...]
    """The first and the latest events of the job. The events in between are not kept."""
    checkpoints: tuple[CheckpointRow, ...]
    output_bytes: int | None


class JobList(Reply):
    """Jobs on one page of a search, and the number of all matching jobs."""

    jobs: tuple[JobRow, ...]
    total: int


class Priority(Shape):
    """A change of a job's priority."""

    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000), NUMBER]


class Rerun(Shape):
    """A new run of a failed or cancelled job, with another memory size or image if one is given."""

    memory_mib: Memory | None = None
    image: Image | None = None


class CampaignRerun(Rerun):
    """A new run of a campaign's jobs, either of those with these indices or of all that have failed."""

    only: Indices | None = None


class LogPage(Reply):
    """Lines of a job's output from `first` on. `ended` means that no more lines will follow.

    `first` is later than the requested line if control no longer has the lines in between.
    """

    first: int
    lines: tuple[str, ...]
    next: int | None = None
    """The first line of the next page, if there is one. A page is limited in lines and in bytes."""
    ended: bool


class MigrateRequest(Shape):
    """The node on which a job is to continue, or None for any other node."""

    to: Name | None = None
