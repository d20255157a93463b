"""The part of a job's folder that is kept, and the target to which it is delivered."""

import re
from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.staging import allowed_urls
from gleaner.agent.system import keep_patterns
from gleaner.control.models.base import Reply, Shape

NO_AGENT = "no agent here delivers to"
"""The beginning of the problem of a delivery that no agent can take."""
PLACES = ("campaign", "index", "job")
"""The words in braces that are filled in in a target."""
_BRACES = re.compile(r"\{([^{}]*)\}")


def _a_pattern(pattern: str) -> str:
    if why := keep_patterns.fault(pattern):
        raise PydanticCustomError("pattern", "{why}", {"why": why})
    return pattern


def _a_target(url: str) -> str:
    if why := target_fault(url):
        raise PydanticCustomError("target", "{why}", {"why": why})
    return url


def target_fault(url: str) -> str:
    """Return why this is no target; "" if it is one.

    >>> target_fault("file:///data/{campaign}/{index}/"), target_fault("file:///data/{run}/")
    ('', 'has {run}: only {campaign}, {index} and {job} are filled in')
    """
    for word in _BRACES.findall(url):
        if word not in PLACES:
            return f"has {{{word[:60]}}}: only {{campaign}}, {{index}} and {{job}} are filled in"
    try:
        where = allowed_urls.location(_BRACES.sub("1", url))
    except ValueError as error:
        return str(error)
    if where.scheme not in allowed_urls.TARGET_SCHEMES:
        return f"must begin with {' or '.join(f'{each}://' for each in allowed_urls.TARGET_SCHEMES)}"
    if where.scheme == "s3" and not where.folders:
        return "names no bucket: write s3://HOST/BUCKET/..., or s3://BUCKET/... for Amazon's"
    return "names a folder, and a folder has no ?" if "?" in url else ""


def unfilled(url: str, *, of_campaign: bool) -> str:
    """Return what the target lacks, or has too much, for a campaign or for a single job; "" if nothing.

    >>> unfilled("file:///data/{campaign}/", of_campaign=True)
    'needs {index} or {job}: else the jobs of a campaign would overwrite the files of each other'
    """
    words = set(_BRACES.findall(url))
    if of_campaign and not words & {"index", "job"}:
        return "needs {index} or {job}: else the jobs of a campaign would overwrite the files of each other"
    if not of_campaign and words & {"campaign", "index"}:
        return "has {campaign} or {index}, and this is a single job: write {job}"
    return ""


def filled_target(url: str, *, job: int, campaign: int | None, index: int | None) -> str:
    """Return the target of one job.

    >>> filled_target("file:///data/{campaign}/{index}/", job=7, campaign=3, index=0)
    'file:///data/3/0/'
    """
    values = {"job": job, "campaign": campaign, "index": index}
    return _BRACES.sub(lambda word: str(values.get(word[1], word[0])), url)


class OutputSpec(Shape):
    """The part of a job's folder that is kept as its result, and the target to which an agent copies it."""

    keep: Annotated[tuple[Annotated[str, AfterValidator(_a_pattern)], ...], Field(max_length=keep_patterns.MOST)] = ()
    """Patterns like `*.root` or `hist/**`, in which `{index}` becomes the job's index. Empty: everything."""
    to: (
        Annotated[str, StringConstraints(max_length=allowed_urls.LONGEST_URL - 100), AfterValidator(_a_target)] | None
    ) = None
    """A folder like `file:///data/results/{campaign}/{index}/`, below a URL that the site allows."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.keep and self.to is None:
            raise PydanticCustomError("says_nothing", "must say what to keep, or where to deliver it")
        return self


class DeliveryPhase(StrEnum):
    """The phases of a delivery."""

    WAITING = "waiting"
    TAKEN = "taken"
    """An agent is at it."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up. The result is in the storage all the same."""


class DeliveryRow(Reply):
    """The delivery of a job's result."""

    to: str
    phase: DeliveryPhase
    tries: int
    """The number of times that an agent has begun with it."""
    problem: str
    """Why the latest try failed, or no agent can try; empty if neither."""
    files: int | None
    size_bytes: int | None
    ended_s: float | None
    """The time at which all was there, or at which it was given up."""

    @property
    def trouble(self) -> str:
        """Return the problem of a delivery that has not ended, in words; "" if it has none."""
        if not self.problem or self.problem.startswith(NO_AGENT):
            return self.problem
        return f"the last try failed: {self.problem}"
