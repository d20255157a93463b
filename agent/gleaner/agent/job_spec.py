"""The specification of a job, which a user submits, the queue stores as one document, and an agent runs.

A new key of a job is a field of `JobSpec`. It is named again only where users set it or see it, and where it takes
effect (CONTRIBUTING.md). Times are in seconds, and memory is in MiB. In a campaign, `{index}` becomes the job's index
and `{mass}` its value of the parameter `mass` (`resolved`).
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gleaner.agent.common import allowed_urls, placeholders
from gleaner.agent.common.allowed_urls import LONGEST_URL
from gleaner.agent.privileged.common import mount_folders
from gleaner.agent.system import keep_patterns

MAX_ID = 2**53 - 1
"""The largest whole number that all JSON readers and all our database columns can hold."""
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
"""A SHA-256 digest, written as `sha256:` and 64 hexadecimal digits."""


def _a_number(value: object) -> object:
    if isinstance(value, bool | str | bytes):
        raise PydanticCustomError("number", "input should be a number")
    return value


NUMBER = BeforeValidator(_a_number)
"""A number as in JSON, where true, false and text are not numbers, and 2.0 is a whole number."""

Flag = Annotated[bool, Field(strict=True)]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


MOST_FIELDS = 1000


def few_fields(value: object) -> object:
    """Raise one error for too many fields, since an error for each of them would take seconds."""
    same = value
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    parts = [cast("dict[str, object]", one) for one in (fields, *fields.values()) if isinstance(one, dict)]
    if max(map(len, parts)) > MOST_FIELDS:
        raise ValueError(f"more than {MOST_FIELDS} fields")
    return same


class Shape(BaseModel):
    """A value that users send. It is immutable, and an unknown field is an error because it might be misspelt."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    _few_fields = model_validator(mode="before")(few_fields)


Word = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
"""One argument or value for a program. It can contain any character but NUL, which no program can receive."""


Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


def _in_order(codes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(set(codes)))


ExitCodes = Annotated[
    tuple[Annotated[int, Field(ge=1, le=255), NUMBER], ...],
    Field(fail_fast=True, min_length=1, max_length=1000),
    AfterValidator(_in_order),
]


Image = Annotated[str, StringConstraints(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$")]
Memory = Annotated[int, Field(ge=16, le=16 * 1024 * 1024), NUMBER]


MOST_INPUTS = 100
InputName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$")]


class InputSpec(Shape):
    """An input of a job."""

    name: InputName
    """Its name in `/inputs`."""
    content: Digest
    """The SHA-256 of its tar archive."""
    into_job: Flag = False
    """True if it is copied into the job's folder at the first start, and belongs to the job from then on."""


class UrlInputSpec(Shape):
    """An input of a job, which the agent fetches."""

    name: InputName
    """Its name in `/inputs`."""
    url: Annotated[str, StringConstraints(pattern=r"^(https|s3|roots?|file)://[!-~]+$", max_length=LONGEST_URL)]
    """A URL that the site allows (`urls` in `[inputs]` of control's settings)."""
    sha256: Digest | None = None
    """The SHA-256 of the file. If None, all jobs of the submission use the file as it was first fetched."""
    into_job: Flag = False
    """True if it is copied into the job's folder at the first start, and belongs to the job from then on."""


def _kind(one: object) -> str:
    has_url = "url" in cast("dict[str, object]", one) if isinstance(one, dict) else isinstance(one, UrlInputSpec)
    return "url" if has_url else "stored"


_AnyInput = Annotated[Annotated[InputSpec, Tag("stored")] | Annotated[UrlInputSpec, Tag("url")], Discriminator(_kind)]


def _each_once(inputs: tuple[_AnyInput, ...]) -> tuple[_AnyInput, ...]:
    names = [one.name for one in inputs]
    for name in names:
        if names.count(name) > 1:
            raise PydanticCustomError("unique_names", "two inputs are called {name}", {"name": name})
    return inputs


InputSpecs = Annotated[tuple[_AnyInput, ...], Field(fail_fast=True, max_length=MOST_INPUTS), AfterValidator(_each_once)]


def _mountable(folders: tuple[str, ...]) -> tuple[str, ...]:
    if why := mount_folders.fault_of_list(list(folders)):
        raise PydanticCustomError("mountable", "{why}", {"why": why})
    return tuple(sorted(folders))


Mounts = Annotated[tuple[str, ...], Field(fail_fast=True, max_length=mount_folders.MOST), AfterValidator(_mountable)]


OF_TARGET = ("campaign", "job")
"""The names that can be in braces in a target, besides the index and the parameters."""


def _a_pattern(pattern: str) -> str:
    if why := keep_patterns.fault(pattern):
        raise PydanticCustomError("pattern", "{pattern} {why}", {"pattern": repr(pattern[:60]), "why": why})
    return pattern


_Pattern = Annotated[str, AfterValidator(_a_pattern)]


def _a_target(url: str) -> str:
    if why := target_fault(url):
        raise PydanticCustomError("target", "{why}", {"why": why})
    return url


def target_fault(url: str) -> str:
    """Return why this is not a valid target; "" if it is one.

    >>> target_fault("file:///data/{campaign}/{index}/"), target_fault("root://host/a")
    ('', '')
    >>> target_fault("file:///data/a?b")
    'names a folder, and a folder has no ?'
    """
    try:
        where = allowed_urls.location(
            "".join(text + ("1" if name else "") for text, name, _ in placeholders.parts(url))
        )
    except ValueError as error:
        return str(error)
    if where.scheme not in allowed_urls.TARGET_SCHEMES:
        return f"must begin with {' or '.join(f'{each}://' for each in allowed_urls.TARGET_SCHEMES)}"
    if where.scheme == "s3" and not where.folders:
        return "names no bucket: write s3://HOST/BUCKET/..., or s3://BUCKET/... for Amazon's"
    return "names a folder, and a folder has no ?" if "?" in url else ""


class OutputSpec(Shape):
    """The part of a job's folder that is kept as its result, and the target to which an agent copies it."""

    keep: Annotated[tuple[_Pattern, ...], Field(fail_fast=True, max_length=keep_patterns.MOST)] = ()
    """Patterns like `*.root` or `hist/**`, with placeholders as in the command. If empty, everything is kept."""
    to: (
        Annotated[str, StringConstraints(max_length=allowed_urls.LONGEST_URL - 100), AfterValidator(_a_target)] | None
    ) = None
    """A folder like `file:///data/results/{campaign}/{index}/`, below a URL that the site allows."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.keep and self.to is None:
            raise PydanticCustomError("says_nothing", "must say what to keep, or where to deliver it")
        return self


class SelfSave(Shape):
    """The signal and the exit code of a program that saves itself. On the signal, it writes its state into its folder
    and exits with the code.

    This is HTCondor's convention (`+SuccessCheckpointExitCode`), with its usual code 85. The job continues when the
    same command is started again in that folder.

    >>> SelfSave().model_dump()
    {'signal': 'SIGTERM', 'exit_code': 85}
    """

    signal: Literal["SIGTERM", "SIGUSR1"] = "SIGTERM"
    exit_code: Annotated[int, Field(ge=1, le=255), NUMBER] = 85


class JobSpec(Shape):
    """The program to run. In a campaign, each job's values replace `{index}` and the parameters in braces."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "name": "zmumu",
                    "image": "pythia",
                    "command": ["--seed", "{index}", "--events", "2000", "--process", "zmumu", "--out", "."],
                    "cpus": 1,
                    "memory_mib": 512,
                }
            ]
        },
    )

    name: Name
    image: Image
    command: Annotated[tuple[Word, ...], Field(fail_fast=True, max_length=256)] = ()
    environment: dict[Variable, Word] = Field(
        default={}, max_length=256, json_schema_extra={"additionalProperties": False}
    )
    cpus: Annotated[int, Field(ge=1, le=4096), NUMBER] = 1
    memory_mib: Memory = 512
    most_memory_mib: Memory | None = None
    """The most memory that a job receives after it has reached its memory limit; None if it receives no more."""
    nodes: Annotated[int, Field(ge=1, json_schema_extra={"maximum": 1}), NUMBER] = 1
    """Any number but 1 is refused, because Gleaner runs jobs on one node or a part of it."""
    priority: Annotated[int, Field(ge=-1_000_000, le=1_000_000), NUMBER] = 0
    retries: Annotated[int, Field(ge=0, le=100), NUMBER] | None = None
    """The number of new starts after failures of the job itself; None for the site's default."""
    retry_on: ExitCodes | None = None
    """The only exit codes after which the job is tried again; None for all."""
    never_retry_on: ExitCodes | None = None
    """The exit codes after which the job has failed permanently, even if retries are left."""
    compute_limit_s: Annotated[int, Field(ge=1, le=10 * 365 * 86_400), NUMBER] | None = None
    """The seconds for which the job is allowed to compute, over all slices; None for no limit."""
    needs_at_least_s: Annotated[int, Field(ge=1, le=10 * 365 * 86_400), NUMBER] | None = None
    """The seconds that an agent must have left to receive the job; None for no minimum."""
    disk_mib: Annotated[int, Field(ge=1, le=16 * 1024 * 1024), NUMBER] | None = None
    """The most that the job is allowed to write, in MiB, in its folder and elsewhere together; None for the node's
    limit."""
    silent_limit_s: Annotated[int, Field(ge=10, le=10 * 365 * 86_400), NUMBER] | None = None
    """The seconds for which the job is allowed to compute without printing or writing anything; None for no limit."""
    inputs: InputSpecs = ()
    """Files and folders that the job reads and does not change."""
    mounts: Mounts = ()
    """Folders of the node that the job sees read-only, each under its own path. The site must allow them."""
    outputs: OutputSpec | None = None
    """The part of the job's folder that is kept; None for everything."""
    saves_itself: SelfSave | None = None
    """The way in which the workload saves itself: on a signal, it writes its state into its folder, and it continues
    from that state when it is started again."""

    @field_validator("nodes")
    @classmethod
    def _one_node_or_less(cls, nodes: int) -> int:
        if nodes > 1:
            raise PydanticCustomError("too_wide", "a job runs on one node or less; wider jobs are only simulated")
        return nodes

    @field_validator("most_memory_mib")
    @classmethod
    def _not_less(cls, most_mib: int | None, info: ValidationInfo) -> int | None:
        least_mib = info.data.get("memory_mib", 0)
        if most_mib is not None and most_mib < least_mib:
            raise PydanticCustomError(
                "less_than_the_least",
                "the most memory is less than the least: {least} MiB, and at most {most} MiB",
                {"least": least_mib, "most": most_mib},
            )
        return most_mib

    @field_validator("never_retry_on")
    @classmethod
    def _in_one_list(cls, codes: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        both = sorted(set(codes or ()) & set(info.data.get("retry_on") or ()))
        if both:
            raise PydanticCustomError(
                "in_both_lists", "exit code {code} is in retry_on too; leave it in one of the two", {"code": both[0]}
            )
        return codes

    @property
    def keep(self) -> tuple[str, ...]:
        """The patterns of the files that are kept from the job's folder; empty if all are."""
        return () if self.outputs is None else self.outputs.keep

    def resolved(
        self, *, job: int, campaign: int | None, index: int | None, parameters: Mapping[str, str] | None = None
    ) -> "JobSpec":
        """Return the specification of one job, with its numbers and parameters in place of the names in braces.

        >>> runs = JobSpec(name="a", image="pi", command=("run", "--seed={index:03d}"), environment={"MASS": "{mass}"})
        >>> one = runs.resolved(job=1, campaign=1, index=7, parameters={"mass": "100"})
        >>> one.command, one.environment
        (('run', '--seed=007'), {'MASS': '100'})
        """
        outputs, values = self.outputs, {**(parameters or {}), "index": str(index)}
        if outputs is not None and outputs.to is not None:
            of_target = {**values, "job": str(job), "campaign": str(campaign)}
            outputs = outputs.model_copy(update={"to": placeholders.filled(outputs.to, of_target)})
        if index is None:  # a single job keeps its braces unchanged
            return self.model_copy(update={"outputs": outputs})

        def filled(texts: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(placeholders.filled(text, values) for text in texts)

        if outputs is not None:
            outputs = outputs.model_copy(update={"keep": filled(outputs.keep)})
        environment = dict(zip(self.environment, filled(tuple(self.environment.values())), strict=True))
        return self.model_copy(update={"command": filled(self.command), "environment": environment, "outputs": outputs})
