"""The loop that writes the history: each look and each attempt counts once, and what nobody saw stays unknown."""

from dataclasses import dataclass, field

import pytest
from sqlalchemy import Engine
from tests.queue.queue_harness import QueueHarness
from tests.slurm.records import agent, node, seen

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.node_history import SETTLED_S, NodeHistory
from gleaner.control.policy.node_time import RESOLUTIONS, NodeTime
from gleaner.control.queue import jobs, node_history
from gleaner.control.settings import Settings

START_S = 1_800_000_000.0  # the beginning of an hour
POLL_S = 20.0
OLDEST = "gleaner.control.daemon.node_history.oldest_transaction_s"


@dataclass
class HistoryHarness:
    """One program's history, with a clock that the test moves."""

    queue: QueueHarness
    state: ControlState
    history: NodeHistory = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.history = NodeHistory(self.state)

    def look(self, after_s: float = POLL_S) -> None:
        """Let Slurm be asked after so long, and the loop make its step."""
        self.queue.now_s += after_s
        nodes = (node("n1", 8), node("n2", 16, 100, "ALLOCATED"), node("n3", 4, 100, "ALLOCATED"))
        ours = agent("glean-1", "n3")
        self.state.cluster = seen(self.queue.now_s, *nodes, node("n4", 2, 100, "DOWN"), jobs=(ours,))
        self.history.step(self.queue.now_s)

    def sums(self, step_s: int = 3600) -> NodeTime:
        return sum(self.queue.look(node_history.times, begin_s=0, end_s=9e9, step_s=step_s).values(), NodeTime())


@pytest.fixture
def harness(queue_engine: Engine, tmp_path: object) -> HistoryHarness:
    storage = FolderStorage(tmp_path)  # type: ignore[arg-type]
    state = ControlState(Settings(), queue_engine, storage, leads_until_s=float("inf"))
    return HistoryHarness(QueueHarness(queue_engine, now_s=START_S), state)


def test_the_time_between_two_looks_is_counted_once(harness: HistoryHarness) -> None:
    harness.look()
    harness.look()
    harness.history.step(harness.queue.now_s)  # nothing new was seen
    for each in RESOLUTIONS:
        found = harness.sums(each.step_s)
        assert found.seen_s == POLL_S
        assert (found.idle_core_s, found.regular_core_s, found.agent_core_s) == (8 * 20, 16 * 20, 4 * 20)
        assert (found.unusable_node_s, found.unusable_core_s) == (20, 40)


def test_time_in_which_nobody_looked_is_unknown(harness: HistoryHarness) -> None:
    harness.look()
    harness.look(after_s=3600)
    harness.restart()
    harness.look()
    assert harness.sums().seen_s == 0
    harness.look()
    assert harness.sums().seen_s == POLL_S


def test_each_node_has_the_letter_of_its_use(harness: HistoryHarness) -> None:
    harness.queue.job()
    harness.look()
    (before,) = harness.queue.look(node_history.node_uses, begin_s=0, end_s=9e9, step_s=60)
    assert (before.names, before.letters) == (("n1", "n2", "n3", "n4"), "irau")
    harness.queue.claim_one(harness.queue.agent("glean-1", node="n3"))
    harness.look()
    (after,) = harness.queue.look(node_history.node_uses, begin_s=0, end_s=9e9, step_s=600)
    assert after.letters == "irhu"


def test_an_attempt_is_added_once_although_the_program_begins_anew(harness: HistoryHarness) -> None:
    harness.look()
    harness.queue.job(cpus=3)
    claimed = harness.queue.claim_one(harness.queue.agent("glean-1", node="n3"))
    harness.queue.now_s += 40
    harness.queue.record_save(claimed.job, claimed.attempt)
    harness.look()
    assert harness.sums().harvested_core_s == 0  # its transaction might not be over yet
    for _ in range(2):
        harness.look(after_s=SETTLED_S + 60)
        harness.restart()
    for each in RESOLUTIONS:
        found = harness.sums(each.step_s)
        assert (found.harvested_core_s, found.save_core_s, found.restore_core_s) == pytest.approx((90, 9, 6))


def cancelled(harness: HistoryHarness) -> tuple[int, float]:
    """A job of three cores that has run for 40 s, and the instant at which its campaign is about to be cancelled."""
    harness.look()
    job = harness.queue.job(cpus=3)
    harness.queue.claim_one(harness.queue.agent("glean-1", node="n3"))
    harness.queue.now_s += 40
    return job, harness.queue.now_s


def test_an_attempt_that_a_long_transaction_ends_is_added_once_it_is_there(
    harness: HistoryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a large campaign is cancelled in one transaction, which may last minutes on a busy server."""
    job, began_s = cancelled(harness)
    with monkeypatch.context() as patch:
        patch.setattr(OLDEST, lambda _: harness.queue.now_s - began_s)
        for _ in range(3):
            harness.look(after_s=SETTLED_S + 60)
    harness.queue.do(jobs.cancel, job, now_s=began_s)
    for _ in range(2):
        harness.look(after_s=SETTLED_S + 60)
    assert harness.sums().lost_core_s == pytest.approx(3 * 40)
