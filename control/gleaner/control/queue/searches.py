"""Searches for jobs and campaigns, with filters, sorting and pages."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, exists, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.models.campaigns import CampaignList
from gleaner.control.models.jobs import JobList, JobRow
from gleaner.control.models.searches import CampaignFilter, JobFilter
from gleaner.control.queue.campaign_figures import campaign_rows
from gleaner.control.queue.queries import JOB_ROWS
from gleaner.control.queue.tables import CAMPAIGN, JOB, SPEC

_JOB_COLUMNS = {
    "id": JOB.c.id,
    "name": SPEC.c.name,
    "state": JOB.c.state,
    "priority": JOB.c.priority,
    "attempt": JOB.c.attempt,
    "ended_s": JOB.c.ended_s,
}
_CAMPAIGN_COLUMNS = {"id": CAMPAIGN.c.id, "name": CAMPAIGN.c.name, "group": CAMPAIGN.c.group}


def job_page(db: Connection, wanted: JobFilter, *, mine: str = "", keep_s: float | None = None) -> JobList:
    """Return the jobs on one page of a search. Removed jobs are left out.

    `mine` is the name of the caller, and `keep_s` is explained at `queries.KEEP_S`.
    """
    conditions: list[ColumnElement[bool]] = [~JOB.c.is_removed]
    for column in (JOB.c.state, JOB.c.outcome, JOB.c.group, JOB.c.campaign):
        value = getattr(wanted, column.name)
        if value is not None:
            conditions.append(column == value)
    if wanted.held is not None:
        conditions.append(JOB.c.held.is_(wanted.held))
    if wanted.mine:
        conditions.append(JOB.c.submitter == mine)
    counted = select(func.count()).select_from(JOB).where(*conditions)
    page = JOB_ROWS.where(*conditions, JOB.c.id > wanted.after)
    if wanted.text:
        found = _with_text(wanted.text, number=JOB.c.id, words=(SPEC.c.name, JOB.c.submitter))
        counted = counted.join(SPEC, SPEC.c.id == JOB.c.spec).where(found)
        page = page.where(found)
    page = _sorted(page, wanted.order, _JOB_COLUMNS, number=JOB.c.id).limit(wanted.limit).offset(wanted.skipped)
    rows = tuple(JobRow(**row) for row in db.execute(page, {"keep_s": keep_s}).mappings())
    return JobList(jobs=rows, total=db.execute(counted).scalar_one())


def campaign_page(
    db: Connection, wanted: CampaignFilter, *, now_s: float, mine: str = "", keep_s: float | None = None
) -> CampaignList:
    """Return the campaigns on one page of a search, each with its progress.

    Campaigns whose jobs were all removed are left out.
    """
    conditions: list[ColumnElement[bool]] = [exists().where(JOB.c.campaign == CAMPAIGN.c.id, ~JOB.c.is_removed)]
    if wanted.group is not None:
        conditions.append(CAMPAIGN.c.group == wanted.group)
    if wanted.mine:
        conditions.append(CAMPAIGN.c.submitter == mine)
    if wanted.text:
        words = (CAMPAIGN.c.name, CAMPAIGN.c.submitter)
        conditions.append(_with_text(wanted.text, number=CAMPAIGN.c.id, words=words))
    page = _sorted(select(CAMPAIGN).where(*conditions), wanted.order, _CAMPAIGN_COLUMNS, number=CAMPAIGN.c.id)
    rows = db.execute(page.limit(wanted.limit).offset(wanted.skipped)).mappings().all()
    total = db.execute(select(func.count()).select_from(CAMPAIGN).where(*conditions)).scalar_one()
    return CampaignList(campaigns=campaign_rows(db, rows, now_s=now_s, keep_s=keep_s), total=total)


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
