"""Times as users write them."""

import re

_UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MOST_DIGITS = 15
"""As many are exact in a float."""


def seconds(text: str) -> float:
    """A time as a user writes it. Raises `ValueError`.

    >>> seconds("90"), seconds("15m"), seconds("1.5h"), seconds("1h30m"), seconds("2d")
    (90.0, 900.0, 5400.0, 5400.0, 172800.0)
    """
    pieces = re.findall(r"(\d+(?:\.\d+)?)(min|[smhd]|)", text)
    is_clear = len(pieces) == 1 or all(unit for _, unit in pieces)  # 1h30: seconds, or minutes?
    if not pieces or not is_clear or "".join(number + unit for number, unit in pieces) != text:
        raise ValueError(f"expected a time such as 90, 15m, 1.5h or 2d, found {text!r}")
    if any(len(number) > _MOST_DIGITS for number, _ in pieces):
        raise ValueError(f"expected a time of at most {_MOST_DIGITS} digits, found {text!r}")
    return float(sum(float(number) * _UNITS_S[unit] for number, unit in pieces))
