"""Searches for jobs and campaigns, page by page."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from gleaner.agent.job_spec import MAX_ID, Name, Shape
from gleaner.control.models.campaigns import MAX_CAMPAIGN
from gleaner.control.states import Outcome, State

ROWS_A_PAGE = 50
LAST_PAGE = 20_000

JobOrder = Literal["id", "-id", "name", "-name", "state", "-state", "priority", "-priority", "attempt", "-attempt",
                   "ended_s", "-ended_s"]  # fmt: skip


class Search(Shape):
    """The text of a search, and the page of its results."""

    text: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")] = ""
    """A number, or part of a name or of a submitter's name."""
    page: int = Field(default=1, ge=1, le=LAST_PAGE)
    limit: int = Field(default=ROWS_A_PAGE, ge=1, le=1000)
    """The number of rows on a page."""

    @property
    def skipped(self) -> int:
        """Return the number of rows on the previous pages."""
        return (self.page - 1) * self.limit


class PageSearch(Search):
    """A search on the web page. Empty fields of its form do not restrict it."""

    done: Annotated[str, StringConstraints(max_length=20)] = ""
    """The action that led to this page, which confirms it."""

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_empty(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value not in {"", None}}


class JobFilter(Search):
    """A search for jobs. All given conditions must be satisfied."""

    state: State | None = None
    outcome: Outcome | None = None
    group: Name | None = None
    campaign: int | None = Field(default=None, ge=1, le=MAX_CAMPAIGN)
    held: bool | None = None
    mine: bool = False
    """True for the jobs that the caller has submitted."""
    order: JobOrder = "id"
    """The column by which the jobs are sorted. With a minus, the largest come first. Equal jobs are sorted by their
    ids."""
    after: int = Field(default=0, ge=0, le=MAX_ID)
    """Only jobs with a higher id are returned. Passing the last id of each page is the fastest way to read all jobs."""


class JobSearch(PageSearch, JobFilter):
    """A search for jobs on the web page."""

    order: JobOrder = "-id"


class CampaignFilter(Search):
    """A search for campaigns, the newest first."""

    group: Name | None = None
    mine: bool = False
    """True for the campaigns that the caller has submitted."""
    order: Literal["id", "-id", "name", "-name", "group", "-group"] = "-id"


class CampaignSearch(PageSearch, CampaignFilter):
    """A search for campaigns on the web page."""
