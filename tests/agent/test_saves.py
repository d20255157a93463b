"""Saves while a job goes on, workloads that save themselves, and nodes that do not fit; on the real control API."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.agent.control_harness import FAR_S, Control, controlled

from gleaner.agent import agent as runner
from gleaner.agent.agent import Agent
from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageFull
from gleaner.agent.job import job_checkpoints
from gleaner.agent.job_spec import SelfSave
from gleaner.agent.privileged.shim import criu_call
from gleaner.control.queue import agents
from gleaner.control.queue.database import transaction
from gleaner.control.states import Outcome, State

pytestmark = pytest.mark.slow  # whole slices of several agents: half a second of the processor each

OFTEN: dict[str, Any] = {"periodic_saves": "auto", "shortest_period_s": 0.5}
A_SECOND = 1 / 86_400


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """Control thinks that agents are lost all the time, so that the optimal interval is about a second."""
    with controlled(tmp_path, assumed_mtbf_days=A_SECOND) as made:
        yield made


async def lost(control: Control, agent: Agent, job: int) -> None:
    """The agent's node dies after some periodic saves: nobody hears of it again."""
    living = asyncio.create_task(agent.live())
    while not living.done() and not saved(control, job, times=2):
        await asyncio.sleep(0.05)
    assert not living.done()
    living.cancel()
    with suppress(asyncio.CancelledError):
        await living


def saved(control: Control, job: int, *, times: int = 1) -> bool:
    """Return True if control has been told of so many checkpoints of this slice."""
    return any(checkpoint.number >= times for checkpoint in control.job(job).checkpoints)


def notice_the_loss(control: Control) -> None:
    with transaction(control.state.engine) as db:
        for name in agents.overdue(db, now_s=control.now_s + 60):
            agents.expire(db, name, now_s=control.now_s + 60, losses_until_held=3)
    control.runtime.kill_all()


def test_a_job_whose_node_dies_goes_on_from_its_last_periodic_save_and_its_log_has_each_line_once(
    control: Control,
) -> None:
    job = control.submit("500")
    control.clock.run(lost(control, control.agent("a1", lives_s=FAR_S, **OFTEN), job))
    assert control.job(job).job.state is State.RUNNING
    notice_the_loss(control)
    assert control.job(job).job.state is State.SAVED
    control.live(control.agent("a2", lives_s=30, periodic_saves=False))
    detail = control.job(job)
    assert detail.job.outcome is Outcome.SUCCEEDED
    attempt, number = str(detail.attempts[-1].restored_from).split("/")
    assert attempt == "1"
    assert int(number) >= 2
    control.in_order(job, 500)


def test_an_agents_final_save_follows_its_periodic_ones(control: Control) -> None:
    job = control.submit("700")
    agent = control.agent("a1", lives_s=FAR_S, **OFTEN)
    control.once(lambda: saved(control, job), lambda: control.end_soon(agent, computes_s=1))
    control.live(agent)
    assert control.job(job).job.state is State.SAVED
    control.live(control.agent("a2", lives_s=30, periodic_saves=False))
    detail = control.job(job)
    assert detail.job.outcome is Outcome.SUCCEEDED
    assert int(str(detail.attempts[-1].restored_from).split("/")[1]) >= 2
    control.in_order(job, 700)


def test_what_is_to_be_written_as_a_whole_once_more_is_saved_before_the_end_and_shared_at_the_end(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_checkpoints, "LONGEST_CHAIN", 2)
    monkeypatch.setattr(runner, "early_save_s", lambda began_s, *, exit_by_s: began_s)
    job = control.submit("100000")
    chains: list[list[object]] = []
    for attempt in (1, 2, 3):
        agent = control.agent(f"a{attempt}", lives_s=FAR_S, periodic_saves=False)
        end_soon = partial(control.end_soon, agent, computes_s=1)
        if attempt < 3:
            control.once_it_counts(end_soon)
        else:  # it goes on from the second of a chain
            control.once(lambda: any(one.attempt == 3 for one in control.job(job).checkpoints), end_soon)
        control.live(agent)
        chains.append([chain_of(control, key) for key in control.storage.keys(f"jobs/{job}/attempt-{attempt}")])
    assert chains == [["1/1"], ["1/1"], ["3/1", "3/1"]]


def chain_of(control: Control, key: str) -> object:
    """Return which checkpoints this one may share files with."""
    manifest = json.loads((control.folder / "storage" / key / "manifest.json").read_text())
    return manifest["facts"]["chain"]


def test_a_workload_that_saves_itself_goes_on_anew_from_its_folder_and_its_log_goes_on(control: Control) -> None:
    job = control.submit("450", saves_itself=SelfSave(signal="SIGUSR1"))
    control.live(control.brief("a1", **OFTEN))
    assert control.job(job).job.state is State.SAVED
    assert control.runtime.signals == ["SIGUSR1"]
    control.live(control.agent("a2", lives_s=30))
    assert control.job(job).job.outcome is Outcome.SUCCEEDED
    assert control.runtime.restores == 0
    control.in_order(job, 450)


def test_a_job_whose_saves_hang_in_slices_of_a_minute_is_held_with_the_reason(control: Control) -> None:
    """The save at the end finds the reason before the agent has to be gone."""
    control.runtime.unsavable = "it has a process that cannot be stopped"
    control.runtime.unsavable_after_s = criu_call.STOP_WITHIN_S
    job = control.submit("100000")
    for name in ("a1", "a2"):
        assert not control.job(job).job.held
        control.live(control.agent(name, lives_s=60, kill_wait_s=10, node={"node": f"on-{name}"}, early_saves=False))
    detail = control.job(job)
    assert detail.job.held
    assert detail.unsaved_because == "cannot be saved: it has a process that cannot be stopped"


def test_what_saves_cost_is_told_and_comes_back_to_the_nodes_next_agent(control: Control, tmp_path: Path) -> None:
    job = control.submit("100000")
    first = control.agent("a1", lives_s=FAR_S, **OFTEN)
    control.once(lambda: saved(control, job), lambda: control.end_soon(first, computes_s=1))
    control.live(first)
    second = control.brief("a2")
    control.live(second)
    assert second._context.estimates._node.saves
    assert control.job(job).job.state is State.SAVED


class FullStorage(FolderStorage):
    """It takes nothing."""

    def draft(self, key: str, before: FolderArchive | None = None) -> AbstractContextManager[FolderDraft]:
        raise StorageFull("the storage is full")


def test_jobs_that_the_storage_does_not_take_go_back_for_its_fault_and_their_node_is_not_to_blame(
    control: Control,
) -> None:
    control.storage = FullStorage(control.folder / "storage")
    saved, result = control.submit("100000"), control.submit("50")
    agent = control.agent("a1", lives_s=FAR_S, periodic_saves=False)
    control.once(lambda: len(control.log(result).lines) > 50, lambda: control.end_soon(agent, computes_s=3))
    assert control.live(agent) == 0
    for job, what in (
        (saved, "no checkpoint was published before the agent's end"),
        (result, "its result was not stored before the agent's end"),
    ):
        (attempt,) = control.job(job).attempts
        assert attempt.detail == f"storage fault: {what}: the storage is full"
        assert control.job(job).job.state is State.NEW
