"""One pass over the queue: what is old or too long goes, in small pieces, and only while this program leads."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, func, select
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.queue import decisions, jobs, logs, queries, retention
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import NotLeading
from gleaner.control.queue.retention import DAY_S
from gleaner.control.queue.tables import EVENT, LOG, TOKEN
from gleaner.control.settings import QueueSettings, Settings, StorageSettings


@pytest.fixture
def state(queue_engine: Engine, tmp_path: Path) -> ControlState:
    """A program that leads, and keeps everything for 10 days."""
    queue = QueueSettings(keep_days=10)
    settings = Settings(queue=queue, storage=StorageSettings(folder=tmp_path))
    return ControlState(settings, queue_engine, FolderStorage(tmp_path), leads_until_s=math.inf)


@pytest.fixture
def queue(queue_engine: Engine) -> QueueHarness:
    return QueueHarness(queue_engine)


def prune(state: ControlState, now_s: float) -> None:
    retention.remove_old_rows(state.engine, state.writing, state.settings, now_s)


def rows(queue: QueueHarness) -> dict[str, int]:
    with queue.engine.connect() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (LOG, EVENT, TOKEN)
        }


def wrote(queue: QueueHarness, agent: str, lines: int) -> int:
    """A Running job with a log so long."""
    job = queue.job()
    queue.claim_one(agent)
    for first in range(0, lines, 1000):
        queue.log(job, 1, first, *(f"line {first + n}" for n in range(min(1000, lines - first))))
    return job


@pytest.mark.slow
def test_after_the_days_to_keep_only_the_jobs_themselves_are_left(queue: QueueHarness, state: ControlState) -> None:
    queue.agent("a")
    old = [wrote(queue, "a", 3) for _ in range(50)]
    for job in old:
        queue.record_completion(job, 1)
    queue.agent("idle")
    queue.record_deregistration("idle")
    prune(state, queue.now_s + 9 * DAY_S)
    assert rows(queue) == {"log": 3 * len(old), "event": 3 * len(old), "token": 2}
    queue.now_s += 11 * DAY_S
    young = wrote(queue, "a", 2)
    queue.record_completion(young, 1)
    prune(state, queue.now_s)
    assert rows(queue) == {"log": 2, "event": 3, "token": 1}
    assert [agent.name for agent in queue.look(queries.agent_rows, now_s=queue.now_s)] == ["a"]
    assert {queue.row(job).outcome for job in old} == {"succeeded"}


def test_a_removed_job_loses_its_log_and_events_at_the_next_pass_and_others_keep_theirs(
    queue: QueueHarness, state: ControlState
) -> None:
    removed, other = wrote(queue, queue.agent("a"), 3), wrote(queue, "a", 3)
    for job in (removed, other):
        queue.record_completion(job, 1)
    with transaction(queue.engine) as db:
        retention.remove_job(db, removed)
    prune(state, queue.now_s)
    assert rows(queue) == {"log": 3, "event": 3, "token": 1}
    assert queue.events(other) == ["submit", "claim", "succeed"]


def test_of_many_events_the_first_and_the_newest_are_shown_and_kept_and_only_a_change_makes_one(
    queue: QueueHarness, state: ControlState
) -> None:
    job, other = queue.job(), queue.job()
    for priority in (*range(1, 601), 600):
        with transaction(queue.engine) as db:
            jobs.set_priority(db, job, priority, now_s=queue.now_s)
    with transaction(queue.engine) as db:
        jobs.set_priority(db, other, 1, now_s=queue.now_s)
    shown = queue.look(queries.job_detail, job).events
    assert [event.detail for event in shown] == [
        "",
        *(f"from {n} to {n + 1}" for n in (*range(49), *range(150, 600))),
    ]
    prune(state, queue.now_s)
    assert queue.look(queries.job_detail, job).events == shown
    assert rows(queue)["event"] == len(shown) + 2


def test_a_program_that_leads_no_more_stops_after_what_it_has_begun(queue: QueueHarness, state: ControlState) -> None:
    queue.record_completion(wrote(queue, queue.agent("a"), 7000), 1)
    queue.now_s += 11 * DAY_S
    state.leads_until_s = 1.0
    state.steady_clock = lambda: float(rows(queue)["log"] < 7000)
    with pytest.raises(NotLeading):
        prune(state, queue.now_s)
    assert rows(queue)["log"] == 7000 - 2 * logs.REMOVED


def decide(queue: QueueHarness, **given: str) -> int:
    told: dict[str, Any] = {"kind": DecisionKind.HOLD, "policy": "entitlements", "answer": {}, "acted": False}
    return queue.do(decisions.record, subjects={"slurm 1": None}, given=given, now_s=queue.now_s, **told)


def test_of_decisions_that_take_too_much_together_the_oldest_go_however_few_they_are(
    queue: QueueHarness, state: ControlState
) -> None:
    words = random.Random(1).randbytes(300_000).hex()  # 300 kB, however well it is packed
    numbers = [decide(queue, w=words) for _ in range(6)]
    state.settings = state.settings.model_copy(
        update={"queue": state.settings.queue.model_copy(update={"keep_decisions_mib": 1})}
    )
    prune(state, queue.now_s)
    assert [each.id for each in queue.look(decisions.latest, "slurm 1", 9)] == numbers[:2:-1]
