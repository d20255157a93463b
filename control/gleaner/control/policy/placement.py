"""The placement of the pieces of a job on nodes of given sizes. Pure."""

from collections.abc import Mapping, Sequence

from gleaner.control.policy.entitlements_view import RunningJob, Wish
from gleaner.control.policy.resources import NOTHING, Resources


def needs_of(wish: Wish, targets: Sequence[str], size: Mapping[str, Resources]) -> dict[str, Resources]:
    """Return the resources that the job needs on each of its targets."""
    needs: dict[str, Resources] = {}
    for node in targets:
        needs[node] = size[node] if wish.whole else needs.get(node, NOTHING).plus(wish.piece)
    return needs


def targets_of(
    wish: Wish,
    free: Mapping[str, Resources],
    coming: Mapping[str, Resources],
    may_go: Sequence[Mapping[str, Resources]],
    size: Mapping[str, Resources],
) -> list[str] | None:
    """Return a node for each piece of the job, or None if the job cannot be placed.

    Nodes where free and coming resources are enough come first, the fullest first, so that wide jobs find whole nodes
    later. Next come the nodes where free and coming resources are enough together with those in the first entry of
    `may_go`, then the nodes where they are enough with the second entry, and so on, those with most room first. The
    first entry of `may_go` has the resources of agents, one agent a node. Of its nodes, those that take most of the
    missing pieces come first.
    """
    allowed = free.keys() if wish.nodes is None else free.keys() & set(wish.nodes)
    now = {node: free[node].plus(coming.get(node, NOTHING)) for node in allowed}
    found: list[str] = []

    def more(node: str, room: Resources) -> int:
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


def needed_victims(
    victims: Sequence[RunningJob],
    needs: Mapping[str, Resources],
    free: Mapping[str, Resources],
    coming: Mapping[str, Resources],
) -> list[RunningJob]:
    """Return the victims without those that are not needed, since the others also free memory or another node."""
    kept = list(victims)
    for one in reversed(victims):
        rest = [other for other in kept if other is not one]
        if all(_is_enough(node, need, free[node].plus(coming[node]), rest) for node, need in needs.items()):
            kept = rest
    return kept


def _is_enough(node: str, need: Resources, room: Resources, victims: Sequence[RunningJob]) -> bool:
    for one in victims:
        room = room.plus(one.holds.get(node, NOTHING))
    return room.cpus >= need.cpus and room.memory_mib >= need.memory_mib


def _pieces(room: Resources, piece: Resources) -> int:
    """Return the number of pieces that fit."""
    by_cpus = room.cpus // max(1, piece.cpus)
    return min(by_cpus, room.memory_mib // piece.memory_mib) if piece.memory_mib else by_cpus
