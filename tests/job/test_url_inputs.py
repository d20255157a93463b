"""Inputs from URLs: stored by the first agent that fetches them, and the same bytes for every slice and job."""

import asyncio
import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.job.test_launch import Node

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.job import lifecycle
from gleaner.agent.job.control_reporter import make_executor
from gleaner.agent.job.executor import Executor
from gleaner.agent.job.inputs import Inputs, NotStaged, input_key
from gleaner.agent.job.url_inputs import UrlInputs
from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import (
    Assignment,
    FetchRules,
    InputFetched,
    ReturnReason,
    StoredInput,
    UrlInput,
)
from gleaner.agent.reporting.client import ControlRefused, ControlSilent
from gleaner.agent.transfer.process import NodeFull, PermanentFailure, TemporaryFailure, TransferStopped

RULES = FetchRules(allowed=("https://data/",), largest_bytes=2**30, total_s=60, silent_s=60)
ONE = UrlInput(name="a.lhe", url="https://data/a.lhe")


@dataclass
class World:
    """An agent, a web server whose file may change, and control's memory of one submission and group."""

    place: Path
    storage: FolderStorage
    content: bytes = b"first"
    fetches: list[str] = field(default_factory=list)
    fixed: dict[str, StoredInput] = field(default_factory=dict)
    stored: dict[str, InputFetched] = field(default_factory=dict)
    fails: Callable[[], Exception | None] = lambda: None
    silent: int = 0
    unseen: int = 0
    """So often control does not see yet what was stored."""

    def __post_init__(self) -> None:
        self.inputs = Inputs(self.place, self.storage, reserve_bytes=0, clock=SystemClock())
        self.agent = self.another()

    def another(self) -> UrlInputs:
        return UrlInputs(self.place, self.storage, SystemClock(), self.fetch, self.fix_input)

    def fetch(self, one: UrlInput, into: Path, _rules: FetchRules, _stop: threading.Event) -> int:
        into.write_bytes(self.content)
        self.fetches.append(one.url)
        if (error := self.fails()) is not None:
            raise error
        return len(self.content)

    def fix_input(self, job: int, attempt: int, given: InputFetched) -> StoredInput | None:
        if self.silent:
            self.silent -= 1
            raise ControlSilent("away")
        if given.name in self.fixed:
            return self.fixed[given.name]
        if self.unseen and given.digest is not None:
            self.unseen -= 1
            return None
        if given.digest is not None:
            self.storage.open(input_key("g", given.content), given.digest)
            self.stored[given.content] = given
        if given.content not in self.stored:
            return None
        known = self.stored[given.content]
        self.fixed[given.name] = StoredInput.model_validate(known.model_dump() | {"name": given.name})
        return self.fixed[given.name]

    def settle(
        self, *inputs: UrlInput | StoredInput, job: int = 7, submission: int = 1, agent: UrlInputs | None = None
    ) -> Assignment:
        return (agent or self.agent).settle(assigned(*inputs, job=job, submission=submission), threading.Event())

    def read(self, settled: Assignment) -> bytes:
        self.inputs.stage(settled, threading.Event())
        folder = self.inputs.folder(settled)
        assert folder is not None
        content = (folder / settled.inputs[0].name).read_bytes()
        self.inputs.release(settled)
        return content


def assigned(*inputs: UrlInput | StoredInput, job: int = 7, submission: int = 1) -> Assignment:
    spec = JobSpec(name="j", image="i", command=("count", "9"))
    return Assignment(
        job=job, attempt=1, group="g", submission=submission, spec=spec, memory_mib=64, inputs=inputs,
        fetch_rules=RULES,
    )  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, storage: FolderStorage) -> World:
    return World(tmp_path / "node", storage)


def failure(world: World, error: Exception) -> NotStaged:
    world.fails = lambda: error
    with pytest.raises(NotStaged) as caught:
        world.settle(ONE)
    assert "\n" not in str(caught.value)
    assert not list(world.place.iterdir())
    assert world.storage.keys("inputs") == []
    return caught.value


def test_the_first_bytes_count_for_all_slices_and_jobs(world: World) -> None:
    settled = world.settle(ONE)
    assert world.read(settled) == b"first"
    assert world.read(settled) == b"first"
    world.content = b"changed"
    assert world.read(world.settle(ONE, job=8)) == b"first"
    assert world.read(world.settle(ONE, job=9, agent=world.another())) == b"first"
    assert not list(world.place.iterdir())


def test_jobs_that_come_together_fetch_a_file_once(world: World) -> None:
    came = threading.Barrier(4)

    def one(job: int) -> None:
        came.wait(60)
        assert world.read(world.settle(ONE, job=job)) == b"first"

    jobs = [threading.Thread(target=one, args=(job,)) for job in range(1, 5)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(world.fetches) == 1


def test_control_is_asked_once_for_all_jobs_of_a_submission_and_anew_for_another(world: World) -> None:
    asked: list[int] = []
    world.agent.fix_input = lambda job, attempt, given: asked.append(job) or world.fix_input(job, attempt, given)
    for job in range(7, 17):
        assert world.read(world.settle(ONE, job=job)) == b"first"
    assert (asked, len(world.fetches)) == ([7, 7], 1), "before it is stored, and after that"
    world.fixed.clear()
    world.content = b"second"
    assert world.read(world.settle(ONE, job=18, submission=2)) == b"second"


def test_what_the_group_has_is_not_stored_again(world: World) -> None:
    world.settle(ONE)
    (key,) = world.storage.keys("inputs")
    other = UrlInput(name="b.lhe", url="https://data/b.lhe")
    assert world.read(world.settle(other, agent=world.another())) == b"first"
    assert world.storage.keys("inputs") == [key]


def test_a_fetch_that_fails_is_returned_with_its_reason_and_leaves_nothing(world: World) -> None:
    assert failure(world, PermanentFailure("gone")).why is ReturnReason.INPUT_MISSING
    found = failure(world, TemporaryFailure("busy"))
    assert found.why is ReturnReason.INPUT_UNREACHABLE
    assert str(found) == "the input a.lhe: busy"
    assert failure(world, NodeFull("no room")).why is ReturnReason.NODE_LACKS
    assert failure(world, TransferStopped()).why is ReturnReason.UNSTARTED


def test_a_silent_control_is_asked_again_until_the_agent_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gleaner.agent.job.url_inputs.ASK_EVERY_S", 0.01)
    world.silent = world.unseen = 2
    assert world.read(world.settle(ONE)) == b"first"
    world.silent = 10**9
    stop = threading.Event()
    stop.set()
    with pytest.raises(NotStaged) as caught:
        world.another().settle(assigned(ONE), stop)
    assert caught.value.why is ReturnReason.UNSTARTED


def test_what_control_refuses_is_one_line_and_a_full_quota_a_matter_of_time(world: World) -> None:
    def refuse(status: int) -> None:
        raise ControlRefused(status, "the inputs of group g would take 2 GiB")

    for status, why in ((409, ReturnReason.INPUT_UNREACHABLE), (422, ReturnReason.INPUT_MISSING)):
        world.agent.fix_input = lambda *_, status=status: refuse(status)
        with pytest.raises(NotStaged, match=r"the input a\.lhe: the inputs of group g would take 2 GiB") as caught:
            world.settle(ONE)
        assert caught.value.why is why
    assert world.storage.keys("inputs") == []


async def launched(executor: Executor) -> object:
    return await executor.launch()


def test_a_job_starts_with_what_was_fetched_and_is_returned_if_that_fails(world: World, tmp_path: Path) -> None:
    node = Node(tmp_path / "work", world.storage)
    node.context = dataclasses.replace(node.context, url_inputs=world.agent)
    event = asyncio.run(launched(make_executor(node.context, assigned(ONE))))
    assert isinstance(event, lifecycle.Started)
    folder = node.runtime.spec_of(event.container).inputs
    assert folder is not None
    assert (folder / "a.lhe").read_bytes() == b"first"
    executor = make_executor(node.context, assigned(UrlInput(name="b", url="https://data/b"), job=8))
    world.fails = lambda: TemporaryFailure("busy")
    event = asyncio.run(launched(executor))
    assert event == lifecycle.NotStarted(ReturnReason.INPUT_UNREACHABLE, "the input b: busy")
    executor.clean()
    assert len(list((tmp_path / "work").glob("inputs-*"))) == 1
