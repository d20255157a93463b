"""Memory in steps, so that jobs which differ by little are alike to a claim: it looks at each size that waits."""

from collections.abc import Collection

STEPS_A_DOUBLING = 8


def stepped(memory_mib: int, nodes: Collection[int] = ()) -> int:
    """The memory that a job gets which asks for so much: the next step, at most an eighth more.

    Powers of two, and whatever else people write in few digits, are steps themselves. So is what a node of the site
    has (`nodes`), or its agents leave of that, so that a job which asks for all of a node still fits it.

    >>> [stepped(memory_mib) for memory_mib in (16, 500, 512, 513, 1536, 4000, 65_536)]
    [16, 512, 512, 576, 1536, 4096, 65536]
    >>> stepped(60_000, nodes={64_000, 60_500})
    60500
    """
    granule = max(1, (1 << memory_mib.bit_length() - 1) // STEPS_A_DOUBLING)
    step = -(-memory_mib // granule) * granule
    return min([step, *(node for node in nodes if node >= memory_mib)])
