"""Searches for jobs and campaigns, filtered, sorted and in pages."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, case, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.models.jobs import JobRow
from gleaner.control.models.searches import (
    ROWS_A_PAGE,
    CampaignPage,
    CampaignRow,
    CampaignSearch,
    JobPage,
    JobSearch,
)
from gleaner.control.queue.queries import JOB_ROWS
from gleaner.control.queue.tables import CAMPAIGN, JOB, SPEC
from gleaner.control.states import WAITING, Outcome, State

_JOB_COLUMNS = {
    "id": JOB.c.id,
    "name": SPEC.c.name,
    "state": JOB.c.state,
    "priority": JOB.c.priority,
    "attempt": JOB.c.attempt,
    "ended_s": JOB.c.ended_s,
}
_CAMPAIGN_COLUMNS = {"id": CAMPAIGN.c.id, "name": CAMPAIGN.c.name, "group": CAMPAIGN.c.group}


def job_page(db: Connection, wanted: JobSearch) -> JobPage:
    """Return the jobs on one page of a search."""
    conditions: list[ColumnElement[bool]] = []
    for column in (JOB.c.state, JOB.c.outcome, JOB.c.group, JOB.c.campaign):
        value = getattr(wanted, column.name)
        if value is not None:
            conditions.append(column == value)
    if wanted.held is not None:
        conditions.append(JOB.c.held.is_(wanted.held))
    counted = select(func.count()).select_from(JOB).where(*conditions)
    page = JOB_ROWS.where(*conditions)
    if wanted.text:
        found = _with_text(wanted.text, number=JOB.c.id, words=(SPEC.c.name, JOB.c.submitter))
        counted = counted.join(SPEC, SPEC.c.id == JOB.c.spec).where(found)
        page = page.where(found)
    page = _sorted(page, wanted.order, _JOB_COLUMNS, number=JOB.c.id).limit(ROWS_A_PAGE).offset(wanted.skipped)
    rows = tuple(JobRow(**row) for row in db.execute(page).mappings())
    return JobPage(jobs=rows, total=db.execute(counted).scalar_one())


def campaign_page(db: Connection, wanted: CampaignSearch, at_most: int = ROWS_A_PAGE) -> CampaignPage:
    """Return the campaigns on one page of a search, each with the number of its jobs in each state."""
    given = ((CAMPAIGN.c.group, wanted.group), (CAMPAIGN.c.submitter, wanted.submitter))
    conditions = [column == value for column, value in given if value is not None]
    if wanted.text:
        words = (CAMPAIGN.c.name, CAMPAIGN.c.submitter)
        conditions.append(_with_text(wanted.text, number=CAMPAIGN.c.id, words=words))
    page = _sorted(select(CAMPAIGN).where(*conditions), wanted.order, _CAMPAIGN_COLUMNS, number=CAMPAIGN.c.id)
    rows = db.execute(page.limit(at_most).offset(wanted.skipped)).mappings().all()
    counts = _counts(db, [row["id"] for row in rows])
    none = dict.fromkeys(_COUNTED, 0)
    found = tuple(CampaignRow.model_validate({**row, **none, **counts.get(row["id"], {})}) for row in rows)
    total = db.execute(select(func.count()).select_from(CAMPAIGN).where(*conditions)).scalar_one()
    return CampaignPage(campaigns=found, total=total)


def campaign_name(db: Connection, campaign: int) -> str:
    """Return the name of a campaign, or "" if it does not exist."""
    return db.execute(select(CAMPAIGN.c.name).where(CAMPAIGN.c.id == campaign)).scalar_one_or_none() or ""


_COUNTED: dict[str, ColumnElement[bool]] = {
    "waiting": JOB.c.state.in_(WAITING),
    "running": JOB.c.state == State.RUNNING,
    "succeeded": JOB.c.outcome == Outcome.SUCCEEDED,
    "failed": JOB.c.outcome == Outcome.FAILED,
    "cancelled": JOB.c.outcome == Outcome.CANCELLED,
    "held": JOB.c.held.is_(True),
}


def _counts(db: Connection, campaigns: list[int]) -> dict[int, dict[str, int]]:
    sums = [func.sum(case((condition, 1), else_=0)).label(name) for name, condition in _COUNTED.items()]
    counted = select(JOB.c.campaign, *sums).where(JOB.c.campaign.in_(campaigns)).group_by(JOB.c.campaign)
    rows = db.execute(counted).mappings()
    return {row["campaign"]: {name: int(row[name]) for name in _COUNTED} for row in rows}


def _with_text(text: str, *, number: ColumnElement[int], words: Iterable[ColumnElement[str]]) -> ColumnElement[bool]:
    """Return the condition that a row has this number, or that one of its words contains the text."""
    found: list[ColumnElement[bool]] = [word.icontains(text, autoescape=True) for word in words]
    if text.isascii() and text.isdecimal() and int(text) <= MAX_ID:
        found.append(number == int(text))
    return or_(*found)


def _sorted(rows: Any, order: str, columns: Mapping[str, ColumnElement[Any]], *, number: ColumnElement[int]) -> Any:
    column = columns[order.removeprefix("-")]
    if order.startswith("-"):
        return rows.order_by(column.desc().nulls_last(), number.desc())
    return rows.order_by(column.nulls_last(), number)
