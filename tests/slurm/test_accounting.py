"""The questions of entitlements to Slurm's accounting, to programs on the PATH that answer as Slurm 24.11 does."""

from pathlib import Path

import pytest
from tests.entitlements.entitlements_harness import SHARES
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm.program_cluster import SlurmCluster

TIMEOUT_S = 10.0
CONFIG = """Configuration data as of 2026-11-20T10:00:00
AccountingStorageBackupHost = (null)
AccountingStorageEnforce = {}
AccountingStorageHost   = head
AccountingStorageType   = accounting_storage/slurmdbd

Slurmctld(primary) at head is UP
"""


def enforces(faked: FakedSlurm, what: str) -> None:
    faked.switch("config", CONFIG.format(what))


def has(faked: FakedSlurm, *accounts: str) -> None:
    faked.switch("accounts", "".join(f"{account}\n" for account in accounts))


def mend(faked: FakedSlurm) -> None:
    enforces(faked, "associations,limits,qos")
    has(faked, "root", "gleaner", *SHARES)


@pytest.fixture
def accounting(faked: FakedSlurm) -> FakedSlurm:
    """A Slurm whose accounting is fit for entitlements."""
    mend(faked)
    return faked


def check(*entitled: str, partitions: tuple[str, ...] = ("shared",)) -> None:
    cluster(partitions).check_owners(entitled)


def cluster(partitions: tuple[str, ...]) -> SlurmCluster:
    return SlurmCluster(ClusterSettings(timeout_s=TIMEOUT_S), Path("/nowhere"), partitions)


def test_each_partition_that_slurm_does_not_know_is_named(accounting: FakedSlurm) -> None:
    with pytest.raises(ClusterError) as refused:
        check("physics", partitions=("shared", "long"))
    assert str(refused.value) == "[entitlements] partitions names long, which is no partition of Slurm's"


@pytest.mark.parametrize(("what", "said"), [("none", "none"), ("(null)", "none"), ("", "none"), ("nojobs", "nojobs")])
def test_entitlements_refuses_where_anybody_could_name_any_account(
    accounting: FakedSlurm, what: str, said: str
) -> None:
    enforces(accounting, what)
    with pytest.raises(ClusterError) as refused:
        check("physics")
    assert str(refused.value) == (
        f"Slurm's AccountingStorageEnforce is {said}: anybody could name any account, so no entitlements are enforced;"
        " set AccountingStorageEnforce=associations (or more) in slurm.conf, with slurmdbd"
    )
    assert not isinstance(refused.value, ClusterUnavailable), "asking again would not help"


@pytest.mark.parametrize("name", ["alchemy", "phys", "Physics"])
def test_an_entitled_account_that_slurm_does_not_know_is_one_clear_line(accounting: FakedSlurm, name: str) -> None:
    with pytest.raises(ClusterError) as refused:
        check("biology", name, "physics")
    assert str(refused.value) == (
        f"[entitlements] entitled names {name}, which is no account of Slurm's;"
        " there are biology, chemistry, gleaner, physics, root"
    )


@pytest.mark.parametrize("program", ["scontrol", "sacctmgr"])
def test_a_slurm_that_cannot_be_asked_is_asked_again_later(accounting: FakedSlurm, program: str) -> None:
    accounting.switch("away", program)
    with pytest.raises(ClusterUnavailable, match=f"Slurm does not answer: {program}"):
        check("physics")
