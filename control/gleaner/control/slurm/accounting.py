"""Slurm's accounting, namely a check that it restricts users to their accounts, and the accounts' shares.

`sacctmgr` queries slurmdbd.
"""

import re
from collections import defaultdict

from gleaner.control.slurm import run
from gleaner.control.slurm.interface import ClusterError

_KEY = "AccountingStorageEnforce"
ASK_SHARES = (
    "sacctmgr", "--parsable2", "--noheader", "--readonly", "show", "assoc",
    "format=Cluster,Account,ParentName,User,Share",
)  # fmt: skip
_SHARE = re.compile(r"[0-9]{1,10}")
ROOT = "root"
AS_PARENT = "parent"
"""The word that Slurm prints instead of a number if an account has no share of its own. The account's users then share
with those of the parent account."""


def check_accounting(*, timeout_s: float) -> None:
    """Raise `ClusterError`, with a message of one line, unless Slurm refuses jobs without an association.

    Raises `ClusterUnavailable` if Slurm does not answer.
    """
    said = enforced(run.run(("scontrol", "show", "config"), timeout_s=timeout_s))
    if not said & {"associations", "limits", "qos", "safe", "all"}:  # each of these values includes associations
        raise ClusterError(
            f"Slurm's {_KEY} is {','.join(sorted(said)) or 'none'}: anybody could name any account, so no"
            f" entitlements are enforced; set {_KEY}=associations (or more) in slurm.conf, with slurmdbd"
        )


def enforced(config: str) -> frozenset[str]:
    """Return the limits that accounting enforces, from the output of `scontrol show config`.

    >>> sorted(enforced("AccountingStorageEnforce = associations,limits,qos"))
    ['associations', 'limits', 'qos']
    """
    for line in config.splitlines():
        key, is_there, value = line.partition("=")
        if is_there and key.strip() == _KEY:
            return frozenset(word for word in value.strip().split(",") if word not in {"none", "(null)", ""})
    raise ClusterError(f"scontrol show config names no {_KEY}")


def shares(*, timeout_s: float) -> dict[str, float]:
    """Return the accounts' percentages, as `parse_shares` does. Raises `ClusterUnavailable` or `ClusterError`."""
    return parse_shares(run.run(ASK_SHARES, timeout_s=timeout_s))


def parse_shares(answer: str) -> dict[str, float]:
    r"""Return the percentage of the whole cluster for each account that has no account below it.

    An account's share counts relative to the other accounts of the same parent.

    >>> parse_shares("c|root|||1\nc|sciences|root||3\nc|physics|sciences||1\nc|theory|sciences||1\nc|art|root||1\n")
    {'physics': 37.5, 'theory': 37.5, 'art': 25.0}
    """
    own: dict[str, float] = {}
    parents: dict[str, str] = {}
    clusters: set[str] = set()
    for line in filter(None, answer.splitlines()):
        fields = line.split("|")
        if len(fields) != 5:
            raise ClusterError(f"sacctmgr said {line[:80]!r}, and 5 fields were expected")
        cluster, account, parent, user, share = fields
        clusters.add(cluster)
        if not user and account != ROOT and share != AS_PARENT:
            own[account], parents[account] = _number(share, line), parent or ROOT
    if len(clusters) > 1:
        known = ", ".join(sorted(clusters))
        raise ClusterError(f"slurmdbd keeps the shares of several clusters ({known}): set [groups] entitled instead")
    below: defaultdict[str, float] = defaultdict(float)
    for account, number in own.items():
        below[parents[account]] += number

    def part(account: str) -> float:
        per_cent, passed = 100.0, set[str]()
        while account in own:  # up to the root
            if account in passed:
                raise ClusterError(f"sacctmgr said that account {account} is below itself")
            passed.add(account)
            parent = parents[account]
            per_cent *= own[account] / below[parent] if below[parent] else 0.0
            account = parent
        return per_cent

    return {account: part(account) for account in own if account not in below}


def _number(share: str, line: str) -> float:
    if not _SHARE.fullmatch(share):
        raise ClusterError(f"sacctmgr said {line[:80]!r}, and a whole number was expected as the share")
    return float(share)
