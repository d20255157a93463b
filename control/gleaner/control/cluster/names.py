"""Names: of agents, so that none is ever submitted twice, and how fast they are submitted; of nodes that Slurm may have
forgotten since they were noted.
"""

import time
from collections.abc import Callable, Collection, Iterable

from gleaner.control.cluster.gateway import GatewayError, GatewayRefused, QueuedAgent, SchedulerId

_NO_SUCH_NODE = "invalid node name"


class Names:
    """What one gateway has submitted. `look_up` asks the scheduler for a name; agents that ended just now count too.

    `asked` says where they are submitted to, for the message of a refusal.
    """

    def __init__(self, look_up: Callable[[str], SchedulerId | None], *, submits_per_s: float, asked: str) -> None:
        self._look_up = look_up
        self._submits_per_s = submits_per_s
        self._asked = asked
        self._known: dict[str, SchedulerId] | None = None
        """Names that are taken, as of the last look and since; None before the first look."""
        self._doubtful: set[str] = set()
        """Names whose submission was not answered."""
        self._next_submit_s = 0.0

    def looked(self, agents: Iterable[QueuedAgent]) -> None:
        """These are there now."""
        self._known = {agent.name: agent.id for agent in agents}
        self._doubtful -= self._known.keys()

    def submit(self, name: str, send: Callable[[], SchedulerId]) -> SchedulerId:
        """Submit by `send`, unless the name is there. If there was no answer, the name is looked up once more.

        Raises `GatewayUnavailable`, or `GatewayRefused` with what was asked for.
        """
        try:
            return self._submitted(name, send)
        except GatewayRefused as error:
            raise GatewayRefused(f"{error} ({self._asked})") from error

    def _submitted(self, name: str, send: Callable[[], SchedulerId]) -> SchedulerId:
        if (known := self._id_of(name)) is not None:
            return known
        self._pace()
        self._doubtful.add(name)
        try:
            id_ = send()
        except GatewayRefused:
            self._doubtful.discard(name)
            raise
        except GatewayError:  # no answer, or none that we can read: it may have been taken
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
        self._doubtful.discard(name)
        if self._known is not None:
            self._known[name] = found
        return found

    def _pace(self) -> None:
        wait_s = self._next_submit_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._next_submit_s = time.monotonic() + 1 / self._submits_per_s


def known_only(
    send: Callable[[tuple[str, ...]], SchedulerId], avoid: tuple[str, ...], known: Callable[[], Collection[str]]
) -> SchedulerId:
    """Submit by `send` with these nodes to be avoided; without those that the scheduler has come not to know.

    For one unknown name Slurm refuses the whole submission. What it still refuses names the nodes.
    """
    try:
        return send(avoid)
    except GatewayRefused as error:
        if not avoid or _NO_SUCH_NODE not in str(error).lower():
            raise
        there = known()
        left = tuple(name for name in avoid if name in there)
        if left == avoid:
            raise GatewayRefused(f"{error}, of the nodes to be avoided: {', '.join(avoid)}") from error
        return send(left)
