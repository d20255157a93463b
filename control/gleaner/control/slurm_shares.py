"""Takes the groups' parts from the shares of Slurm's accounts, now and then, if `[groups] from_slurm` says so."""

import structlog

from gleaner.control.cluster import accounts
from gleaner.control.cluster.gateway import GatewayError
from gleaner.control.site import Site

_log = structlog.get_logger(__name__)


def take_shares(site: Site) -> None:
    """Ask Slurm. While it does not answer, the last shares count; before the first, all groups are equal."""
    try:
        found = accounts.entitled(timeout_s=site.settings.cluster.timeout_s)
    except GatewayError as error:
        _log.warning("the shares of Slurm's accounts could not be read, it will be tried again", reason=str(error))
        return
    if found != site.slurm_shares:
        _log.info("the groups' parts, in per cent, by the shares of Slurm's accounts", parts=found)
        for line in unknown(site, found):
            _log.warning(line)
    site.slurm_shares = found


def unknown(site: Site, found: dict[str, float]) -> list[str]:
    """A line for each account that the settings name and Slurm does not know."""
    known = ", ".join(sorted(found)) or "none"
    wrong = sorted(site.settings.groups.multiplier.keys() - found.keys())
    told = "which Slurm does not know; it knows"
    return [f"[groups] multiplier names account {each!r}, {told}: {known}" for each in wrong]
