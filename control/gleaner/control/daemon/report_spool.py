"""Reports that agents left in the storage because control was away when the agents ended.

These reports count like those that arrive by HTTP, through the same transitions with the same guards. They are
processed at every tick, before silent agents are given up, so that no saved attempt counts as lost.

A report in `agents/NAME/reports` is deleted only after it was accepted, or if it is readable but came too late. A
report that is unreadable, for example because another version wrote it, is moved to `agents/NAME/unread`, with the
reason beside it. A report without the proof of its agent is moved there as well, because another user might have
written the file.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from gleaner.agent.messages import Checkpointed, Completed, DeliveryReport, Deregistration, LogLines, Returned, Saved
from gleaner.agent.reporting.spooled_report import REPORTS, UNREAD, SpooledReport
from gleaner.agent.system import atomic
from gleaner.agent.system.untrusted import storable
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import do_each
from gleaner.control.queue import agents, attempt_reports, deliveries, tokens
from gleaner.control.queue.attempt_reports import AttemptReport
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.errors import Conflict, Invalid, NotFound

log = structlog.get_logger()

_ATTEMPT = re.compile(r"^/jobs/(\d{1,18})/attempts/(\d{1,9})/(checkpointed|saved|completed|return|log)$")
_FAREWELL = re.compile(r"^/agents/([A-Za-z0-9._-]+)/farewell$")


def take_spooled_reports(state: ControlState, now_s: float) -> int:
    """Process the reports of all agents, in order for each agent. Return the number of accepted reports.

    A report that came too late is dropped, as its agent would have dropped it. An unreadable report is set aside, so
    that it does not block others. If the storage fails, the remaining reports of that agent stay where they are.

    Raises `QueueBusy` or `SchemaMismatch` if the database fails. Then all remaining reports wait for the next call.
    """
    taken: list[int] = []
    try:
        folders = sorted((state.settings.storage.folder / "agents").glob(f"*/{REPORTS}"))
    except OSError as error:
        log.warning("the storage cannot be searched for reports", reason=str(error))
        return 0

    def take(folder: Path) -> None:
        agent = folder.parent.name
        try:
            with snapshot(state.engine) as db:
                hashes = tokens.agents_hashes(db, storable(agent))
            taken.extend(_take_or_set_aside(state, agent, file, hashes, now_s) for file in _in_order(folder))
        except OSError as error:
            log.warning("reports on the storage have to wait", agent=agent, reason=str(error))
        else:
            with suppress(OSError):  # an agent was writing a file there, and an admin might want to see it
                folder.rmdir()

    do_each(folders, take)
    return sum(taken)


def _in_order(folder: Path) -> list[Path]:
    """Return the reports in the folder from the oldest to the newest, even while the agent is writing more of them.

    A single listing might miss a file that appears during the listing, and yet show a later file. A second listing
    shows all files that existed when the first one ended.
    """
    last = max(folder.glob("[0-9]*.json"), default=None)
    return [] if last is None else [file for file in sorted(folder.glob("[0-9]*.json")) if file <= last]


def _take_or_set_aside(state: ControlState, agent: str, file: Path, hashes: Sequence[str], now_s: float) -> int:
    taken = 0
    try:
        report = SpooledReport.model_validate_json(file.read_bytes())
        if not any(map(report.is_proved_by, hashes)):
            raise ValueError(f"it has no proof that {agent} has written it")
        taken = _take(state, agent, report, now_s)
    except Conflict as refusal:
        log.info("a report that waited on the storage came too late", agent=agent, reason=str(refusal))
    except (ValueError, KeyError, NotFound, Invalid) as error:
        _set_aside(state, file, str(error).splitlines()[0] if str(error) else type(error).__name__)
        return 0
    file.unlink(missing_ok=True)
    return taken


def _set_aside(state: ControlState, file: Path, reason: str) -> None:
    """Set aside an unreadable report, with the reason."""
    place = file.parent.parent / UNREAD
    name = f"{file.stem}-{state.random_bytes(4).hex()}"
    atomic.make_folders(place)
    atomic.write(place / f"{name}.reason", f"{storable(reason)}\n".encode())
    file.rename(place / f"{name}.json")
    atomic.sync_folder(place)
    log.warning("a report on the storage cannot be read: it is kept", file=str(place / f"{name}.json"), reason=reason)


def _take(state: ControlState, agent: str, left: SpooledReport, now_s: float) -> int:
    settings = state.settings
    if found := _FAREWELL.match(left.path):
        if found.group(1) != agent:
            raise ValueError(f"{agent} left a deregistration of {found.group(1)}")
        with state.writing() as db:
            agents.record_deregistration(
                db,
                agent,
                Deregistration.model_validate_json(left.body),
                now_s=now_s,
                faults_until_excluded=settings.rounds.failures_until_excluded,
                rates=settings.rates.rules,
            )
        return 1
    if left.path == f"/agents/{agent}/delivered":
        ended, tries = DeliveryReport.model_validate_json(left.body), settings.outputs.tries
        with state.writing() as db:
            deliveries.record_end(db, ended, agent=agent, most_failures=tries, now_s=now_s)
        return 1
    if not (found := _ATTEMPT.match(left.path)):
        raise ValueError(f"{left.path} is no report")
    job, attempt, kind = int(found.group(1)), int(found.group(2)), _REPORTS[found.group(3)]
    report, most_bytes = kind.model_validate_json(left.body), settings.queue.log_bytes_per_job
    with state.writing() as db:
        attempt_reports.record_report(db, job, attempt, report, agent=agent, most_log_bytes=most_bytes, now_s=now_s)
    log.info("took a report that waited on the storage", agent=agent, report=left.path)
    return 1


_REPORTS: dict[str, type[AttemptReport]] = {
    "checkpointed": Checkpointed,
    "saved": Saved,
    "completed": Completed,
    "return": Returned,
    "log": LogLines,
}
