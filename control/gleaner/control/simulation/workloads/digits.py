"""A reader of plain numbers in a block of text, many times faster than a general reader.

Text that is not plain is left to the general reader.
"""

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.replay.compiler import compiled

_TAB, _NEW_LINE, _RETURN, _BLANK, _MINUS, _POINT, _ZERO, _NINE = b"\t\n\r -.09"
_MOST_DIGITS = 15
"""The digits that float64 always holds: a number with at most so many is read exactly, decimals included."""
_NOTHING = np.int64(0)
"""A zero of 64 bits with and without the compiler. A Python number and a byte would make a byte, which overflows."""
_POWERS = np.array([10.0**exponent for exponent in range(_MOST_DIGITS + 1)])


def plain_rows(text: str, lines: int, width: int) -> NDArray[np.float64] | None:
    """Return one row for each line that is not blank. Each line is `width` plain numbers (`-12`, `3.5`).

    Return None if a line is anything else.
    """
    if not text.isascii():
        return None
    rows = np.empty((lines, width))
    count = _fill(np.frombuffer(text.encode("ascii"), np.uint8), rows, _POWERS)
    return None if count < 0 else rows[:count]


def _rows_filled(text: NDArray[np.uint8], rows: NDArray[np.float64], powers: NDArray[np.float64]) -> int:
    """Return how many rows the text filled; -1 if something in the text is not plain."""
    row, column = 0, 0
    digits, decimals = 0, -1
    value = _NOTHING
    is_negative, is_in_number = False, False
    for index in range(len(text) + 1):
        byte = text[index] if index < len(text) else _NEW_LINE
        if _ZERO <= byte <= _NINE:
            if digits == _MOST_DIGITS:
                return -1
            value = 10 * value + np.int64(byte - _ZERO)
            digits += 1
            if decimals >= 0:
                decimals += 1
            is_in_number = True
        elif byte == _BLANK or _TAB <= byte <= _RETURN:
            if is_in_number:
                if digits == 0 or decimals == 0 or column == rows.shape[1]:
                    return -1
                number = value / powers[max(decimals, 0)]
                rows[row, column] = -number if is_negative else number
                column += 1
                value = _NOTHING
                digits, decimals = 0, -1
                is_negative, is_in_number = False, False
            if byte == _NEW_LINE and column > 0:
                if column < rows.shape[1]:
                    return -1
                row, column = row + 1, 0
        elif byte == _MINUS and not is_in_number:
            is_negative, is_in_number = True, True
        elif byte == _POINT and digits > 0 and decimals < 0:
            decimals = 0
        else:
            return -1
    return row


_fill = compiled(_rows_filled)
