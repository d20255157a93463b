"""Whether Slurm's accounting is fit to govern by: a job must belong to an account that its user cannot make up."""

from gleaner.control.cluster import programs
from gleaner.control.cluster.gateway import GatewayError
from gleaner.control.cluster.slurm_words import ASK_ENVIRONMENT

_KEY = "AccountingStorageEnforce"


def check_accounting(*, timeout_s: float) -> None:
    """Raise `GatewayError` with one line unless Slurm refuses jobs without an association.

    May raise `GatewayUnavailable`.
    """
    said = enforced(programs.run(("scontrol", "show", "config"), ASK_ENVIRONMENT, timeout_s=timeout_s))
    if not said & {"associations", "limits", "qos", "safe", "all"}:  # each of the others includes associations
        raise GatewayError(
            f"Slurm's {_KEY} is {','.join(sorted(said)) or 'none'}: anybody could name any account, so nothing is"
            f" governed; set {_KEY}=associations (or more) in slurm.conf, with slurmdbd"
        )


def enforced(config: str) -> frozenset[str]:
    """What accounting enforces, from the answer to `scontrol show config`.

    >>> sorted(enforced("AccountingStorageEnforce = associations,limits,qos"))
    ['associations', 'limits', 'qos']
    """
    for line in config.splitlines():
        key, is_there, value = line.partition("=")
        if is_there and key.strip() == _KEY:
            return frozenset(word for word in value.strip().split(",") if word not in {"none", "(null)", ""})
    raise GatewayError(f"scontrol show config names no {_KEY}")
