"""Read bytes from outside, from programs that might be hostile or that pass on text from any user.

Root's programs, the Slurm admin service, the agent and control read through this module.
"""

from __future__ import annotations  # the node may have Python 3.9

import json
import math
import re
from typing import Any

_MOST_DIGITS = 20
_ESCAPE = re.compile(
    r"""\\(?: u d[89ab][0-9a-f]{2} \\u d[c-f][0-9a-f]{2}
            | (?P<wrong> u0000 | u d[89a-f][0-9a-f]{2} )
            | . )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""An escape in JSON. `wrong` is NUL, or half of a surrogate pair."""


def text_of(content: bytes) -> str:
    r"""Return bytes as text that every file, database and terminal accepts. NUL and bytes that are not UTF-8 are
    replaced.

    >>> text_of(b"caf\xe9\0")
    'caf��'
    """
    return content.decode("utf-8", "replace").replace("\0", "\ufffd")


def storable(text: str) -> str:
    r"""Return a text with NUL and halves of surrogate pairs replaced, as PostgreSQL, HTTP and UTF-8 accept neither.

    >>> storable("caf\udce9")
    'caf?'
    """
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def json_of(content: bytes | str, *, for_display: bool = False) -> Any:
    r"""Return the value in a JSON text. Raises `ValueError` with a short line.

    NaN and infinite numbers, which JSON does not have, become None. A number of many digits is refused, because Python
    before 3.11 takes minutes for a million digits. With `for_display`, NUL, halves of surrogate pairs and bytes that
    are not UTF-8 are replaced, since no database can store them. Use it only for texts that are compared and shown.

    >>> json_of(b'{"comment": "caf\xe9 \\ud800", "load": NaN, "limit": 1e999}', for_display=True)
    {'comment': 'caf� �', 'load': None, 'limit': None}
    """
    try:
        if for_display:
            content = _displayable(content)
        text = content.decode() if isinstance(content, bytes) else content  # json would also try UTF-16
        return json.loads(
            text, strict=not for_display, parse_int=_whole, parse_float=_finite, parse_constant=lambda _word: None
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(str(error)[:100]) from error


def _displayable(content: bytes | str) -> str:
    text = text_of(content) if isinstance(content, bytes) else storable(content)
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape["wrong"] else escape[0], text) if "\\u" in text else text


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None
