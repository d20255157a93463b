"""`glean check` runs a program as a job that is saved, restored and saved again by the agents, and then cancelled.

`next_step` decides from control's facts about the job. `_watch` carries the decision out and asks control again.
"""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, assert_never

import typer

from gleaner.agent.common.quantities import duration_s, in_words, size
from gleaner.agent.messages import ReturnReason
from gleaner.client import Client, ClientError, ErrorKind
from gleaner.control.campaigns import campaign_file as campaigns
from gleaner.control.campaigns.given import Given
from gleaner.control.cli import render, submit
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput, parsed
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.jobs import AttemptRow, Ending, JobDetail
from gleaner.control.states import Outcome, State

GONE_ON = frozenset({Ending.SAVED, Ending.SUCCEEDED})
"""The endings of a slice that has computed."""
PRIORITY = 1_000_000
"""The highest priority, because a check takes a minute and a person waits for it."""
FAILED_FOR_S = 60.0
"""The longest wait after a failed save, counted from the time at which the program was to be saved."""
LONGER = 3
"""The factor by which the time before the next save grows if the program has not started when it is to be saved."""
SPARE_S = 600
"""The longest computing time of a check's job, in addition to ten times `--after`, if the job is not cancelled."""


class CanBeSaved(StrEnum):
    """The answer to the question whether the program can be saved here."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Act(StrEnum):
    """The next thing to do with the job."""

    WAIT = "wait"
    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class CheckEnd:
    """The end of a check."""

    verdict: CanBeSaved
    reason: str


def next_step(detail: JobDetail, *, ran_s: float, after_s: float) -> Act | CheckEnd:
    """Return the next action on the job of a check.

    `ran_s` is the time for which its current slice has run, and `after_s` the time after which a slice is saved.
    """
    row, slices = detail.job, detail.attempts
    if again := next((each for each in slices if each.restored_from and each.ending in GONE_ON), None):
        return CheckEnd(CanBeSaved.YES, _told(detail, again))
    if row.state is State.COMPLETE:
        return _ended(detail)
    if row.state is State.RUNNING:
        due_s = after_s * LONGER ** sum(each.why is ReturnReason.UNSTARTED for each in slices)
        if (why := detail.not_saved_because) and (
            why.startswith(ReturnReason.UNSAVABLE) or ran_s >= due_s + FAILED_FOR_S
        ):
            return CheckEnd(CanBeSaved.NO, why)
        return Act.HOLD if ran_s >= due_s and not row.held else Act.WAIT
    last = slices[-1] if slices else None
    if detail.unsaved_because is not None and (last is None or last.why is not ReturnReason.TOO_LATE):
        return CheckEnd(CanBeSaved.NO, detail.unsaved_because)
    if last is not None and last.restored_from and last.why is ReturnReason.CANNOT_RESTORE:
        return CheckEnd(CanBeSaved.NO, f"it was saved, but not restored on {last.node}: {last.detail}")
    if row.held and (last is None or last.why in {ReturnReason.IMAGE_MISSING, ReturnReason.IMAGE_REFUSED}):
        return CheckEnd(CanBeSaved.UNKNOWN, f"it did not start: {detail.waits_because}")
    return Act.RELEASE if row.held else Act.WAIT


def out_of_patience(detail: JobDetail, *, waited_s: float) -> CheckEnd:
    """Return the end of a check in which nothing has happened for `waited_s` seconds."""
    row, waited = detail.job, in_words(waited_s)
    if row.state is not State.RUNNING:
        return CheckEnd(CanBeSaved.UNKNOWN, f"no agent took it within {waited}: {detail.waits_because}")
    if detail.spec.saves_itself is not None and row.held:
        how = detail.spec.saves_itself
        said = f"it got {how.signal}, but did not exit with code {how.exit_code} within {waited}"
        return CheckEnd(
            CanBeSaved.NO, f"{said}: let the program save itself and then exit (see docs/user/campaigns.md)"
        )
    return CheckEnd(CanBeSaved.UNKNOWN, detail.not_saved_because or f"its save did not end within {waited}")


def _told(detail: JobDetail, again: AttemptRow) -> str:
    """Return the result of saving and restoring. `again` is the slice that continued from a checkpoint."""
    first = next((each for each in detail.attempts if each.ending == Ending.SAVED), detail.attempts[0])
    stored = f" ({size(detail.checkpoints[-1].size_bytes)})" if detail.checkpoints else ""
    end = "saved again" if again.ending == Ending.SAVED else "ended with exit code 0"
    saved = f"saved on {first.node} in {first.save_s:.1f} s{stored}"
    return f"{saved}, restored on {again.node} in {again.restore_s:.1f} s, {end}"


def _ended(detail: JobDetail) -> CheckEnd:
    row = detail.job
    last = detail.attempts[-1] if detail.attempts else None
    if row.outcome is Outcome.CANCELLED or last is None:
        return CheckEnd(CanBeSaved.UNKNOWN, "its job was cancelled")
    said = f"{detail.failed_because}; `glean logs {row.id}` shows what it printed"
    if row.outcome is Outcome.FAILED and last.restored_from:
        return CheckEnd(CanBeSaved.NO, f"it was saved and restored, and then failed: {said}")
    if row.outcome is Outcome.FAILED:
        return CheckEnd(CanBeSaved.UNKNOWN, f"it failed before it was saved: {said}")
    more = "give it more to do, or save it sooner with --after"
    return CheckEnd(CanBeSaved.UNKNOWN, f"it ended after {last.compute_s:.1f} s, before it was saved: {more}")


def check(
    context: typer.Context,
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="The container image.")],
    command: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND", help="The command.")] = None,
    *,
    after: Annotated[str, typer.Option(metavar="10s", help="How long it runs before it is saved.")] = "10s",
    timeout: Annotated[str, typer.Option(metavar="10m", help="Give up after this time without any progress.")] = "10m",
    cpus: submit.Cpus = None,
    memory_mib: submit.Memory = None,
    env: submit.Environment = None,
    input: submit.Inputs = None,
    mount: submit.Mounts = None,
    saves_itself: submit.SavesItself = None,
    group: submit.Group = None,
    as_json: AsJson = False,
) -> Answer:
    """See whether a program can be saved here: run, save, restore it.

    It runs for some seconds as a job, which is saved, restored and saved again, and then cancelled. One line reports
    whether it can be saved or, if not, the reason and the remedy. The exit code is 0 only if it can be saved.
    """
    after_s, patience_s = _seconds("--after", after), _seconds("--timeout", timeout)
    limit = f"{10 * after_s + SPARE_S}s"
    of_its_own = {"name": "check", "priority": PRIORITY, "retries": 0, "compute_limit": limit}
    given = submit.read_options(context.params | of_its_own)
    if command:
        given["command"] = Given(tuple(command), "the command")
    files = submit.pack_inputs(given, Path())
    wanted = campaigns.submission(given)
    with connect() as control, _ended_as_by_ctrl_c():
        made = submit.submit_with_inputs(control, wanted, files)
        if made.warning:
            render.remark(made.warning)
        (job,) = made.jobs
        try:
            found = _watch(control, job, after_s=after_s, patience_s=patience_s)
        finally:
            with suppress(ClientError):  # it has already ended, or control is away and the compute limit ends it
                control.cancel(job)
    value = {"image": image, "job": job, "verdict": found.verdict, "reason": found.reason}
    exit_code = int(found.verdict is not CanBeSaved.YES)
    return Answer(value if as_json else in_one_line(image, found), as_json, exit_code=exit_code)


def in_one_line(image: str, found: CheckEnd) -> str:
    """Return the outcome in one line of text.

    >>> in_one_line("lab:1", CheckEnd(CanBeSaved.NO, "cannot be saved: it has a POSIX message queue: use a pipe"))
    'no: lab:1 cannot be saved here: it has a POSIX message queue: use a pipe'
    """
    reason = found.reason.removeprefix(f"{ReturnReason.UNSAVABLE}: ")
    match found.verdict:
        case CanBeSaved.YES:
            return f"yes: {image} can be saved here: {reason}"
        case CanBeSaved.NO:
            return f"no: {image} cannot be saved here: {reason}"
        case CanBeSaved.UNKNOWN:
            return f"not known: {reason}"
        case _:
            assert_never(found.verdict)


@contextmanager
def _ended_as_by_ctrl_c() -> Generator[None]:
    """Let a closed terminal or SIGTERM end the check as Ctrl-C does, so that its job is cancelled."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _seconds(option: str, text: str) -> int:
    found = parsed(option, duration_s, text)
    if not found:
        raise BadInput(f"{option} must be at least a second, found {text}")
    return found


def _watch(control: Client, job: int, *, after_s: float, patience_s: float) -> CheckEnd:
    standing: object = None
    since_s = running_s = time.monotonic()
    for detail in control.watch(job):
        row, now_s = detail.job, time.monotonic()
        if standing != (now := (row.state, row.attempt, row.held)):
            if not (row.state is State.RUNNING and row.held):  # a hold during a slice does not begin a new slice
                running_s = now_s
            standing, since_s = now, now_s
            render.remark(_news(detail))
        match next_step(detail, ran_s=now_s - running_s, after_s=after_s):
            case CheckEnd() as found:
                return found
            case Act.WAIT if now_s - since_s >= patience_s:
                return out_of_patience(detail, waited_s=now_s - since_s)
            case Act.WAIT:
                pass
            case Act.HOLD | Act.RELEASE as act:
                try:
                    (control.hold if act is Act.HOLD else control.release)(job)
                except ClientError as error:
                    if error.kind is not ErrorKind.CONFLICT:  # it has ended in the meantime
                        raise
    return CheckEnd(CanBeSaved.UNKNOWN, "its job has ended")


def _news(detail: JobDetail) -> str:
    """Return the current state of a check's job in one line."""
    row = detail.job
    if row.state is State.RUNNING:
        return f"job {row.id} is to be saved" if row.held else f"job {row.id} runs on {row.node}"
    waits = f": {detail.waits_because}" if detail.waits_because else ""
    return f"job {row.id} is {row.state}{waits}"
