"""Memory as people write it."""

import math
import re
from fractions import Fraction

_LONGEST_SHOWN = 60


def memory_mib(text: str) -> int:
    """Return memory in MiB, from a plain number or one with a unit. As in Slurm, a K is 1024; parts are rounded up.

    Raises `ValueError` with what is wrong.

    >>> memory_mib("512"), memory_mib("4G"), memory_mib("1.5GiB"), memory_mib("100k")
    (512, 4096, 1536, 1)
    """
    plain = re.fullmatch(r"\s*([-+]?\d{1,18})\s*", text, flags=re.ASCII)
    if plain:
        return int(plain[1])
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT])(?:i?B|i)?\s*", text, flags=re.ASCII | re.IGNORECASE)
    if match is None:
        shown = text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
        raise ValueError(f"must be like 4096 (in MiB) or 4G, found {shown!r}")
    return math.ceil(Fraction(match[1]) * Fraction(1024) ** ("KMGT".index(match[2].upper()) - 1))
