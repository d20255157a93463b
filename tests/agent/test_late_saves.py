"""Saves that take longer than anybody expected; on the real control API and a real storage."""

import asyncio
import os
import threading
from collections.abc import Sequence

import pytest
from tests.agent.control_harness import FAR_S, Control
from tests.agent.fake_clock import RunIsOver

from gleaner.agent import agent as runner
from gleaner.agent import main
from gleaner.agent.agent import Agent
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.job import lifecycle
from gleaner.agent.job.executor import Executor
from gleaner.agent.messages import NodeRates
from gleaner.agent.runtime.interface import ContainerId
from gleaner.control.queue import node_health, queries
from gleaner.control.queue.database import snapshot
from gleaner.control.states import State

pytestmark = pytest.mark.slow  # whole slices of several agents: half a second of the processor each

TOO_LONG_S = 15.0
"""A save of that length is not done by the end of an agent that ends a few seconds after it began."""


def told(control: Control, agent: Agent) -> NodeRates:
    with snapshot(control.state.engine) as db:
        return node_health.rates_of(db, agent.facts.node)


def ending_of(control: Control, job: int) -> str:
    (attempt,) = control.job(job).attempts
    return f"{attempt.ending}: {attempt.detail}"


def test_on_a_node_that_nobody_has_measured_all_jobs_are_saved_early_and_only_what_came_after_can_be_lost(
    control: Control,
) -> None:
    jobs = [control.submit("100000") for _ in range(3)]
    agent = control.agent("a1", lives_s=FAR_S, early_saves=True)

    def never_again() -> None:
        control.runtime.checkpoint_takes_s = TOO_LONG_S
        control.end_soon(agent)

    control.once_it_counts(lambda: control.end_soon(agent, computes_s=9), jobs=3)
    control.once(lambda: all(control.job(job).checkpoints for job in jobs), never_again)
    control.live(agent)
    for job in jobs:
        detail = control.job(job)
        assert detail.job.state is State.SAVED
        assert [checkpoint.number for checkpoint in detail.checkpoints] == [1]
        assert ending_of(control, job).startswith("returned: too late")


def test_on_a_node_whose_saves_are_known_only_what_was_never_saved_is_saved_early(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first save writes all that a job has: where all that was measured had shared, it would come too late."""
    monkeypatch.setattr(runner, "early_save_s", lambda began_s, *, exit_by_s: began_s)
    old = control.submit("100000")
    control.live(control.brief("a1", early_saves=True, periodic_saves=False))
    new = control.submit("100000")
    agent = control.agent("a2", lives_s=FAR_S, early_saves=True, periodic_saves=False)
    control.once(lambda: bool(control.job(new).checkpoints), lambda: control.end_soon(agent, computes_s=1))
    control.live(agent)
    made = {job: control.storage.keys(f"jobs/{job}/attempt-{attempt}") for job, attempt in ((old, 2), (new, 1))}
    assert (len(made[old]), len(made[new])) == (1, 2)
    (measured,) = agent._context.estimates._own.values()
    assert len(measured) == 2, "what the first one took says nothing of the next"


def test_a_save_that_is_late_uses_the_grace_that_nobody_needs_and_is_lost_only_at_the_end(control: Control) -> None:
    control.runtime.checkpoint_takes_s = 8
    job = control.submit("100000")
    agent = control.brief("a1", kill_wait_s=8)
    control.live(agent)
    assert agent.exit_by_s < control.now_s <= agent.end_s
    assert control.job(job).job.state is State.SAVED


def test_a_save_that_comes_too_late_is_not_held_against_the_job_and_makes_the_next_margin_larger(
    control: Control,
) -> None:
    control.runtime.checkpoint_takes_s = TOO_LONG_S
    job = control.submit("100000")
    agent = control.brief("a1")
    control.live(agent)
    detail = control.job(job)
    assert (detail.job.state, detail.job.held, detail.failures) == (State.NEW, False, 0)
    assert ending_of(control, job) == "returned: too late: no checkpoint was published before the agent's end"
    assert detail.attempts[0].compute_s > 0
    known = told(control, agent)
    assert known.late
    assert len(known.saves) == 1
    next_one = control.agent("a2", lives_s=FAR_S)
    next_one._context.estimates.learn(known)
    assert next_one._context.estimates.is_guess


def test_what_was_returned_is_told_before_the_farewell_and_never_called_unstarted(control: Control) -> None:
    control.runtime.checkpoint_takes_s = control.runtime.remove_takes_s = TOO_LONG_S
    jobs = [control.submit("100000") for _ in range(3)]
    agent = control.agent("a1", lives_s=FAR_S)
    control.once_it_counts(lambda: control.end_soon(agent, computes_s=1), jobs=3)
    control.live(agent)
    assert {ending_of(control, job).partition(":")[2][:9] for job in jobs} == {" too late"}


def test_jobs_that_wait_for_their_save_stand_still(control: Control) -> None:
    control.runtime.checkpoint_takes_s = 2
    jobs = [control.submit("100000") for _ in range(3)]
    agent = control.agent("a1", lives_s=FAR_S, saves_at_once=1)
    control.once_it_counts(lambda: control.end_soon(agent, computes_s=4), jobs=3)
    control.live(agent)
    saves = [attempt.save_s for job in jobs for attempt in control.job(job).attempts]
    assert max(saves) > 2.5 * min(saves), "those that were saved later have waited for it, without computing"
    counted = [len(control.whole_log(job).lines) for job in jobs]
    assert max(counted) == min(counted)


def test_when_time_is_short_no_save_begins_that_would_slow_down_another(control: Control) -> None:
    """Together they would all come too late: they share the storage. One is in time."""
    jobs = [control.submit("100000") for _ in range(3)]
    agent = control.agent("a1", lives_s=FAR_S, saves_at_once=3)
    checkpoint, under_way, seen = control.runtime.checkpoint, list[ContainerId](), list[int]()

    def share(container: ContainerId, draft: FolderDraft) -> None:
        under_way.append(container)
        seen.append(len(under_way))
        control.clock.pause(2 * len(under_way))
        checkpoint(container, draft)
        under_way.remove(container)

    control.runtime.checkpoint = share  # type: ignore[method-assign]
    control.once_it_counts(lambda: control.end_soon(agent, computes_s=0.5), jobs=3)
    control.live(agent)
    assert set(seen) == {1}
    assert [control.job(job).job.state for job in jobs] == [State.SAVED, State.NEW, State.NEW]


def test_a_wall_clock_that_is_set_back_does_not_make_an_agent_late(control: Control) -> None:
    """The true time goes on; what the node shows is an hour too little from the middle of the slice on."""
    job = control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S)

    def set_back() -> None:
        control.end_soon(agent, computes_s=2)
        control.clock.shift_s = -3600.0

    control.once_it_counts(set_back)
    control.live(agent)
    assert control.clock.passed_s < FAR_S
    assert control.now_s <= agent.end_s
    assert control.job(job).job.state is State.SAVED


@pytest.mark.parametrize(("shift_s", "ahead_s"), [(-3600.0, 0.0), (3600.0, 3600.0)], ids=["back", "forward"])
def test_the_later_of_two_clocks_counts(shift_s: float, ahead_s: float) -> None:
    now: dict[str, float] = {"wall": 1000.0, "steady": 50.0}
    clock = SystemClock(wall=lambda: now["wall"], steady=lambda: now["steady"])
    now["wall"] += 10 + shift_s
    now["steady"] += 10
    assert clock.now_s() == 1010 + ahead_s


def test_how_good_the_estimate_of_the_end_was_is_told_and_makes_the_next_margin(control: Control) -> None:
    control.submit("100000")
    control.live(control.brief("a1"))
    control.runtime.checkpoint_takes_s = 3
    second = control.agent("a2", lives_s=FAR_S)
    control.once_it_counts(lambda: control.end_soon(second, computes_s=2))
    control.live(second)
    known = told(control, second)
    assert len(known.errors) == 1, "the first end had no estimate that stood on anything"
    assert known.errors[0] > 2


def test_what_is_stored_in_the_grace_is_reported_before_the_process_ends(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second thread, which ends the process at the latest, must not do so while last words are said."""
    control.runtime.checkpoint_takes_s, control.runtime.remove_takes_s = 8, 2
    job = control.submit("100000")
    agent = control.brief("a1", kill_wait_s=8)
    left: list[float] = []

    def leave(_status: int) -> None:
        left.append(control.now_s)
        raise RunIsOver

    monkeypatch.setattr(os, "_exit", leave)
    control.clock.start(main._exit_in_time, agent)
    control.live(agent)
    assert not left
    assert control.job(job).job.state is State.SAVED
    with snapshot(control.state.engine) as db:
        (row,) = queries.agent_rows(db, now_s=control.now_s)
    assert row.ended_s is not None


@pytest.mark.parametrize(
    "event", [lifecycle.DropAsked(), lifecycle.LimitPassed("it has written 3 TiB")], ids=["drop", "limit"]
)
def test_a_job_that_waits_for_its_early_save_is_killed_before_a_slot_is_free(
    control: Control, monkeypatch: pytest.MonkeyPatch, event: lifecycle.Event
) -> None:
    """It would write on past its limit for as long as the saves before it take."""
    monkeypatch.setattr(runner, "early_save_s", lambda began_s, *, exit_by_s: began_s + 0.2)
    for _ in range(2):
        control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S, early_saves=True, periodic_saves=False, saves_at_once=1)
    killed, over = threading.Event(), threading.Event()
    saving = hanging(control, over)

    def waiting() -> list[Executor]:
        return [job for job in agent._jobs if job.is_saving and job._save_under_way is None]

    async def live() -> None:
        living = asyncio.create_task(agent.live())
        while not (saving.is_set() and waiting()):
            await asyncio.sleep(0.02)
        (job,) = waiting()
        container = job.container
        assert container is not None
        control.once(lambda: control.runtime._processes[container].exited is not None, killed.set)
        job.feed(event)
        assert await asyncio.to_thread(control.clock.wait, killed, TOO_LONG_S)
        assert not over.is_set()
        over.set()
        control.end_soon(agent)
        await living

    control.clock.run(live())


def test_a_job_whose_save_has_begun_is_not_paused_at_the_agents_end(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU's own code in the container would stand still, and the save never end."""
    control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S, periodic_saves=False)
    pause, over, paused = control.runtime.pause, threading.Event(), list[ContainerId]()
    saving = hanging(control, over)

    def listen(container: ContainerId) -> None:
        paused.append(container)
        pause(container)

    monkeypatch.setattr(control.runtime, "pause", listen)

    async def live() -> None:
        living = asyncio.create_task(agent.live())
        (job,) = await computing(control, agent, jobs=1)
        job.feed(lifecycle.SaveDue())
        assert await asyncio.to_thread(control.clock.wait, saving, TOO_LONG_S)
        before = set(agent._running)
        agent._vacate("a test")
        await asyncio.gather(*(agent._running - before))
        over.set()
        await living

    control.clock.run(live())
    assert len(paused) == 1


def hanging(control: Control, over: threading.Event) -> threading.Event:
    """Let saves hang until then. Return what is set when the first of them has begun."""
    checkpoint, begun = control.runtime.checkpoint, threading.Event()

    def hang(container: ContainerId, draft: FolderDraft) -> None:
        begun.set()
        control.clock.wait(over, TOO_LONG_S)
        checkpoint(container, draft)

    control.runtime.checkpoint = hang  # type: ignore[method-assign]
    return begun


async def computing(control: Control, agent: Agent, *, jobs: int) -> Sequence[Executor]:
    """Return the jobs of an agent, when so many have begun to count."""
    while control.runtime.counting() < jobs or not all(job.is_computing for job in agent._jobs):
        await asyncio.sleep(0.02)
    return agent._jobs
