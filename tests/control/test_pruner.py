"""One pass over the queue: what is old or too long goes, in small pieces, and only while this program leads."""

import math
import random
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select
from tests.queue.scene import Scene

from gleaner.agent.storage.folder import FolderStorage
from gleaner.control import pruner
from gleaner.control.pruner import DAY_S, prune
from gleaner.control.queue import decisions, logs, reads
from gleaner.control.queue.decision_tables import DecisionKind
from gleaner.control.queue.tables import EVENT, LOG, TOKEN, TRIMMED
from gleaner.control.settings import QueueSettings, Settings, StorageSettings
from gleaner.control.site import Site


@pytest.fixture
def site(queue_engine: Engine, tmp_path: Path) -> Site:
    """A program that leads, and keeps everything for 10 days and 2500 lines."""
    queue = QueueSettings(keep_days=10, log_lines_per_job=2500)
    settings = Settings(queue=queue, storage=StorageSettings(folder=tmp_path))
    return Site(settings, queue_engine, FolderStorage(tmp_path), leads_until_s=math.inf)


@pytest.fixture
def scene(queue_engine: Engine) -> Scene:
    return Scene(queue_engine)


def rows(scene: Scene) -> dict[str, int]:
    with scene.engine.connect() as connection:
        return {
            table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (LOG, EVENT, TOKEN, TRIMMED)
        }


def wrote(scene: Scene, agent: str, lines: int) -> int:
    """A Running job with a log so long."""
    job = scene.job()
    scene.claim_one(agent)
    for first in range(0, lines, 1000):
        scene.log(job, 1, first, *(f"line {first + n}" for n in range(min(1000, lines - first))))
    return job


@pytest.mark.slow
def test_after_the_days_to_keep_only_the_jobs_themselves_are_left(scene: Scene, site: Site) -> None:
    scene.agent("a")
    old = [wrote(scene, "a", 3) for _ in range(pruner.TRIMMED + 1)]
    for job in old:
        scene.completed(job, 1)
    scene.agent("idle")
    scene.farewell("idle")
    prune(site, scene.now_s + 9 * DAY_S)
    assert rows(scene) == {"log": 3 * len(old), "event": 3 * len(old), "token": 1, "trimmed": 0}
    scene.now_s += 11 * DAY_S
    young = wrote(scene, "a", 2)
    scene.completed(young, 1)
    prune(site, scene.now_s)
    assert rows(scene) == {"log": 2, "event": 3, "token": 1, "trimmed": len(old)}
    assert [agent.name for agent in scene.look(reads.agent_rows, now_s=scene.now_s)] == ["a"]
    assert {scene.row(job).outcome for job in old} == {"succeeded"}


def test_a_running_job_keeps_the_last_lines_of_its_log(scene: Scene, site: Site) -> None:
    job = wrote(scene, scene.agent("a"), 7000)
    prune(site, scene.now_s)
    page = scene.look(logs.read, job, 0, 10_000)
    assert (page.first, len(page.lines), page.lines[0], page.lines[-1]) == (4500, 2500, "line 4500", "line 6999")
    prune(site, scene.now_s)
    assert scene.look(logs.read, job, 0, 10_000) == page


def test_a_program_that_does_not_lead_removes_nothing(scene: Scene, site: Site) -> None:
    wrote(scene, scene.agent("a"), 7000)
    site.leads_until_s = 0.0
    prune(site, scene.now_s)
    assert rows(scene)["log"] == 7000


def test_a_program_that_leads_no_more_stops_after_what_it_has_begun(scene: Scene, site: Site) -> None:
    wrote(scene, scene.agent("a"), 7000)
    site.leads_until_s = 1.0
    site.steady_clock = lambda: float(rows(scene)["log"] < 7000)
    prune(site, scene.now_s)
    assert rows(scene)["log"] == 7000 - pruner.REMOVED


def test_a_queue_that_does_not_answer_is_left_for_the_next_pass(scene: Scene, site: Site) -> None:
    wrote(scene, scene.agent("a"), 7000)
    with scene.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE trimmed RENAME TO elsewhere")
    prune(site, scene.now_s)
    with scene.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO trimmed")
    assert rows(scene)["log"] == 7000
    prune(site, scene.now_s)
    assert rows(scene)["log"] == 2500


def test_old_decisions_are_removed_too(scene: Scene, site: Site) -> None:
    told = {"kind": DecisionKind.HOLD, "policy": "governing", "given": {}, "answer": {}, "acted": False}
    old = scene.do(decisions.record, subjects=["slurm 1"], now_s=scene.now_s, **told)
    scene.now_s += 11 * DAY_S
    young = scene.do(decisions.record, subjects=["slurm 1"], now_s=scene.now_s, **told)
    prune(site, scene.now_s)
    assert [each.id for each in scene.look(decisions.latest, "slurm 1", 9)] == [young]
    assert young > old


def test_of_decisions_that_take_too_much_together_the_oldest_go_however_few_they_are(scene: Scene, site: Site) -> None:
    words = random.Random(1).randbytes(300_000).hex()  # 300 kB, however well it is packed
    told = {"kind": DecisionKind.HOLD, "policy": "governing", "given": {"w": words}, "answer": {}, "acted": False}
    numbers = [scene.do(decisions.record, subjects=["slurm 1"], now_s=scene.now_s, **told) for _ in range(6)]
    site.settings = site.settings.model_copy(
        update={"queue": site.settings.queue.model_copy(update={"keep_decisions_mib": 1})}
    )
    prune(site, scene.now_s)
    assert [each.id for each in scene.look(decisions.latest, "slurm 1", 9)] == numbers[:2:-1]
