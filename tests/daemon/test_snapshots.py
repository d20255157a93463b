"""One snapshot of Slurm for all loops, and never one from before what was done to Slurm."""

import threading
from collections.abc import Callable

from tests.slurm.fake_cluster import FakeCluster

from gleaner.control.slurm.interface import SnapshotCache
from gleaner.control.slurm.snapshot import Snapshot


class Counted(FakeCluster):
    """A cluster that counts how often it is read; `meanwhile` happens during that."""

    count = 0
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def read(self, now_s: float) -> Snapshot:
        self.count += 1
        self.meanwhile()
        return Snapshot(now_s)


def test_a_loop_takes_what_another_one_has_just_read_but_never_the_same_twice() -> None:
    cluster = Counted()
    cache = SnapshotCache(cluster)
    first = cache.fresh(100.0)
    assert cache.shared(104.0, used=None, at_most_s=10) is first
    assert cluster.count == 1
    second = cache.shared(105.0, used=first, at_most_s=10)
    assert (second.read_s, cluster.count) == (105.0, 2)


def test_what_is_too_old_or_of_another_clock_is_read_anew() -> None:
    cluster = Counted()
    cache = SnapshotCache(cluster)
    cache.fresh(100.0)
    assert cache.shared(111.0, used=None, at_most_s=10).read_s == 111.0
    assert cache.shared(99.0, used=None, at_most_s=10).read_s == 99.0, "the clock was set back"


def test_what_was_read_before_a_change_is_shared_with_nobody() -> None:
    """Else an agent that was submitted since would be taken for one that has ended."""
    cluster = Counted()
    cache = SnapshotCache(cluster)
    cache.fresh(100.0)
    cache.outdate()
    assert cache.shared(101.0, used=None, at_most_s=10).read_s == 101.0
    cluster.meanwhile = cache.outdate  # a submission while another loop reads
    assert cache.fresh(102.0).read_s == 102.0
    cluster.meanwhile = lambda: None
    assert cache.shared(103.0, used=None, at_most_s=10).read_s == 103.0


def test_a_question_that_hangs_keeps_no_other_loop_from_its_own() -> None:
    cluster, hangs, goes_on = Counted(), threading.Event(), threading.Event()
    cache = SnapshotCache(cluster)

    def hang() -> None:
        cluster.meanwhile = lambda: None
        hangs.set()
        assert goes_on.wait(10)

    cluster.meanwhile = hang
    other = threading.Thread(target=cache.fresh, args=(100.0,))
    other.start()
    assert hangs.wait(60)
    assert cache.shared(101.0, used=None, at_most_s=10).read_s == 101.0
    goes_on.set()
    other.join()
