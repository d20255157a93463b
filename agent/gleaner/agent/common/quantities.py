"""Read and write durations, memory and sizes as people write them."""

import math
import re
from fractions import Fraction

_LONGEST_EXCERPT = 60
_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_NAMES = {"d": "d", "h": "h", "m": "min", "s": "s"}


def duration_s(text: str) -> int:
    """Return a duration in seconds, from a plain number or one with a unit. Fractions of a second are rounded up.

    Raises `ValueError` with a description of the mistake.

    >>> duration_s("90"), duration_s("30m"), duration_s("1.5h"), duration_s("1d")
    (90, 1800, 5400, 86400)
    """
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([dhms]?)\s*", text, flags=re.ASCII)
    if match is None:
        excerpt = text if len(text) <= _LONGEST_EXCERPT else text[:_LONGEST_EXCERPT] + "…"
        raise ValueError(f"must be like 90 (in seconds), 30m, 2h or 1d, found {excerpt!r}")
    return math.ceil(Fraction(match[1]) * _UNITS[match[2] or "s"])


def in_words(seconds: float) -> str:
    """Return a readable duration, in whole seconds.

    >>> in_words(7200), in_words(5430), in_words(86400 + 60), in_words(0.2)
    ('2 h', '1 h 30 min 30 s', '1 d 1 min', '0 s')
    """
    rest, parts = round(seconds), list[str]()
    for unit, size_s in _UNITS.items():
        count, rest = divmod(rest, size_s)
        if count:
            parts.append(f"{count} {_NAMES[unit]}")
    return " ".join(parts) or "0 s"


def memory_mib(text: str) -> int:
    """Return memory in MiB, from a plain number or one with a unit. As in Slurm, K means 1024.

    Fractions are rounded up. Raises `ValueError` with a description of the mistake.

    >>> memory_mib("512"), memory_mib("4G"), memory_mib("1.5GiB"), memory_mib("100k")
    (512, 4096, 1536, 1)
    """
    plain = re.fullmatch(r"\s*([-+]?\d{1,18})\s*", text, flags=re.ASCII)
    if plain:
        return int(plain[1])
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT])(?:i?B|i)?\s*", text, flags=re.ASCII | re.IGNORECASE)
    if match is None:
        excerpt = text if len(text) <= _LONGEST_EXCERPT else text[:_LONGEST_EXCERPT] + "…"
        raise ValueError(f"must be like 4096 (in MiB) or 4G, found {excerpt!r}")
    return math.ceil(Fraction(match[1]) * Fraction(1024) ** ("KMGT".index(match[2].upper()) - 1))


def memory_range_mib(text: str) -> int | tuple[int, int]:
    """Return memory in MiB, from one size or a range of two. Raises `ValueError` with a description of the mistake.

    >>> memory_range_mib("512"), memory_range_mib("512..4096"), memory_range_mib("1G .. 4G")
    (512, (512, 4096), (1024, 4096))
    """
    least, dots, most = text.partition("..")
    return (memory_mib(least), memory_mib(most)) if dots else memory_mib(text)


def memory_in_words(mib: int) -> str:
    """Return a readable amount of memory.

    >>> memory_in_words(512), memory_in_words(1024), memory_in_words(1152), memory_in_words(3001)
    ('512 MiB', '1 GiB', '1.125 GiB', '3001 MiB')
    """
    return f"{mib / 1024:g} GiB" if mib >= 1024 and mib % 128 == 0 else f"{mib} MiB"


def size(size_bytes: int) -> str:
    """Return a readable size.

    >>> size(3 * 1024 * 1024)
    '3.0 MiB'
    """
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
