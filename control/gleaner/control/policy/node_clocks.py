"""The clocks of nodes. An agent and control agree on the end of a round only if their clocks agree.

The module is pure.
"""

from collections.abc import Mapping

_MOST_S = 1.0
"""The largest acceptable difference, because agents plan their ends to the second."""


def is_wrong(ahead_s: float) -> bool:
    """Return True if a clock that is `ahead_s` seconds ahead of control's counts as wrong."""
    return abs(ahead_s) > _MOST_S


def wrong_clocks(known: Mapping[str, float], node: str, ahead_s: float) -> Mapping[str, float]:
    """Return the seconds by which each wrong clock is ahead of control's, updated with one node's clock.

    >>> wrong_clocks({"n1": 3.0}, "n2", -2.5)
    {'n1': 3.0, 'n2': -2.5}
    >>> wrong_clocks({"n1": 3.0}, "n1", -0.5)
    {}
    """
    others = {name: told_s for name, told_s in known.items() if name != node}
    return others | {node: ahead_s} if is_wrong(ahead_s) else others


def wrong_clock(ahead_s: float) -> str:
    """Return, in one line, the error of the clock and the remedy.

    >>> wrong_clock(-2.5)
    "its clock is 2.5 s or more behind control's: let both follow one time server (chrony or NTP)"
    """
    way = "ahead of" if ahead_s > 0 else "behind"
    return f"its clock is {abs(ahead_s):.1f} s or more {way} control's: let both follow one time server (chrony or NTP)"
