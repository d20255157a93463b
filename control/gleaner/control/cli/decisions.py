"""The verbs `why`, which explains the state of a job, and `explain`, which shows a decision."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import typer
import yaml

from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import PIPE_WIDTH, moment
from gleaner.control.input_errors import one_line
from gleaner.control.models.decisions import DecisionRow
from gleaner.control.models.jobs import JobDetail
from gleaner.control.states import WAITING, State

Decision = Annotated[
    int, typer.Argument(metavar="DECISION", min=1, help="The decision's number, as `glean why` shows it.")
]


_BECAME = {"start": "started", "victim": "chosen to free what it holds", "hold": "held", "migrate": "moved"}
_DECIDED = {"start": "released", "claim": "released before all others", "hold": "held"}


def why(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's number, or slurm:4711 for a job of Slurm.")],
    as_json: AsJson = False,
) -> Answer:
    """Explain why a job waits, with the last decision about it."""
    kind, number = _which(job)
    subject = f"{kind} {number}"
    with connect() as control:
        detail = control.job(int(number)) if kind == "job" else None
        last = next(iter(control.decisions(subject, limit=1)), None)
    if detail is not None and last is not None and not _is_of_now(last, detail):
        last = None
    said = about_slurm_job(subject, last) if detail is None else about_job(detail, last)
    if as_json:
        return Answer({"subject": subject, "why": said, "decision": last.id if last else None}, as_json)
    return Answer(one_line(said) + (f" (glean explain {last.id})" if last else ""))


def explain(decision: Decision, as_json: AsJson = False) -> Answer:
    """Show the input and the outcome of a decision."""
    with connect() as control:
        found = control.decision(decision)
    return Answer(found if as_json else _explained(found), as_json)


def _is_of_now(last: DecisionRow, detail: JobDetail) -> bool:
    """Return True if the decision concerns the job's current slice or wait, or ended the previous slice."""
    before = detail.attempts if detail.job.state in WAITING else detail.attempts[:-1]
    return not before or last.at_s > before[-1].claimed_s  # a start is decided at the time of its claim


def about_job(detail: JobDetail, last: DecisionRow | None) -> str:
    """Return the reason for the state of a job of our queue."""
    row, name = detail.job, f"job {detail.job.id}"
    if row.state is State.COMPLETE:
        return f"{name} has ended: {row.outcome}."
    unsaved = f" Its last slice was lost: {detail.unsaved_because}." if detail.unsaved_because and not row.held else ""
    if row.state is not State.RUNNING:
        said = f"{name} is {row.state} and waits: {detail.waits_because}.{unsaved}"
        return said + (f" {_said(last, name)}" if last else "")
    slice_ = detail.attempts[-1]
    if detail.not_saved_because:
        unsaved += f" It could not be saved so far: {detail.not_saved_because}."
    said = f"{name} runs on {row.node} since {moment(slice_.claimed_s)}.{unsaved}"
    if last is None:
        return f"{said} It fitted the free cores and memory of an agent there. No decision about it is recorded."
    return f"{said} {_said(last, name)}"


def about_slurm_job(subject: str, last: DecisionRow | None) -> str:
    """Return the reason for the state of a Slurm job, if Gleaner decided on it."""
    if last is None:
        return f"{subject}: Gleaner has made no decision about it that you are allowed to see."
    return f"{subject}: {_said(last, subject)}"


def _said(decision: DecisionRow, subject: str) -> str:
    """Return the decision about this job as a sentence."""
    was = "It was" if decision.acted else "Without the dry run it would have been"
    said = f"{was} {_became(decision, subject)} at {moment(decision.at_s)}"
    because = decision.answer.get("because")
    reason = cast("Mapping[str, object]", because).get(subject) if isinstance(because, dict) else None
    return f"{said}: {reason}." if reason else f"{said} by the policy {decision.policy}."


def _became(decision: DecisionRow, subject: str) -> str:
    """Return the answer for this job.

    One decision about owners' jobs contains a separate answer for each of many jobs.
    """
    decided = cast("Sequence[Mapping[str, Any]]", decision.answer.get("decisions") or ())
    name = subject.removeprefix("slurm ")
    if any(name in each["victims"] for each in decided):
        return _BECAME["victim"]
    verdicts = [str(each["verdict"]) for each in decided if each["job"] == name]
    return _DECIDED[verdicts[0]] if verdicts else _BECAME.get(decision.kind, decision.kind)


def _which(job: str) -> tuple[str, str]:
    found = re.fullmatch(r"(?:(job|slurm)[: ])?([1-9][0-9]{0,14}|(?<=slurm.)[1-9][0-9_+.]{0,39})", job)
    if found is None:
        raise BadInput(f"JOB must be a job's number, or slurm:NUMBER for one of Slurm's, found {job!r}")
    return found[1] or "job", found[2]


def _explained(found: DecisionRow) -> str:
    """Return the decision as YAML, which users know from campaign files."""
    facts = {
        "decision": f"{found.id}, {found.kind}, by the policy {found.policy}",
        "when": moment(found.at_s),
        "acted": "carried out" if found.acted else "a dry run: nothing was done",
        "about": list(found.subjects),
        "decided from": found.given,
        "answer": found.answer,
    }
    return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=PIPE_WIDTH).rstrip()
