"""Every policy whose decisions are stored, by name: from what it was given to what it answered, once more. Pure.

JSON in, JSON out, so that a stored decision can be decided again elsewhere and much later.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gleaner.control.policy import governing, moving, sharing

Replay = Callable[[Mapping[str, Any]], Mapping[str, Any]]

REPLAYS: Mapping[str, Replay] = {
    sharing.POLICY: sharing.replay,
    governing.POLICY: governing.replay,
    moving.POLICY: moving.replay,
}
