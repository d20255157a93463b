"""The snapshot of Slurm that the loops of one control program share, so that they need only one query together."""

import threading

from gleaner.control.slurm.interface import Cluster
from gleaner.control.slurm.snapshot import Snapshot


class SnapshotCache:
    """The last snapshot of a cluster. Several threads can use it, and none waits for another thread's query."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._changes = 0

    def fresh(self, now_s: float) -> Snapshot:
        """Take a snapshot now, and keep it for the other loops. Raises `ClusterError`."""
        with self._lock:
            changes = self._changes
        snapshot = self._cluster.read(now_s)
        with self._lock:
            if changes == self._changes:
                self._last = snapshot
        return snapshot

    def shared(self, now_s: float, *, used: Snapshot | None, at_most_s: float) -> Snapshot:
        """Return the last snapshot, or take a new one. Raises `ClusterError`.

        A snapshot that the caller has already `used`, or that is older than `at_most_s`, is not returned.
        """
        with self._lock:
            last = self._last
        if last is None or last is used or not 0 <= now_s - last.read_s <= at_most_s:
            return self.fresh(now_s)
        return last

    def outdate(self) -> None:
        """Discard the last snapshot, and any that is being taken, because the cluster has just been changed.

        Otherwise an agent that was submitted after the query began would seem to have ended.
        """
        with self._lock:
            self._changes += 1
            self._last = None
