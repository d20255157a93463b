"""The snapshot of Slurm that the loops of one control program share, so that Slurm is asked once for all of them."""

import threading

from gleaner.control.slurm.interface import Cluster
from gleaner.control.slurm.snapshot import Snapshot


class SnapshotCache:
    """The last snapshot of a cluster. Several threads may use it; none waits for the question of another."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._changes = 0

    def fresh(self, now_s: float) -> Snapshot:
        """Ask for a snapshot now, and keep it for the others. Raises `ClusterError`."""
        with self._lock:
            changes = self._changes
        snapshot = self._cluster.read(now_s)
        with self._lock:
            if changes == self._changes:
                self._last = snapshot
        return snapshot

    def shared(self, now_s: float, *, used: Snapshot | None, at_most_s: float) -> Snapshot:
        """Return the last snapshot, or ask for a new one. Raises `ClusterError`.

        A snapshot that the caller has `used` already, or that is older than `at_most_s`, is not returned.
        """
        with self._lock:
            last = self._last
        if last is None or last is used or not 0 <= now_s - last.read_s <= at_most_s:
            return self.fresh(now_s)
        return last

    def outdate(self) -> None:
        """Forget the last snapshot, and any that is being asked for, since the cluster has just been changed.

        Otherwise an agent that was submitted after that question would be taken for one that has ended.
        """
        with self._lock:
            self._changes += 1
            self._last = None
