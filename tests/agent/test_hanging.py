"""A storage that hangs: the agent is gone in time all the same, so Slurm never finds a process that it cannot kill."""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agent.control_harness import Control
from tests.agent.fake_clock import FakeClock, RunIsOver

from gleaner.agent import main
from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.storage_probe import PATIENCE_S, StorageProbe
from gleaner.agent.reporting.client import Outbox
from gleaner.control.control_state import ControlState
from gleaner.control.queue import queries
from gleaner.control.queue.database import snapshot
from gleaner.control.states import State

KILL_WAIT_S = 4.0


class HangingStorage(FolderStorage):
    """Its drafts never begin."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        super().__init__(root)
        self._clock = clock

    def draft(self, key: str, before: FolderArchive | None = None) -> AbstractContextManager[FolderDraft]:
        self._clock.wait_until(lambda: False)
        raise AssertionError("nobody waits for ever")


def reason(state: ControlState) -> str:
    with snapshot(state.engine) as db:
        return next(iter(queries.agent_rows(db, now_s=state.clock()))).reason


def test_an_agent_leaves_a_storage_that_hangs_in_time_and_says_why(control: Control) -> None:
    job = control.submit("100000")
    control.storage = HangingStorage(control.folder / "storage", control.clock)
    agent = control.brief("a1", kill_wait_s=KILL_WAIT_S)
    assert control.live(agent) == 1
    assert control.now_s <= agent.exit_by_s == agent.end_s - KILL_WAIT_S
    assert reason(control.state) == "storage hangs"
    detail = control.job(job)
    assert (detail.job.state, detail.failures) == (State.NEW, 0)


def test_an_agent_of_which_all_hangs_is_gone_in_time_too(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.submit("100000")
    agent = control.agent("a1", lives_s=60, kill_wait_s=KILL_WAIT_S)
    left_s: list[float] = []

    class StuckOutbox(Outbox):
        """Whoever looks at it waits until the process ends, the event loop too."""

        def room_bytes(self, path: str) -> int:
            control.clock.wait_until(lambda: bool(left_s))
            raise RunIsOver

    def leave(status: int) -> None:
        assert status == 1
        left_s.append(control.now_s)
        raise RunIsOver

    agent.outbox = StuckOutbox(agent.client.report, agent.client.token_hash)
    agent._context = replace(agent._context, outbox=agent.outbox)
    monkeypatch.setattr(os, "_exit", leave)
    control.clock.start(main._exit_in_time, agent)
    with pytest.raises(RunIsOver):
        control.live(agent)
    assert left_s == [pytest.approx(agent.end_s - KILL_WAIT_S, abs=0.001)]


def test_a_probe_tells_a_storage_that_hangs_from_one_that_says_no(tmp_path: Path) -> None:
    clock, storage = FakeClock(), FolderStorage(tmp_path / "storage")
    no_storage, good, hanging = (
        StorageProbe(one, "agents/a1/probe", clock)
        for one in (storage, storage, HangingStorage(tmp_path / "storage", clock))
    )
    no_storage.start()
    clock.pause(0)
    assert no_storage.waits_s == 0
    storage.prepare()
    good.start()
    hanging.start()
    clock.pause(PATIENCE_S / 2)
    assert good.waits_s == 0
    assert not good.hangs
    assert not hanging.hangs
    clock.pause(PATIENCE_S / 2)
    assert hanging.waits_s == PATIENCE_S > 0
    assert hanging.hangs
    assert storage.keys("") == []
