"""Where the pieces of a job would go, on nodes that have a shape. Pure."""

from collections.abc import Mapping, Sequence

from gleaner.control.policy.governed import Wish
from gleaner.control.policy.room import NOTHING, Room


def needs_of(wish: Wish, targets: Sequence[str], size: Mapping[str, Room]) -> dict[str, Room]:
    """What the job needs on each of its targets."""
    needs: dict[str, Room] = {}
    for node in targets:
        needs[node] = size[node] if wish.whole else needs.get(node, NOTHING).plus(wish.piece)
    return needs


def targets_of(
    wish: Wish,
    free: Mapping[str, Room],
    coming: Mapping[str, Room],
    may_go: Sequence[Mapping[str, Room]],
    size: Mapping[str, Room],
) -> list[str] | None:
    """A node for each piece of the job, or None if it cannot be placed.

    First nodes where what is free and what is coming is enough, the fullest first, so that wide jobs find whole nodes
    later; then those where it is enough with the first of `may_go`, those with most room first; and so on.
    """
    allowed = free.keys() if wish.nodes is None else free.keys() & set(wish.nodes)
    now = {node: free[node].plus(coming.get(node, NOTHING)) for node in allowed}
    found: list[str] = []

    def place(room: Mapping[str, Room], nodes: Sequence[str]) -> None:
        for node in nodes:
            taken = found.count(node)
            fitting = _pieces(room[node], size[node] if wish.whole else wish.piece)
            most = min(fitting, 1) if wish.apart else fitting
            found.extend([node] * min(most - taken, wish.pieces - len(found)))

    place(now, sorted(now, key=lambda node: (now[node].cpus, node)))
    for grade in may_go:
        if len(found) < wish.pieces:
            full = {node: room.plus(grade.get(node, NOTHING)) for node, room in now.items()}
            place(full, sorted(now, key=lambda node: (-now[node].cpus, node)))
    return found if len(found) == wish.pieces else None


def _pieces(room: Room, piece: Room) -> int:
    """How many pieces fit."""
    by_cpus = room.cpus // max(1, piece.cpus)
    return min(by_cpus, room.memory_mib // piece.memory_mib) if piece.memory_mib else by_cpus
