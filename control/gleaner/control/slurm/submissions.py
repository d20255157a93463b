"""Submissions of agents: each name once, no faster than allowed, and without nodes that Slurm does not know."""

import threading
import time
from collections.abc import Callable, Collection, Iterable

from gleaner.control.slurm.interface import AGENT_PREFIX, ClusterError, ClusterRefused, SchedulerId
from gleaner.control.slurm.snapshot import SlurmJob

_NO_SUCH_NODE = "invalid node name"


class Submissions:
    """The agents' names that are taken.

    `look_up` asks the scheduler for one name; agents that have just ended count, too. `asked`: the place that agents
    are submitted to, for the message of a refusal.
    """

    def __init__(self, look_up: Callable[[str], SchedulerId | None], *, submits_per_s: float, asked: str) -> None:
        self._look_up = look_up
        self._submits_per_s = submits_per_s
        self._asked = asked
        self._lock = threading.Lock()
        """The lock for the fields that `looked` writes: a look may be in another thread than a submission."""
        self.count = 0
        """The number of names that have been submitted."""
        self._known: dict[str, SchedulerId] | None = None
        """The names that are taken, by the last look and the submissions since; None before the first look."""
        self._since: dict[str, int] = {}
        """The names that may have been submitted since the last look began, each with the `count` of then."""
        self._doubtful: set[str] = set()
        """Names whose submission was not answered."""
        self._next_submit_s = 0.0

    def looked(self, jobs: Iterable[SlurmJob], *, since: int) -> None:
        """Record that these jobs of ours are there, by a look that began when `count` was `since`."""
        seen = {job.name: SchedulerId(job.id) for job in jobs if job.name.startswith(AGENT_PREFIX)}
        with self._lock:
            self._since = {name: at for name, at in self._since.items() if at > since}
            self._known = {name: (self._known or {})[name] for name in self._since} | seen
            self._doubtful -= seen.keys()

    def submit(self, name: str, send: Callable[[], SchedulerId]) -> SchedulerId:
        """Submit by `send`, unless the name is there already, and return the id.

        Without an answer, the name is looked up once more. Raises `ClusterUnavailable`, or `ClusterRefused` with what
        was asked for.
        """
        try:
            return self._submitted(name, send)
        except ClusterRefused as error:
            raise ClusterRefused(f"{error} ({self._asked})") from error

    def _submitted(self, name: str, send: Callable[[], SchedulerId]) -> SchedulerId:
        if (known := self._id_of(name)) is not None:
            return known
        self._pace()
        self._doubtful.add(name)
        try:
            id_ = send()
        except ClusterRefused:
            self._doubtful.discard(name)
            raise
        except ClusterError:  # no answer, or none that we can read: Slurm may have accepted it
            found = self._look_up(name)
            if found is None:
                raise
            id_ = found
        return self._remember(name, id_)

    def _id_of(self, name: str) -> SchedulerId | None:
        if self._known is not None and name in self._known:
            return self._known[name]
        if self._known is None or name in self._doubtful:
            found = self._look_up(name)
            return self._remember(name, found) if found is not None else None
        return None

    def _remember(self, name: str, found: SchedulerId) -> SchedulerId:
        with self._lock:
            self._doubtful.discard(name)
            if self._known is not None:
                self.count += 1
                self._known[name] = found
                self._since[name] = self.count
        return found

    def _pace(self) -> None:
        wait_s = self._next_submit_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._next_submit_s = time.monotonic() + 1 / self._submits_per_s


def known_only(
    send: Callable[[tuple[str, ...]], SchedulerId], exclude: tuple[str, ...], known: Callable[[], Collection[str]]
) -> SchedulerId:
    """Submit by `send` with these nodes to be excluded. Try again without those that the scheduler no longer knows.

    If one name is unknown, Slurm refuses the whole submission. A refusal that stays names the nodes.
    """
    try:
        return send(exclude)
    except ClusterRefused as error:
        if not exclude or _NO_SUCH_NODE not in str(error).lower():
            raise
        there = known()
        left = tuple(name for name in exclude if name in there)
        if left == exclude:
            raise ClusterRefused(f"{error}, of the nodes to be excluded: {', '.join(exclude)}") from error
        return send(left)
