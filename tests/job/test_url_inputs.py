"""Inputs from URLs: stored by the first agent that fetches them, and the same bytes for every slice and job."""

import asyncio
import dataclasses
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
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
    CredentialGiven,
    FetchRules,
    InputFetched,
    ReturnReason,
    StoredInput,
    UrlInput,
)
from gleaner.agent.reporting.client import ControlRefused, ControlSilent
from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.fetch import Fetched, NodeFull
from gleaner.agent.transfer.process import PermanentFailure, TemporaryFailure, TransferStopped

RULES = FetchRules(allowed=("https://data/",), largest_bytes=2**30, total_s=60, silent_s=60)
ONE = UrlInput(name="a.lhe", url="https://data/a.lhe")


@dataclass
class World:
    """An agent, a web server whose file may change, and control's memory of one submission and group."""

    place: Path
    storage: FolderStorage
    content: bytes = b"first"
    fetches: list[str] = field(default_factory=list)
    secret: CredentialGiven | Exception = field(default_factory=CredentialGiven)
    shown: list[Credential | None] = field(default_factory=list[Credential | None])
    """The credential of each fetch."""
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
        return UrlInputs(self.place, self.storage, SystemClock(), self.fetch, self.fix_input, self.ask_credential)

    def ask_credential(self, _job: int, _attempt: int, _name: str) -> CredentialGiven:
        if isinstance(self.secret, Exception):
            raise self.secret
        return self.secret

    def fetch(self, url: str, into: Path, **given: Any) -> Fetched:
        into.write_bytes(self.content)
        self.fetches.append(url)
        self.shown.append(given["credential"])
        if (error := self.fails()) is not None:
            raise error
        return Fetched(len(self.content), "")

    def fix_input(self, job: int, attempt: int, given: InputFetched) -> StoredInput | None:
        if self.silent:
            self.silent -= 1
            raise ControlSilent("away")
        if given.is_broken:  # it looks, and agrees
            self.storage.set_aside(input_key("g", given.content))
            del self.fixed[given.name], self.stored[given.content]
            return None
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
def world(tmp_path: Path) -> World:
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
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


def test_another_submission_fetches_a_file_anew_unless_its_digest_was_given(world: World) -> None:
    world.settle(ONE)
    world.fixed.clear()
    world.content = b"second"
    assert world.read(world.settle(ONE, job=8, submission=2)) == b"second"
    assert len(world.fetches) == 2
    world.content = b"first"
    given = ONE.model_copy(update={"sha256": f"sha256:{hashlib.sha256(b'first').hexdigest()}"})
    for submission in (3, 4):
        world.fixed.clear()
        settled = world.settle(given, job=9, submission=submission)
    assert world.read(settled) == b"first"
    assert len(world.fetches) == 3


def test_control_is_asked_for_an_input_once_for_all_jobs_of_a_submission(world: World) -> None:
    asked: list[tuple[int, str]] = []
    world.agent.fix_input = lambda job, attempt, given: (
        asked.append((job, given.name)) or world.fix_input(job, attempt, given)
    )
    again = ONE.model_copy(update={"name": "again.lhe", "into_job": True})
    for job in range(7, 17):
        assert world.read(world.settle(ONE, again, job=job)) == b"first"
    assert asked == [(7, "a.lhe"), (7, "a.lhe"), (7, "again.lhe")], "before it is stored, after that, and by its name"
    assert len(world.fetches) == 1


def test_what_was_fetched_and_is_gone_is_fetched_anew(world: World) -> None:
    given = ONE.model_copy(update={"sha256": f"sha256:{hashlib.sha256(b'first').hexdigest()}"})
    for submission in (1, 2):
        world.settle(given, submission=submission)
        world.fixed.clear()
    assert len(world.fetches) == 1
    world.stored.clear()  # nobody needed it, and it was removed
    world.storage.delete(world.storage.keys("inputs")[0])
    assert world.read(world.settle(given, submission=3)) == b"first"
    assert len(world.fetches) == 2


def test_what_the_group_has_is_not_stored_again(world: World) -> None:
    world.settle(ONE)
    (key,) = world.storage.keys("inputs")
    other = UrlInput(name="b.lhe", url="https://data/b.lhe")
    assert world.read(world.settle(other, agent=world.another())) == b"first"
    assert world.storage.keys("inputs") == [key]


def test_inputs_that_are_stored_are_left_alone(world: World) -> None:
    (stored,) = world.settle(ONE).inputs
    assert world.settle(stored).inputs == (stored,)
    assert len(world.fetches) == 1


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


def test_what_is_broken_in_the_storage_is_reported_and_fetched_anew_by_the_next_attempt(
    world: World, tmp_path: Path
) -> None:
    node = Node(tmp_path / "work", world.storage)
    node.context = dataclasses.replace(node.context, url_inputs=world.agent)
    (settled,) = world.settle(ONE).inputs
    (key,) = world.storage.keys("inputs")
    for pack in (tmp_path / "storage" / key).glob("*pack*"):
        pack.write_bytes(bytes(pack.stat().st_size))
    event = asyncio.run(launched(make_executor(node.context, assigned(settled, job=8))))
    assert isinstance(event, lifecycle.NotStarted)
    assert event.why is ReturnReason.INPUT_UNREACHABLE
    assert event.detail.startswith("the input a.lhe is not whole in the storage: ")
    assert event.detail.endswith("; the next attempt fetches it anew")
    event = asyncio.run(launched(make_executor(node.context, assigned(ONE, job=9))))
    assert isinstance(event, lifecycle.Started)


def test_an_input_that_only_this_node_finds_broken_is_no_reason_to_fetch_it_anew(world: World, tmp_path: Path) -> None:
    node = Node(tmp_path / "work", world.storage)
    (settled,) = world.settle(ONE).inputs
    assert isinstance(settled, StoredInput)
    swapped = settled.model_copy(update={"digest": f"sha256:{'0' * 64}"})
    agent = dataclasses.replace(world.agent, fix_input=lambda *_: swapped)
    node.context = dataclasses.replace(node.context, url_inputs=agent)
    event = asyncio.run(launched(make_executor(node.context, assigned(swapped))))
    assert isinstance(event, lifecycle.NotStarted)
    assert event.why is ReturnReason.INPUT_MISSING


def test_nothing_is_fetched_for_a_job_that_cannot_run_here(world: World, tmp_path: Path) -> None:
    node = Node(tmp_path / "work", world.storage)
    node.context = dataclasses.replace(node.context, url_inputs=world.agent, images_allowed=("other/*",))
    for more, why in (({}, "IMAGE_REFUSED"), ({"mounts": ("/opt/not-there",)}, "MOUNT_MISSING")):
        plain = assigned(ONE)
        assignment = plain.model_copy(update={"spec": plain.spec.model_copy(update=more)})
        event = asyncio.run(launched(make_executor(node.context, assignment)))
        assert isinstance(event, lifecycle.NotStarted)
        assert event.why is ReturnReason[why]
        node.context = dataclasses.replace(node.context, images_allowed=("*",))
    assert world.fetches == []


def test_a_job_waits_for_no_other_jobs_fetch_at_the_agents_end(world: World) -> None:
    fetching, may_end = threading.Event(), threading.Event()

    def hang() -> None:
        fetching.set()
        assert may_end.wait(60)

    world.fails = hang
    first = threading.Thread(target=world.settle, args=(ONE,))
    first.start()
    assert fetching.wait(60)
    stop = threading.Event()
    stop.set()
    with pytest.raises(NotStaged):
        world.agent.settle(assigned(ONE, job=8), stop)
    may_end.set()
    first.join()


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


def test_each_fetch_asks_anew_for_the_groups_secret(world: World) -> None:
    world.secret = CredentialGiven(url="https://data/", value=SecretStr("t0ken"))
    failure(world, TemporaryFailure("busy"))
    world.secret, world.fails = CredentialGiven(), lambda: None
    world.settle(ONE)
    assert world.shown == [Credential("https://data/", "t0ken"), None]


def test_an_attempt_that_is_not_current_any_more_fetches_nothing(world: World) -> None:
    world.secret = ControlRefused(409, "attempt 2 is the latest")
    with pytest.raises(NotStaged, match="attempt 2 is the latest"):
        world.settle(ONE)
    assert world.fetches == []
