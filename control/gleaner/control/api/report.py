"""The report of a month."""

import os
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query

from gleaner.agent.common.quantities import in_words
from gleaner.control.api.access import User
from gleaner.control.api.problems import documented
from gleaner.control.models.report import MonthReport, RegularWaits, ReportFilter
from gleaner.control.policy.harm import Harm, harm
from gleaner.control.policy.node_time import DAY_S, RESOLUTIONS, NodeTime, shares_of_agents
from gleaner.control.queue import node_history
from gleaner.control.queue.node_history import HOUR_S
from gleaner.control.slurm import accounted_month
from gleaner.control.slurm.accounted_month import AccountedMonth
from gleaner.control.slurm.interface import ClusterError

router = APIRouter(prefix="/v1/report", tags=["report"])


ACCOUNTING_S = 120.0
"""The time limit for Slurm's accounting. `glean report` waits longer."""
ACCOUNTED_S = 600.0
"""The time for which an answer is valid. slurmdbd needs minutes to read a month of a large cluster's accounting."""
KINDS = ("harvested", "saving", "restoring", "starting", "lost")
TURN_S = 5.0
"""The longest wait for an earlier query to Slurm's accounting."""


@router.get("", responses=documented(422))
def report(caller: User, wanted: Annotated[ReportFilter, Query()]) -> MonthReport:
    """Return the use of the nodes' time in a month, and the users who got the harvested part.

    All users can see the nodes' time and the rows of their own group. Admins see all groups. They can also request two
    figures of Slurm's accounting: the waiting times of regular jobs, and the energy that Slurm has measured.
    """
    if wanted.accounting and caller.group is not None:
        raise HTTPException(403, "accounting: this needs an admin's token")
    now_s = caller.now_s
    month = wanted.month or datetime.fromtimestamp(now_s).astimezone().strftime("%Y-%m")
    begin_s, month_end_s = month_span(month)
    end_s = max(begin_s, min(month_end_s, now_s))
    with caller.reading() as db:
        seen = node_history.times(db, begin_s=begin_s, end_s=month_end_s, step_s=RESOLUTIONS[-1].step_s)
        rows = node_history.report_rows(db, begin_s=begin_s, end_s=month_end_s, group=caller.group)
        harm_day = harm(node_history.delays_s(db, begin_s=now_s - DAY_S, end_s=now_s))
        harm_month = harm(node_history.delays_s(db, begin_s=begin_s, end_s=month_end_s))
        stored = caller.state.stored.bytes_by_owner(db)
    accounted = _accounted(caller, begin_s, month_end_s) if wanted.accounting else None
    nodes = sum(seen.values(), NodeTime())
    sums = {f"{kind}_core_h": sum(getattr(row, f"{kind}_core_h") for row in rows) for kind in KINDS}
    measured_kwh = None if accounted is None else accounted.agents_kwh
    watts = caller.state.settings.history.watts_per_core
    agents = {f"{kind}_node_h": seconds / HOUR_S for kind, seconds in shares_of_agents(nodes).items()}
    groups = {group: size for (group, user), size in stored.items() if not user and caller.group in {None, group}}
    return MonthReport(
        summary=summary(month, nodes, harm_month),
        month=month,
        begin_s=begin_s,
        end_s=end_s,
        seen_h=nodes.seen_s / HOUR_S,
        regular_node_h=nodes.regular_node_s / HOUR_S,
        agents_node_h=nodes.agent_node_s / HOUR_S,
        idle_node_h=nodes.idle_node_s / HOUR_S,
        idle_without_node_h=(nodes.idle_node_s + nodes.agent_node_s) / HOUR_S,
        unusable_node_h=nodes.unusable_node_s / HOUR_S,
        energy_kwh=measured_kwh or (None if watts is None else sum(sums.values()) * watts / 1000),
        energy_is_measured=measured_kwh is not None,
        regular=None if accounted is None else RegularWaits.model_validate(accounted, from_attributes=True),
        group=caller.group,
        rows=rows,
        harm_day=harm_day,
        harm_month=harm_month,
        stored_bytes=groups,
        **agents,
        **sums,
    )


def summary(month: str, nodes: NodeTime, paid: Harm) -> str:
    """Return the opening sentence of a report.

    >>> summary("2026-10", NodeTime(idle_node_s=3600, agent_node_s=7200, agent_core_s=8, harvested_core_s=8), Harm())
    'In 2026-10 Gleaner harvested 2.0 node hours, 67 % of the time in which nodes would have been idle, and no regular \
job was seen to wait for an agent to leave.'
    """
    harvested_s, idle_s = shares_of_agents(nodes)["harvested"], nodes.idle_node_s + nodes.agent_node_s
    share = f"{harvested_s / idle_s:.0%}".replace("%", " %") if idle_s else "0 %"
    price = "no regular job was seen to wait for an agent to leave"
    if paid.jobs:
        jobs = "1 regular job" if paid.jobs == 1 else f"{paid.jobs:,} regular jobs"
        times = f"at least {in_words(paid.sum_s)} in all, and {in_words(paid.largest_s)} for the longest"
        price = f"{jobs} waited for agents to leave, {times}"
    return (
        f"In {month} Gleaner harvested {harvested_s / HOUR_S:,.1f} node hours, {share} of the time in which nodes would"
        f" have been idle, and {price}."
    )


def _accounted(caller: User, begin_s: float, end_s: float) -> AccountedMonth:
    """Return Slurm's accounting of the month. Raises 503 if it does not answer."""
    try:
        return caller.state.accounted.get(
            begin_s,
            lambda: accounted_month.accounted(begin_s, end_s, own=os.geteuid(), timeout_s=ACCOUNTING_S),
            fresh_s=ACCOUNTED_S,
            wait_s=TURN_S,  # each waiting call occupies a thread of the API
        )
    except TimeoutError:
        raise HTTPException(503, "Slurm's accounting has not answered an earlier query yet: try again later") from None
    except ClusterError as error:
        raise HTTPException(503, str(error)) from error


def month_span(month: str) -> tuple[float, float]:
    """Return the beginning and the end of a month, in the time zone of control's machine."""
    year, number = int(month[:4]), int(month[5:])
    return datetime(year, number, 1).timestamp(), datetime(year + number // 12, number % 12 + 1, 1).timestamp()
