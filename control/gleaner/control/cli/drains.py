"""The verbs that drain nodes for maintenance, and resume them."""

from collections.abc import Iterator
from typing import Annotated

import typer

from gleaner.client import Client
from gleaner.control.cli import render
from gleaner.control.cli.connect import connect
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import moment
from gleaner.control.models.drains import DrainedJob, DrainRow
from gleaner.control.policy.draining import Spanning
from gleaner.control.simulation.metrics.tables import Table

Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Nodes, such as node1 or node[1-3].")]

_DEEDS = {
    "vacate": "an agent: saves its jobs and ends",
    "save": "is asked to save itself, and waits for its turn",
    "requeue": "is requeued, and starts over",
    "wait": "is not touched",
}
_GOOD = frozenset({"empty", "resumed"})


def drain(
    nodes: Nodes,
    *,
    spanning: Annotated[
        Spanning, typer.Option(help="What to do with a job that also runs on other nodes.")
    ] = Spanning.REFUSE,
    leave_others: Annotated[
        bool, typer.Option("--leave-others", help="Do not wait for jobs that are left alone.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until the nodes are empty.")] = False,
    as_json: AsJson = False,
) -> Answer:
    """Empty nodes for maintenance. The jobs there are saved and continue elsewhere.

    Nothing new starts there from now on. If a job cannot be saved, the nodes are resumed. A job is left alone unless
    its owner has declared that it can be saved or requeued.
    """
    with connect() as control:
        found = control.drain(nodes, spanning=spanning, leave_others=leave_others, dry_run=dry_run)
        if not no_wait or dry_run:
            found = _followed(control, found)
    return Answer(found if as_json else tuple(_shown(found)), as_json, exit_code=_exit_code(found))


def resume(nodes: Nodes, as_json: AsJson = False) -> Answer:
    """Resume nodes that `glean drain` has emptied. A node that was drained by other means is left alone."""
    with connect() as control:
        found = _followed(control, control.resume(nodes))
    return Answer(found if as_json else tuple(_shown(found)), as_json, exit_code=_exit_code(found))


def _followed(control: Client, asked: DrainRow) -> DrainRow:
    """Wait until the drain is over, and return its final state. After Ctrl-C the drain continues."""
    try:
        return render.progress("draining", _standings(control, asked), _counts)
    except KeyboardInterrupt:
        if asked.task != "dry run":
            render.remark(f"the {asked.task} of {_names(asked)} continues without this program; see `glean nodes`")
        raise


def _counts(row: DrainRow) -> tuple[int, int]:
    return sum(job.at_first - job.left for job in row.jobs), sum(job.at_first for job in row.jobs)


def _standings(control: Client, asked: DrainRow) -> Iterator[DrainRow]:
    """Yield the state of the drain until it is over. Each reason for waiting is reported once."""
    yield asked
    if asked.ended_s is not None:
        return
    last_reason = ""
    for seen in control.follow_drain(asked.id):
        reason = "" if seen.ended_s is not None else seen.said or _waits_for(seen)
        if reason not in {"", last_reason}:
            render.remark(reason)
            last_reason = reason
        yield seen


def _waits_for(seen: DrainRow) -> str:
    """Return the message that the drain waits for jobs that must not be disturbed, or "" if there are none."""
    others = [job for job in seen.jobs if job.deed == "wait" and job.gone_s is None]
    if not others or seen.task != "drain":
        return ""
    return f"{_how_many(others)} not touched; {_ends(others)}"


def _how_many(others: list[DrainedJob]) -> str:
    return "1 job of others is" if len(others) == 1 else f"{len(others)} jobs of others are"


def _ends(others: list[DrainedJob]) -> str:
    """Return the message with the time until which these jobs can run."""
    ends_s = [job.until_s for job in others]
    if None in ends_s:
        return f"it is not known when {'it ends' if len(others) == 1 else 'they end'}"
    last_s = max(end_s for end_s in ends_s if end_s is not None)
    return f"{'it ends' if len(others) == 1 else 'they end'} at {moment(last_s)} at the latest"


def _exit_code(found: DrainRow) -> int:
    if found.ended_s is None:
        return 0
    return 0 if found.phase in _GOOD or (found.phase == "looked" and not found.said) else 1


def _shown(found: DrainRow) -> Iterator[Table | str]:
    if found.jobs:
        yield Table.of(
            found.jobs,
            {
                "JOB": "job", "USER": "user", "NODES": lambda job: ",".join(job.nodes),
                "WHAT HAPPENS TO IT": _what, "GONE": lambda job: moment(job.gone_s),
                "AT THE LATEST": lambda job: moment(job.until_s),
            },
            right=("GONE", "AT THE LATEST"),
        )  # fmt: skip
    yield _outcome(found)


def _what(job: DrainedJob) -> str:
    return _DEEDS.get(job.deed, job.deed) + (f" ({job.at_first} jobs)" if job.at_first > 1 else "")


def _outcome(found: DrainRow) -> str:
    names, said = _names(found), f": {found.said}" if found.said else ""
    others = [job for job in found.jobs if job.deed == "wait" and job.gone_s is None]
    match found.phase:
        case "empty":
            left = f" except for jobs that must not be touched ({_how_many(others)} left)" if others else ""
            took_s = (found.ended_s or found.asked_s) - found.asked_s
            return f"{names}: empty{left} after {took_s:.0f} s{said}"
        case "looked":
            waits = f"; {_how_many(others)} not touched, {_ends(others)}" if others else ""
            verdict = f"could not be drained{said}" if found.said else f"could be drained{waits}"
            return f"{names} {verdict}. Nothing was done"
        case "refused":
            return f"{names}: not {'set back' if found.task == 'resume' else 'drained'}{said}"
        case "resumed":
            return f"{names}: in use again"
        case _:
            return f"{names}: {found.phase}{said}"


def _names(found: DrainRow) -> str:
    return ", ".join(found.nodes)
