"""Where the pieces of a job would go, on nodes that have a shape. Pure."""

from collections.abc import Mapping, Sequence

from gleaner.control.policy.governing_view import RunningJob, Wish
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
    later; then those where it is enough with the first of `may_go`; and so on, those with most room first. The first of
    `may_go` is what agents have, one of them a node: of these the nodes come first that take most of what is missing.
    """
    allowed = free.keys() if wish.nodes is None else free.keys() & set(wish.nodes)
    now = {node: free[node].plus(coming.get(node, NOTHING)) for node in allowed}
    found: list[str] = []

    def more(node: str, room: Room) -> int:
        fitting = _pieces(room, size[node] if wish.whole else wish.piece)
        return min((min(fitting, 1) if wish.apart else fitting) - found.count(node), wish.pieces - len(found))

    for node in sorted(now, key=lambda node: (now[node].cpus, node)):
        found.extend([node] * more(node, now[node]))
    for at, grade in enumerate(may_go):
        if len(found) < wish.pieces:
            full = {node: room.plus(grade.get(node, NOTHING)) for node, room in now.items()}
            gains = {node: more(node, room) if at == 0 else 0 for node, room in full.items()}
            for node in sorted(now, key=lambda node: (-gains[node], -now[node].cpus, node)):
                found.extend([node] * more(node, full[node]))
    return found if len(found) == wish.pieces else None


def needed(
    victims: Sequence[RunningJob], needs: Mapping[str, Room], free: Mapping[str, Room], coming: Mapping[str, Room]
) -> list[RunningJob]:
    """Without those that are not needed beside the others, since these give memory too, or room on another node."""
    kept = list(victims)
    for one in reversed(victims):
        rest = [other for other in kept if other is not one]
        if all(_is_enough(node, need, free[node].plus(coming[node]), rest) for node, need in needs.items()):
            kept = rest
    return kept


def _is_enough(node: str, need: Room, room: Room, victims: Sequence[RunningJob]) -> bool:
    for one in victims:
        room = room.plus(one.holds.get(node, NOTHING))
    return room.cpus >= need.cpus and room.memory_mib >= need.memory_mib


def _pieces(room: Room, piece: Room) -> int:
    """How many pieces fit."""
    by_cpus = room.cpus // max(1, piece.cpus)
    return min(by_cpus, room.memory_mib // piece.memory_mib) if piece.memory_mib else by_cpus
