"""The stored history of node time, on each database."""

import pytest
from tests.queue.queue_harness import SPENT, QueueHarness

from gleaner.agent.messages import ReturnReason, Slice
from gleaner.control.policy.node_time import DAY_S, NodeTime
from gleaner.control.queue import agents, jobs, node_history
from gleaner.control.queue.node_history import HOUR_S, NodeUses


def _ended(harness: QueueHarness) -> None:
    """Two jobs of atlas and one of cms: saved, returned with work that is in no checkpoint, and lost."""
    for group in ("atlas", "atlas", "cms"):
        harness.submit(group=group, cpus=4)
    first, second, third = harness.claim(harness.agent("a"), most=3)
    harness.now_s += 100
    harness.record_save(first.job, first.attempt, spent=SPENT)
    in_vain = Slice(started_s=1, restore_s=5, compute_s=40)
    harness.record_return(second.job, second.attempt, ReturnReason.TOO_LATE, spent=in_vain)
    harness.record_checkpoint(third.job, third.attempt)
    harness.now_s += 1000
    harness.do(agents.expire, "a", now_s=harness.now_s, losses_until_held=3)
    harness.do(agents.close_silent, "a", now_s=harness.now_s, losses_until_held=3)


def test_each_slice_counts_as_harvested_or_lost_for_who_submitted_it(harness: QueueHarness) -> None:
    _ended(harness)
    rows = harness.look(node_history.report_rows, begin_s=0, end_s=9e9, group=None)
    atlas, cms = rows
    assert (atlas.group, atlas.slices, cms.group, cms.slices) == ("atlas", 2, "cms", 1)
    assert (atlas.harvested_core_h, atlas.lost_core_h) == (4 * 30 / HOUR_S, 4 * 40 / HOUR_S)
    assert (atlas.restoring_core_h, atlas.saving_core_h) == (4 * (2 + 5) / HOUR_S, 4 * 3 / HOUR_S)
    lost_s = 1100 - 30 - 2 - 3  # after its checkpoint
    assert (cms.harvested_core_h, cms.lost_core_h) == (4 * 30 / HOUR_S, 4 * lost_s / HOUR_S)
    assert [row.group for row in harness.look(node_history.report_rows, begin_s=0, end_s=9e9, group="cms")] == ["cms"]
    assert harness.look(node_history.report_rows, begin_s=0, end_s=1100, group=None) == ()  # all ended then or later


def test_the_loop_and_the_report_count_the_same(harness: QueueHarness) -> None:
    _ended(harness)
    found = harness.look(node_history.ended_attempts, after_s=0, until_s=9e9)
    rows = harness.look(node_history.report_rows, begin_s=0, end_s=9e9, group=None)
    for name, kind in (
        ("harvested_s", "harvested"),
        ("lost_s", "lost"),
        ("restore_s", "restoring"),
        ("save_s", "saving"),
    ):
        by_sql = sum(getattr(row, f"{kind}_core_h") for row in rows) * HOUR_S
        assert sum(each.cores * getattr(each, name) for each in found) == pytest.approx(by_sql)
    assert harness.look(node_history.ended_attempts, after_s=harness.now_s, until_s=9e9) == []


def test_a_cancelled_slice_is_lost(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim_one(harness.agent("a"))
    harness.now_s += 50
    harness.do(jobs.cancel, job, now_s=harness.now_s)
    (row,) = harness.look(node_history.report_rows, begin_s=0, end_s=9e9, group=None)
    assert (row.harvested_core_h, row.lost_core_h) == (0, 50 / HOUR_S)


def test_slices_are_read_only_if_they_are_not_too_many(harness: QueueHarness) -> None:
    _ended(harness)
    harness.job()
    harness.claim_one(harness.agent("b"))
    at_most_four = harness.look(node_history.slices, begin_s=0, end_s=9e9, at_most=4)
    assert at_most_four is not None
    assert [each.ended_s is None for each in at_most_four] == [False, False, False, True]
    assert harness.look(node_history.slices, begin_s=0, end_s=9e9, at_most=3) is None


def test_sums_grow_and_are_read_by_their_step(harness: QueueHarness) -> None:
    harness.do(node_history.add, 60, {120: NodeTime(idle_core_s=5), 180: NodeTime(seen_s=60)})
    harness.do(node_history.add, 60, {120: NodeTime(idle_core_s=2, lost_core_s=1), 240: NodeTime()})
    harness.do(node_history.add, 600, {0: NodeTime(idle_core_s=9)})
    found = harness.look(node_history.times, begin_s=120, end_s=240, step_s=60)
    assert found == {120: NodeTime(idle_core_s=7, lost_core_s=1), 180: NodeTime(seen_s=60)}


def test_the_last_look_at_a_step_counts(harness: QueueHarness) -> None:
    for letters in ("ri", "hu"):
        harness.do(node_history.record_uses, 60, NodeUses(60, ("n1", "n2"), letters))
    harness.do(node_history.record_uses, 60, NodeUses(120, ("n1", "n3"), "ii"))
    found = harness.look(node_history.node_uses, begin_s=0, end_s=1000, step_s=60)
    assert found == [NodeUses(60, ("n1", "n2"), "hu"), NodeUses(120, ("n1", "n3"), "ii")]


def test_each_length_of_steps_is_kept_for_its_own_time(harness: QueueHarness) -> None:
    now_s = 1000 * DAY_S
    for step_s in (60, 600, 3600):
        for days in (1, 3, 20, 500):
            harness.do(node_history.add, step_s, {now_s - days * DAY_S: NodeTime(seen_s=1)})
            harness.do(node_history.record_uses, step_s, NodeUses(now_s - days * DAY_S, ("n1",), "i"))
    assert harness.do(node_history.remove_old, now_s=now_s, keep_days=400) == 2 * (3 + 2 + 1)
    for step_s, steps in ((60, 1), (600, 2), (3600, 3)):
        assert len(harness.look(node_history.times, begin_s=0, end_s=now_s, step_s=step_s)) == steps
