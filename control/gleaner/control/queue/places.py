"""Where the jobs of a lane may not go on, as the lane says it: names of nodes with blanks between.

After a `*` it is the other way round: they may go on nowhere but there. Pure.
"""

from collections.abc import Iterable

_ONLY = "*"
NOWHERE = _ONLY
"""What a lane says whose jobs may go nowhere for a while."""


def only_on(node: str) -> str:
    """What a lane says whose jobs may go on there only."""
    return f"{_ONLY} {node}"


def is_kept_off(not_on: str, node: str) -> bool:
    """Whether the lane's jobs may not go on there.

    >>> is_kept_off("n1 n2", "n2"), is_kept_off(only_on("n1"), "n2"), is_kept_off("", "n2")
    (True, True, False)
    """
    words = not_on.split()
    return (node in words) != (words[:1] == [_ONLY])


def kept_off(not_on: str, nodes: Iterable[str]) -> frozenset[str]:
    """Those of these nodes where they may not."""
    return frozenset(node for node in nodes if is_kept_off(not_on, node))


def with_one_more(not_on: str, node: str) -> tuple[str, ...]:
    """The nodes that it is kept off then. One that was to go there only may now go anywhere else."""
    words = not_on.split()
    return tuple(sorted({*(words if words[:1] != [_ONLY] else ()), node}))
