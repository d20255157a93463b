"""Reports that agents left on the storage because control was away at their end.

They count like reports that arrive by HTTP: through the same moves, with the same guards. The live loop takes them
before it looks for silent agents, so that nothing that was saved is given up as lost.

What is in `agents/NAME/reports` is deleted only when it has counted, or was understood and came too late. What cannot
be understood, for example because another version wrote it, goes to `agents/NAME/unread`, with the reason beside it.
"""

import json
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from pydantic import BaseModel, ValidationError

from gleaner.agent.durable import make_folders, sync_folder, write_whole
from gleaner.agent.protocol import Checkpointed, Completed, Farewell, GivenBack, LogLines, Saved
from gleaner.control.queue import agents, logs, moves, rates, reads
from gleaner.control.queue.errors import Invalid, QueueBusy, Refused, SchemaMismatch, Unknown
from gleaner.control.site import Site

log = structlog.get_logger()

UNREAD = "unread"
"""The folder, beside an agent's `reports`, of those that could not be read."""
_ATTEMPT = re.compile(r"^/jobs/(\d{1,18})/attempts/(\d{1,9})/(checkpointed|saved|completed|given-back|log)$")
_FAREWELL = re.compile(r"^/agents/([A-Za-z0-9._-]+)/farewell$")


class _Left(BaseModel):
    """One file, as the agent wrote it."""

    path: str
    body: str


def take_left_reports(site: Site, now_s: float) -> int:
    """Bring the reports of all agents into the queue, each agent's in its order; how many counted.

    One that came too late is dropped, as its agent would have dropped it. One of which nothing can be made is set
    aside, and so keeps no other from counting. Where the database fails, the rest stays for the next time; where the
    storage does, that agent's rest.
    """
    taken = 0
    try:
        folders = sorted((site.settings.storage.folder / "agents").glob("*/reports"))
    except OSError as error:
        log.warning("the storage cannot be searched for reports", reason=str(error))
        return taken
    for folder in folders:
        agent = folder.parent.name
        try:
            for file in _in_order(folder):
                taken += _take_or_set_aside(site, agent, file, now_s)
        except OSError as error:
            log.warning("reports on the storage have to wait", agent=agent, reason=str(error))
        except (QueueBusy, SchemaMismatch) as error:
            log.warning("reports on the storage have to wait", agent=agent, reason=str(error))
            return taken
        _remove_empty(folder)
    return taken


def _in_order(folder: Path) -> list[Path]:
    """The reports there. None is listed without those before it, although the agent may be writing just now.

    One listing may miss a file that appears during it, yet show a later one; a second listing shows all that were
    there when the first ended.
    """
    last = max(folder.glob("[0-9]*.json"), default=None)
    return [] if last is None else [file for file in sorted(folder.glob("[0-9]*.json")) if file <= last]


def _take_or_set_aside(site: Site, agent: str, file: Path, now_s: float) -> int:
    taken = 0
    try:
        taken = _take(site, agent, file, now_s)
    except (Refused, _TooLate) as refusal:
        log.info("a report that waited on the storage came too late", agent=agent, reason=str(refusal))
    except (ValidationError, ValueError, KeyError, RecursionError, Unknown, Invalid) as error:
        _set_aside(file, str(error).splitlines()[0] if str(error) else type(error).__name__)
        return 0
    file.unlink(missing_ok=True)
    return taken


def _set_aside(file: Path, reason: str) -> None:
    """Keep what nobody could make anything of: the file is moved before anything else counts as done with it."""
    place = file.parent.parent / UNREAD
    name = f"{file.stem}-{secrets.token_hex(4)}"
    make_folders(place)
    write_whole(place / f"{name}.reason", f"{reason}\n".encode(), draft=place / f".{name}.reason")
    file.rename(place / f"{name}.json")
    sync_folder(place)
    log.warning("a report on the storage cannot be read: it is kept", file=str(place / f"{name}.json"), reason=reason)


class _TooLate(Exception):
    """Lines of output that nobody would be shown."""


def _take(site: Site, agent: str, file: Path, now_s: float) -> int:
    left = _Left.model_validate(json.loads(file.read_text()))
    with site.writing() as db:
        if found := _FAREWELL.match(left.path):
            if found.group(1) != agent:
                raise ValueError(f"{agent} left a farewell of {found.group(1)}")
            rounds, farewell = site.settings.rounds, Farewell.model_validate_json(left.body)
            end_s = agents.farewell(
                db,
                agent,
                farewell,
                now_s=now_s,
                failures_until_avoided=rounds.failures_until_avoided,
                avoid_s=rounds.avoid_s,
            )
            if end_s is not None:
                rates.left(db, agent, vanished=False, rules=site.settings.rates.rules, now_s=now_s)
                rates.learn_end(db, agent, farewell)
            return 1
        if not (found := _ATTEMPT.match(left.path)):
            raise ValueError(f"{left.path} is no report")
        job, attempt = int(found.group(1)), int(found.group(2))
        if reads.attempt_agent(db, job, attempt) != agent:
            raise ValueError(f"attempt {attempt} of job {job} is not of {agent}")
        if found.group(3) == "log":
            lines = LogLines.model_validate_json(left.body)
            try:
                logs.append(db, job, attempt, lines, most_bytes=site.settings.queue.log_bytes_per_job)
            except Invalid as error:
                raise _TooLate(str(error)) from error
        else:
            model, act = _MOVES[found.group(3)]
            report = model.model_validate_json(left.body)
            if act(db, job, attempt, report, now_s=now_s):
                rates.learn(db, job, attempt, report, rules=site.settings.rates.rules, now_s=now_s)
    log.info("took a report that waited on the storage", agent=agent, report=left.path)
    return 1


_MOVES: dict[str, tuple[type[Any], Callable[..., bool]]] = {
    "checkpointed": (Checkpointed, moves.checkpointed),
    "saved": (Saved, moves.saved),
    "completed": (Completed, moves.completed),
    "given-back": (GivenBack, moves.given_back),
}


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # a file that an agent was writing; an admin may want to see it
