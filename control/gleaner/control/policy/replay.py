"""The policies whose decisions are stored, by name. Each can compute its answer again from its stored input.

The module is pure. Input and answer are JSON, so that a stored decision can be repeated elsewhere and much later.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gleaner.control.policy import entitlements, fair_share, rebalancing

Replay = Callable[[Mapping[str, Any]], Mapping[str, Any]]

REPLAYS: Mapping[str, Replay] = {
    fair_share.POLICY: fair_share.replay,
    entitlements.POLICY: entitlements.replay,
    rebalancing.POLICY: rebalancing.replay,
}
