"""The shim's own reasons why a container is not saved or restored, as lines in the form of CRIU's log.

Where CRIU names a file of its own source, such a line has a mark, which tells the agent if the reason lasts.
"""

from __future__ import annotations  # the node may have Python 3.9

from typing import NamedTuple

LASTS, PASSES = "gleaner/lasts", "gleaner/passes"
_LONGEST_PATH = 80


class Reason(NamedTuple):
    """A reason in one line. `lasts`: it stays unless the program changes, so that every node and every try gives it.

    What may pass by itself while the program goes on does not last, such as a message that will be received.
    """

    text: str
    lasts: bool


def log_line(reason: Reason) -> str:
    r"""Return the line of the log.

    >>> log_line(Reason("it is stopped", lasts=False))
    '(00.000000) Error (gleaner/passes:0): it is stopped\n'
    """
    return f"(00.000000) Error ({LASTS if reason.lasts else PASSES}:0): {reason.text}\n"


def shown(path: str) -> str:
    """Return a path in quotation marks, at most 80 characters: of a long one, the beginning and the end.

    >>> shown("/job/x"), shown("/job/" + "x" * 4000)[:8], len(shown("/job/" + "x" * 4000))
    ("'/job/x'", "'/job/xx", 80)
    """
    text = repr(path)
    half = (_LONGEST_PATH - 3) // 2
    return text if len(text) <= _LONGEST_PATH else f"{text[: half + 1]}...{text[-half:]}"
