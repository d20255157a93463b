"""A control program for tests of the agent: the real API on a real socket, and the queue behind it."""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import uvicorn
from tests.agent.pretended_runtime import PretendedRuntime
from tests.databases import new_sqlite

from gleaner.agent.agent import Agent
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.messages import SelfSave
from gleaner.agent.node.facts import node_facts
from gleaner.agent.reporting.client import ControlClient
from gleaner.agent.runtime.pushed_images import IMAGE_PART, image_key
from gleaner.agent.settings import AgentSettings
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
from gleaner.control.models.images import ImageRow
from gleaner.control.models.jobs import JobDetail, JobSpec, LogPage, SelfSaveSpec, Submission
from gleaner.control.queue import agents, images, jobs, logs, queries
from gleaner.control.queue.database import connect, snapshot, transaction
from gleaner.control.settings import QueueSettings, RateSettings, Settings, StorageSettings

FAR_S = 60.0
"""An agent that lives so long ends for another reason."""


@dataclass
class Control:
    """A control program without its live loop: the API on a real socket, and the queue behind it."""

    state: ControlState
    storage: FolderStorage
    folder: Path
    runtime: PretendedRuntime = field(default_factory=PretendedRuntime)
    server: uvicorn.Server | None = None
    port: int = 0
    failed: list[BaseException] = field(default_factory=list[BaseException])
    """Exceptions that were raised outside the test's own thread."""
    over: threading.Event = field(default_factory=threading.Event)
    """The test has ended: what it waited for beside is waited for no longer."""

    def serve(self) -> None:
        config = uvicorn.Config(create_app(self.state), host="127.0.0.1", port=self.port, log_level="error")
        self.server = uvicorn.Server(config)
        threading.Thread(target=self.server.run, daemon=True).start()
        while not self.server.started:
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def go_away(self) -> None:
        assert self.server
        self.server.should_exit = True
        time.sleep(0.3)

    def submit(
        self,
        *command: str,
        image: str = "counter",
        retries: int = 0,
        saves_itself: SelfSave | None = None,
        compute_limit_s: int | None = None,
    ) -> int:
        spec = JobSpec(
            name="count",
            image=image,
            command=("save-itself" if saves_itself else "count", *command),
            memory_mib=64,
            retries=retries,
            saves_itself=saves_itself and SelfSaveSpec(**saves_itself.model_dump()),
            compute_limit_s=compute_limit_s,
        )
        with transaction(self.state.engine) as db:
            return jobs.submit(
                db, Submission(job=spec), group="physics", rules=jobs.SubmissionRules(0), now_s=time.time()
            ).jobs[0]

    def push_image(self, name: str, content: bytes) -> str:
        """An image of the group's, as control stores it, with this content; its id."""
        image_id = f"sha256:{hashlib.sha256(content).hexdigest()}"
        with self.storage.draft(image_key(image_id)) as draft:
            draft.add(IMAGE_PART, [content])
            published = draft.publish({})
        row = ImageRow(
            name=name,
            group="physics",
            image_id=image_id,
            architecture="amd64",
            size_bytes=len(content),
            pushed_s=time.time(),
            pusher="alice",
            jobs=0,
        )
        with transaction(self.state.engine) as db:
            images.put(db, row, digest=published.digest, group_bytes=10**9)
        return image_id

    def agent(
        self,
        name: str,
        *,
        lives_s: float,
        node: Mapping[str, object] = MappingProxyType({}),
        kill_wait_s: float = 0.0,
        **settings: object,
    ) -> Agent:
        token = f"secret-of-{name}"
        with transaction(self.state.engine) as db:
            digest = hashlib.sha256(token.encode()).hexdigest()
            agents.expect(db, name=name, end_s=time.time() + lives_s, token_hash=digest, now_s=time.time())
        given = {
            "control_url": f"http://127.0.0.1:{self.port}",
            "storage": self.folder / "storage",
            "work": self.folder / "work",
            "margin_s": 4.0,
            "early_saves": False,
            "shortest_slice_s": 1.0,
            "idle_s": 0.5,
            "request_timeout_s": 10.0,  # what is not answered at once on a busy machine is no reason to leave
            "images_allowed": ("counter", "missing", "impossible"),
        } | settings
        (self.folder / "work").mkdir(exist_ok=True)
        told = AgentSettings.model_validate(given)
        able = self.runtime.facts()
        return Agent(
            name=name,
            end_s=time.time() + lives_s,
            slurm_job=None,
            settings=told,
            client=ControlClient(
                url=told.control_url, name=name, token=token, ca_file=None, timeout_s=told.request_timeout_s
            ),
            runtime=self.runtime,
            storage=self.storage,
            facts=node_facts(able, cpus=4, memory_mib=1000).model_copy(update=dict(node)),
            way=able.way,
            can_save=able.checkpoints,
            kill_wait_s=kill_wait_s,
        )

    def brief(self, name: str, *, computes_s: float = 1.0, **given: Any) -> Agent:
        """An agent that has to save so long after its first job has begun to count; its end is far until then."""
        agent = self.agent(name, lives_s=FAR_S, **given)
        self.once_it_counts(lambda: self.end_soon(agent, computes_s=computes_s))
        return agent

    def end_soon(self, agent: Agent, *, computes_s: float = 0.0) -> None:
        """Slurm brings its end forward."""
        left_s = computes_s + agent.settings.margin_s + agent.kill_wait_s
        agent.end_earlier(time.time() + left_s, kill_wait_s=agent.kill_wait_s)

    def once_it_counts(self, do: Callable[[], object], *, jobs: int = 1) -> None:
        """Do it when so many jobs have begun to count."""
        self.once(lambda: self.runtime.counting() >= jobs, do)

    def once(self, happened: Callable[[], object], do: Callable[[], object]) -> None:
        """Do it when that has happened: how long that takes on a busy machine is nobody's to know."""

        def wait() -> None:
            try:
                while not happened():
                    if self.over.wait(0.02):
                        return
                do()
            except BaseException as error:
                self.failed.append(error)
                raise

        threading.Thread(target=wait, daemon=True).start()

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
    storage_folder = tmp_path / "storage"
    FolderStorage(storage_folder).prepare()
    engine = connect(new_sqlite(tmp_path))
    settings = Settings(
        queue=QueueSettings(url="sqlite:///unused", lease_s=4, heartbeat_s=0.5),
        storage=StorageSettings(folder=storage_folder),
        rates=RateSettings(assumed_mtbf_days=assumed_mtbf_days),
    )
    storage = FolderStorage(storage_folder)
    state = ControlState(settings=settings, engine=engine, storage=storage, leads_until_s=math.inf)
    made = Control(state=state, storage=storage, folder=tmp_path)
    made.serve()
    yield made
    made.over.set()
    made.go_away()
    assert not made.failed
