"""The groups' parts, taken from the shares of Slurm's accounts.

Every control program reads them, even one that does not lead.
"""

import structlog

from gleaner.control.control_state import ControlState
from gleaner.control.slurm import accounting

_log = structlog.get_logger(__name__)


def take_shares(state: ControlState) -> None:
    """Read the groups' parts from the shares of Slurm's accounts.

    While Slurm does not answer, the last known shares are used. Before the first answer, all groups have equal parts.

    Raises `ClusterError`.
    """
    found = accounting.shares(timeout_s=state.settings.cluster.timeout_s)
    if found != state.slurm_shares:
        _log.info("the groups' parts, in per cent, by the shares of Slurm's accounts", parts=found)
        known = ", ".join(sorted(found)) or "none"
        for each in sorted(state.settings.groups.multiplier.keys() - found.keys()):
            _log.warning(f"[groups] multiplier names account {each!r}, which Slurm does not know; it knows: {known}")
    state.slurm_shares = found
