"""What Slurm's accounts are entitled to by their shares: `sacctmgr`, which asks slurmdbd."""

from collections import defaultdict

from gleaner.control.cluster import programs
from gleaner.control.cluster.gateway import GatewayError
from gleaner.control.cluster.slurm_words import ASK_ENVIRONMENT

ASK = (
    "sacctmgr", "--parsable2", "--noheader", "--readonly", "show", "assoc",
    "format=Cluster,Account,ParentName,User,Share",
)  # fmt: skip
ROOT = "root"
AS_PARENT = "parent"
"""In place of a number: its users share with those of the account above, and it has nothing of its own."""


def entitled(*, timeout_s: float) -> dict[str, float]:
    """Per cent by account, as `parse` has it. Raises `GatewayUnavailable` or `GatewayError`."""
    return parse(programs.run(ASK, ASK_ENVIRONMENT, timeout_s=timeout_s))


def parse(answer: str) -> dict[str, float]:
    r"""Per cent of the whole for each account that has no account below it: its part of its parent's part.

    >>> parse("c|root|||1\nc|sciences|root||3\nc|physics|sciences||1\nc|theory|sciences||1\nc|art|root||1\n")
    {'physics': 37.5, 'theory': 37.5, 'art': 25.0}
    """
    shares: dict[str, float] = {}
    parents: dict[str, str] = {}
    clusters: set[str] = set()
    for line in filter(None, answer.splitlines()):
        fields = line.split("|")
        if len(fields) != 5:
            raise GatewayError(f"sacctmgr said {line!r}, and 5 fields were expected")
        cluster, account, parent, user, share = fields
        clusters.add(cluster)
        if not user and account != ROOT and share != AS_PARENT:
            shares[account], parents[account] = _number(share, line), parent or ROOT
    if len(clusters) > 1:
        known = ", ".join(sorted(clusters))
        raise GatewayError(f"slurmdbd keeps the shares of several clusters ({known}): set [groups] entitled instead")
    below: defaultdict[str, float] = defaultdict(float)
    for account, own in shares.items():
        below[parents[account]] += own

    def part(account: str) -> float:
        if account not in shares:
            return 100.0  # the root
        whole = below[parents[account]]
        return part(parents[account]) * shares[account] / whole if whole else 0.0

    return {account: part(account) for account in shares if account not in below}


def _number(share: str, line: str) -> float:
    try:
        return float(int(share))
    except ValueError:
        raise GatewayError(f"sacctmgr said {line!r}, and a whole number was expected as the share") from None
