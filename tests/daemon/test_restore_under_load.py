"""A queue that is put back again and again while agents work and publish: nothing is lost, nothing completes twice."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.effort import examples
from tests.queue.queue_harness import SPENT, QueueHarness

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError, checkpoint_key, output_key
from gleaner.agent.messages import Assignment, Checkpoint, Checkpointed, Completed, Output, Returned, ReturnReason
from gleaner.control.daemon import putting_back
from gleaner.control.queue import attempt_reports, backup
from gleaner.control.queue.attempt_reports import AttemptReport
from gleaner.control.queue.database import connect
from gleaner.control.queue.errors import Conflict, NotFound, NotYours
from gleaner.control.states import State

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
STEPS = 20
AGENTS = 3
ROUNDS = examples(20)


@dataclass
class Site:
    """A queue and a storage. What was published and which ends the queue has taken is noted beside them."""

    harness: QueueHarness
    storage: FolderStorage
    control: threading.Lock = field(default_factory=threading.Lock)
    """Held by whoever calls control, and by the restore all the time."""
    published: threading.Condition = field(default_factory=threading.Condition)
    tries: int = 0
    """The number of archives that agents have published, or tried to."""
    hold_at: float = inf
    """From this number of tries on, agents stop between two archives until a restore has begun."""
    holding: int = 0
    """The number of agents that wait for this."""
    steps: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict[int, dict[tuple[int, int], int]])
    """By job, and by attempt and number, the step of each archive that is whole in the storage."""
    taken: Counter[int] = field(default_factory=Counter[int])
    """The number of times that the queue has taken a job's end as news."""
    is_over: threading.Event = field(default_factory=threading.Event)

    def publish(self, key: str, work: Assignment, number: int, step: int, **facts: object) -> str:
        try:
            with self.storage.draft(key) as draft:
                draft.add("folder.tar", [b"content"])
                digest = draft.publish({"step": step, **facts}).digest
            with self.published:
                self.steps.setdefault(work.job, {})[work.attempt, number] = step
        finally:
            with self.published:
                self.tries += 1
                self.published.notify_all()
        return digest

    def hold(self) -> None:
        """Wait, between two archives, until the next restore has begun. The agent does not hold control here."""
        with self.published:
            self.holding += 1
            self.published.notify_all()
            self.published.wait_for(lambda: self.tries < self.hold_at or self.is_over.is_set())
            self.holding -= 1

    def reached(self, job: int) -> int:
        """The step from which the queue would let the job go on; all of them for one that is Complete."""
        if self.harness.row(job).state is State.COMPLETE:
            return STEPS
        if not (kept := self.harness.named(job)):
            return 0
        key = checkpoint_key(job, *max(kept))
        return int(str(self.storage.open(key, self.storage.stored_digest(key)).facts["step"]))

    def whole(self, job: int) -> int:
        """The step that the job must have after a restore: that of the newest archive, if an attempt runs.

        An attempt of before a restore may have published the newest one, with fewer steps than another attempt's.
        """
        row = self.harness.row(job)
        newer = [one for one in self.steps.get(job, {}) if row.state is State.RUNNING and one[0] >= row.attempt]
        return self.steps[job][max(newer)] if newer else self.reached(job)

    def report(self, agent: str, work: Assignment, report: AttemptReport) -> None:
        is_news = self.harness.do(
            attempt_reports.record_report,
            work.job,
            work.attempt,
            report,
            agent=agent,
            most_log_bytes=1,
            now_s=self.harness.now_s,
        )
        self.taken[work.job] += is_news and isinstance(report, Completed)


def run_agent(site: Site, agent: str) -> None:
    """Work as an agent does: go on from the checkpoint, publish before each report, and stop an attempt if told to."""
    while not site.is_over.is_set():
        with site.control:
            site.harness.record_heartbeat(agent)
            jobs = site.harness.claim(agent, cpus=1, most=1)
        for work in jobs:
            with suppress(Conflict, NotYours, NotFound):  # the attempt is another one's by now
                try:
                    run_attempt(site, agent, work)
                except StorageError:  # another agent had the same number, and was first
                    with site.control:
                        site.report(agent, work, Returned(why=ReturnReason.STORAGE_FAULT))


def run_attempt(site: Site, agent: str, work: Assignment) -> None:
    step = 0
    if (start := work.checkpoint) is not None:
        archive = site.storage.open(checkpoint_key(work.job, start.attempt, start.number), start.digest)
        step = int(str(archive.facts["step"]))
    for number, done in enumerate(range(step + 1, STEPS), 1):
        digest = site.publish(checkpoint_key(work.job, work.attempt, number), work, number, done)
        if site.control.acquire(blocking=False):
            try:
                made = Checkpoint(attempt=work.attempt, number=number, digest=digest, size_bytes=7, log_lines=0)
                site.report(agent, work, Checkpointed(checkpoint=made, slice=SPENT))
            finally:
                site.control.release()
        site.hold()
    digest = site.publish(output_key(work.job, work.attempt), work, STEPS, STEPS, job=work.job, exit_code=0)
    with site.control:
        site.report(agent, work, Completed(exit_code=0, output=Output(digest=digest, size_bytes=7), slice=SPENT))


def restore(site: Site, jobs: Sequence[int], file: Path) -> None:
    """Put the backup back while agents go on. What was whole before must count."""
    with site.published:
        assert site.published.wait_for(lambda: site.holding, 60), "an agent is within an attempt"
    with site.control:
        with site.published:
            before, whole = site.tries, {job: site.whole(job) for job in jobs}
            site.hold_at = inf
            site.published.notify_all()
        url = site.harness.engine.url.render_as_string(hide_password=False)
        putting_back.put_back(url, file, file.parent / "storage", replace=True, now_s=site.harness.now_s)
        site.harness.engine = connect(url)
        with site.published:
            assert site.published.wait_for(lambda: site.tries > before, 60), "agents publish meanwhile"
        lost = {job: (step, reached) for job, step in whole.items() if (reached := site.reached(job)) < step}
        assert lost == {}


@pytest.fixture
def site(queue_engine: Engine, tmp_path: Path) -> Iterator[Site]:
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    site = Site(QueueHarness(queue_engine), storage)
    yield site
    with site.published:
        site.is_over.set()
        site.published.notify_all()
    site.harness.engine.dispose()


def test_of_what_agents_publish_around_restores_nothing_is_lost_and_nothing_completes_twice(
    site: Site, tmp_path: Path
) -> None:
    jobs: list[int] = []
    names = [site.harness.agent(f"a{number}") for number in range(AGENTS)]
    agents = [threading.Thread(target=run_agent, args=(site, name), daemon=True) for name in names]
    for agent in agents:
        agent.start()
    for number in range(ROUNDS):
        with site.control:
            jobs += [site.harness.job(cpus=1) for _ in range(2)]
            backup.back_up(site.harness.engine, file := tmp_path / f"backup-{number}")
            with site.published:
                site.hold_at = site.tries + 12  # fewer than the two new jobs still publish
        restore(site, jobs, file)
    give_up = threading.Timer(600, site.is_over.set)
    give_up.start()
    while not site.is_over.is_set():
        with site.control:
            site.harness.now_s += 60  # pauses end
            waits = [job for job in jobs if site.harness.row(job).state is not State.COMPLETE]
        if not waits:
            site.is_over.set()
        else:
            with site.published:
                site.published.wait(1)
    give_up.cancel()
    for agent in agents:
        agent.join(60)
    assert waits == []
    assert all(site.taken[job] <= 1 for job in jobs)
