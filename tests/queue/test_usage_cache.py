"""The usage cache: read seldom, and kept up with what is handed out meanwhile."""

from dataclasses import dataclass, field

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.control.policy.fair_share import ShareRules, Shares
from gleaner.control.queue.database import connect
from gleaner.control.queue.usage_cache import FRESH_S, RECORDED_AT_ONCE, UsageCache


@pytest.fixture
def harness(sqlite_url: str) -> QueueHarness:
    return QueueHarness(connect(sqlite_url))


@dataclass
class Kept:
    """A usage cache with a clock that the test sets."""

    harness: QueueHarness
    now_s: float = 5.0
    usage_cache: UsageCache = field(init=False)

    def __post_init__(self) -> None:
        self.usage_cache = UsageCache(lambda: self.now_s)

    def shares(self) -> Shares:
        return self.harness.look(lambda db: self.usage_cache.shares(db, ShareRules()))


@pytest.fixture
def kept(harness: QueueHarness) -> Kept:
    return Kept(harness)


def test_what_is_handed_out_counts_at_once(kept: Kept) -> None:
    kept.harness.submit(indices=(0, 1, 2), cpus=2)
    kept.harness.agent("a", cpus=8)
    assert kept.shares() == Shares(capacity_cpus=8, waiting=frozenset({"physics"}))
    kept.usage_cache.record_claims(kept.harness.claim("a", most=2))
    assert kept.shares().holds_cpus == {"physics": 4}


def test_what_others_have_changed_is_seen_at_the_next_reading(kept: Kept) -> None:
    kept.harness.agent("a", cpus=8)
    kept.shares()
    kept.harness.job()
    kept.harness.claim("a")
    assert kept.shares().holds_cpus == {}
    kept.now_s += FRESH_S + 0.1
    assert kept.shares().holds_cpus == {"physics": 1}


def test_recorded_decisions_are_bounded(kept: Kept) -> None:
    assert [kept.usage_cache.may_record() for _ in range(RECORDED_AT_ONCE + 5)].count(True) == RECORDED_AT_ONCE
    kept.now_s += 3
    assert [kept.usage_cache.may_record() for _ in range(9)].count(True) == 3
