"""A control program for tests of the agent: the real API, called without a network, and the queue behind it.

Control, the agent and its containers live in the virtual time of one clock (`fake_clock`).
"""

import asyncio
import hashlib
import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import event
from tests.agent.fake_clock import FakeClock
from tests.agent.pretended_runtime import PretendedRuntime
from tests.databases import new_sqlite

from gleaner.agent.agent import Agent
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.common.randomness import Randomness
from gleaner.agent.job_spec import JobSpec, SelfSave
from gleaner.agent.node.facts import node_facts
from gleaner.agent.reporting.client import ControlClient
from gleaner.agent.settings import SiteAgentSettings
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
from gleaner.control.models.jobs import JobDetail, LogPage, Submission
from gleaner.control.queue import agents, jobs, logs, queries
from gleaner.control.queue.database import connect, snapshot, transaction
from gleaner.control.queue.usage_cache import UsageCache
from gleaner.control.settings import QueueSettings, RateSettings, Settings, StorageSettings

FAR_S = 60.0
"""An agent that lives so long ends for another reason."""
LOOKS_EVERY_S = 0.05


class ControlTransport(httpx.BaseTransport):
    """The way to an app without a network. The app has an event loop of its own, in a thread of its own, as in life.

    The caller's turn lasts until it has the answer: for the clock, control answers at once.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = httpx.ASGITransport(app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.is_away = False  # nobody listens there

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("connection refused")
        return asyncio.run_coroutine_threadsafe(self._answer(request), self._loop).result()

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._app.handle_async_request(request)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

    def close(self) -> None:
        """Do nothing: more than one client uses it."""

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass
class Control:
    """A control program without its live loop: the API, and the queue behind it."""

    state: ControlState
    storage: FolderStorage
    folder: Path
    clock: FakeClock
    runtime: PretendedRuntime
    transport: ControlTransport

    @property
    def now_s(self) -> float:
        """The time, seconds since the epoch."""
        return self.clock.true_s

    def serve(self) -> None:
        self.transport.is_away = False

    def go_away(self) -> None:
        self.transport.is_away = True

    def live(self, agent: Agent) -> int:
        """Let the agent live to its end; return its exit status."""
        return self.clock.run(agent.live())

    def submit(self, *command: str, group: str = "physics", **given: Any) -> int:
        """Submit a job that counts; the arguments are those of `job_spec`."""
        rules = jobs.SubmissionRules(0)
        with transaction(self.state.engine) as db:
            done = jobs.submit(db, job_spec(*command, **given), group=group, rules=rules, now_s=self.now_s)
        return done.jobs[0]

    def agent(
        self,
        name: str,
        *,
        lives_s: float,
        node: Mapping[str, object] = MappingProxyType({}),
        kill_wait_s: float = 0.0,
        **settings: object,
    ) -> Agent:
        end_s = self.now_s + lives_s
        token = expect_agent(self.state, name, end_s=end_s)
        given = {
            "control_url": "http://control",
            "storage": self.folder / "storage",
            "work": self.folder / "work",
            "margin_s": 4.0,
            "early_saves": False,
            "shortest_slice_s": 1.0,
            "idle_s": 0.5,
            "images_allowed": ("counter", "missing", "impossible"),
        } | settings
        (self.folder / "work").mkdir(exist_ok=True)
        told = SiteAgentSettings.model_validate(given)
        able = self.runtime.facts()
        return Agent(
            name=name,
            end_s=end_s,
            slurm_job=None,
            settings=told,
            client=ControlClient(
                urls=told.control_url,
                name=name,
                token=token,
                ca_file=None,
                timeout_s=told.request_timeout_s,
                transport=self.transport,
            ),
            runtime=self.runtime,
            storage=self.storage,
            facts=node_facts(able, cpus=4, memory_mib=1000).model_copy(update=dict(node)),
            way=able.way,
            can_save=able.checkpoints,
            kill_wait_s=kill_wait_s,
            clock=self.clock,
            randomness=Randomness(random.Random(name)),
        )

    def brief(self, name: str, *, computes_s: float = 1.0, **given: Any) -> Agent:
        """An agent that has to save so long after its first job has begun to count; its end is far until then."""
        agent = self.agent(name, lives_s=FAR_S, **given)
        self.once_it_counts(lambda: self.end_soon(agent, computes_s=computes_s))
        return agent

    def end_soon(self, agent: Agent, *, computes_s: float = 0.0) -> None:
        """Slurm brings its end forward."""
        left_s = computes_s + agent.settings.margin_s + agent.kill_wait_s
        agent.end_earlier(self.now_s + left_s, kill_wait_s=agent.kill_wait_s)

    def once_it_counts(self, do: Callable[[], object], *, jobs: int = 1) -> None:
        """Do it when so many jobs have begun to count."""
        self.once(lambda: self.runtime.counting() >= jobs, do)

    def once(self, happened: Callable[[], object], do: Callable[[], object]) -> None:
        """Do it when that has happened, unless the agent's run is over before."""

        def wait() -> None:
            while not happened():
                self.clock.pause(LOOKS_EVERY_S)
            do()

        self.clock.start(wait)

    def job(self, number: int) -> JobDetail:
        with snapshot(self.state.engine) as db:
            return queries.job_detail(db, number)

    def whole_log(self, number: int) -> LogPage:
        with snapshot(self.state.engine) as db:
            return logs.read_all(db, number, 0, 10_000)

    def log(self, number: int) -> LogPage:
        with snapshot(self.state.engine) as db:
            return logs.read(db, number, 0, 10_000)

    def in_order(self, job: int, goal: int) -> None:
        """Each line of the job's output is there once."""
        lines = list(self.log(job).lines)
        assert lines == ["start", *(f"event {number}" for number in range(1, goal + 1))]


@contextmanager
def controlled(tmp_path: Path, *, assumed_mtbf_days: float = 30) -> Iterator[Control]:
    clock = FakeClock()
    state = control_state(tmp_path, assumed_mtbf_days=assumed_mtbf_days)
    state.clock, state.steady_clock = lambda: clock.true_s, clock.monotonic_s
    state.usage_cache = UsageCache(clock.monotonic_s)
    transport = ControlTransport(create_app(state))
    try:
        yield Control(state, FolderStorage(tmp_path / "storage"), tmp_path, clock, PretendedRuntime(clock), transport)
    finally:
        transport.stop()


def job_spec(*command: str, saves_itself: SelfSave | None = None, **given: Any) -> Submission:
    """Return one job that counts; `given` are fields of its specification."""
    usual = {"name": "count", "image": "counter", "memory_mib": 64, "retries": 0}
    words = ("save-itself" if saves_itself else "count", *command)
    return Submission(job=JobSpec.model_validate(usual | given | {"command": words, "saves_itself": saves_itself}))


def expect_agent(state: ControlState, name: str, *, end_s: float) -> str:
    """Have control know of an agent that is to come; return its token."""
    token = f"secret-of-{name}"
    with transaction(state.engine) as db:
        digest = hashlib.sha256(token.encode()).hexdigest()
        agents.expect(db, name=name, end_s=end_s, token_hash=digest, now_s=state.clock())
    return token


def control_state(tmp_path: Path, *, assumed_mtbf_days: float = 30) -> ControlState:
    """Return the state of a control program that leads, with a queue and a storage in this folder."""
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    settings = Settings(
        queue=QueueSettings(url="sqlite:///unused", lease_s=4, heartbeat_s=0.5),
        storage=StorageSettings(folder=tmp_path / "storage"),
        rates=RateSettings(assumed_mtbf_days=assumed_mtbf_days),
    )
    engine = connect(new_sqlite(tmp_path))
    event.listen(engine, "connect", lambda file, _record: file.execute("PRAGMA synchronous=OFF"))  # no power cut here
    return ControlState(settings, engine, storage, leads_until_s=math.inf)
