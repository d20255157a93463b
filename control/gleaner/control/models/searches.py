"""Searches for jobs and campaigns, page by page."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from gleaner.agent.job_spec import Name, Shape
from gleaner.control.models.base import Reply
from gleaner.control.models.campaigns import MAX_CAMPAIGN, KnownCampaign
from gleaner.control.models.jobs import JobRow
from gleaner.control.states import Outcome, State

ROWS_A_PAGE = 50
LAST_PAGE = 20_000


class Search(Shape):
    """A search with its text, order and page. Empty fields of a form do not restrict it."""

    text: Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")] = ""
    """A number, or a part of a name or of a submitter."""
    page: int = Field(default=1, ge=1, le=LAST_PAGE)
    done: Annotated[str, StringConstraints(max_length=20)] = ""
    """The action that led here, which the page confirms."""

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_empty(cls, given: Any) -> Any:
        return {name: value for name, value in given.items() if value not in {"", None}}

    @property
    def skipped(self) -> int:
        """Return the number of rows on the previous pages."""
        return (self.page - 1) * ROWS_A_PAGE


class JobSearch(Search):
    """A search for jobs. All given conditions must be satisfied."""

    state: State | None = None
    outcome: Outcome | None = None
    group: Name | None = None
    campaign: int | None = Field(default=None, ge=1, le=MAX_CAMPAIGN)
    held: bool | None = None
    order: Literal["id", "-id", "name", "-name", "state", "-state", "priority", "-priority", "attempt", "-attempt",
                   "ended_s", "-ended_s"] = "-id"  # fmt: skip
    """The column by which the jobs are sorted. With a minus the largest come first. Equal jobs are sorted by their
    ids."""


class CampaignSearch(Search):
    """A search for campaigns."""

    group: Name | None = None
    submitter: Name | None = None
    order: Literal["id", "-id", "name", "-name", "group", "-group"] = "-id"


class JobPage(Reply):
    """The jobs on one page of a search, and the number of all matching jobs."""

    jobs: tuple[JobRow, ...]
    total: int


class CampaignRow(KnownCampaign):
    """One campaign in a list, with the number of its jobs in each state."""

    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    held: int

    @property
    def jobs(self) -> int:
        """Return the number of all jobs of the campaign."""
        return self.waiting + self.running + self.succeeded + self.failed + self.cancelled


class CampaignPage(Reply):
    """The campaigns on one page of a search, and the number of all matching campaigns."""

    campaigns: tuple[CampaignRow, ...]
    total: int
