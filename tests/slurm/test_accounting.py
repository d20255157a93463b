"""The questions of entitlements to Slurm's accounting, to programs on the PATH that answer as Slurm 24.11 does."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.entitlements.entitlements_harness import SHARES, EntitlementsHarness
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.accounting import check_accounting
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
SCRIPT = """#!/bin/sh
[ "$*" = "{words}" ] || {{ echo "{program}: error: Unknown condition: $*" >&2; exit 1; }}
[ ! -e "$0.away" ] || {{ cat "$0.away" >&2; exit 1; }}
cat "$0.says"
"""
ASKED = {
    "scontrol": "show config",
    "sacctmgr": "--parsable2 --noheader list account format=Account",
    "sinfo": "--noheader --partition=shared --format=%R",
}
NO_CONTROLLER = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)"
NO_DATABASE = "sacctmgr: error: Problem talking to the database: Connection refused"


@dataclass
class Accounting:
    """Stand-ins of Slurm's programs, and what they say."""

    folder: Path

    def put_on(self) -> None:
        for program, words in ASKED.items():
            self.answers(program, words)
        self.enforces("associations,limits,qos")
        self.has("root", "gleaner", *SHARES)
        (self.folder / "sinfo.says").write_text("shared\n")

    def answers(self, program: str, words: str) -> None:
        (self.folder / program).write_text(SCRIPT.format(program=program, words=words))
        (self.folder / program).chmod(0o755)

    def enforces(self, what: str) -> None:
        (self.folder / "scontrol.says").write_text(CONFIG.format(what))

    def has(self, *accounts: str) -> None:
        (self.folder / "sacctmgr.says").write_text("".join(f"{account}\n" for account in accounts))

    def is_away(self, program: str, complaint: str) -> None:
        (self.folder / f"{program}.away").write_text(complaint + "\n")


@pytest.fixture
def accounting(faked: FakedSlurm) -> Accounting:
    """On the PATH, beside the other programs of a faked Slurm."""
    made = Accounting(faked.folder)
    made.put_on()
    return made


def check(*entitled: str, partitions: tuple[str, ...] = ("shared",)) -> None:
    cluster(partitions).check_owners(entitled)


def cluster(partitions: tuple[str, ...]) -> SlurmCluster:
    return SlurmCluster(ClusterSettings(timeout_s=TIMEOUT_S), Path("/nowhere"), partitions)


@pytest.mark.parametrize("what", ["associations", "associations,limits", "associations,limits,qos,safe"])
def test_accounting_that_enforces_associations_is_fit_for_entitlements(accounting: Accounting, what: str) -> None:
    accounting.enforces(what)
    check("physics", "biology")


def test_each_partition_that_slurm_does_not_know_is_named(accounting: Accounting) -> None:
    accounting.answers("sinfo", "--noheader --partition=shared,long --format=%R")
    with pytest.raises(ClusterError) as refused:
        check("physics", partitions=("shared", "long"))
    assert str(refused.value) == "[entitlements] partitions names long, which is no partition of Slurm's"


@pytest.mark.parametrize(("what", "said"), [("none", "none"), ("(null)", "none"), ("", "none"), ("nojobs", "nojobs")])
def test_entitlements_refuses_where_anybody_could_name_any_account(
    accounting: Accounting, what: str, said: str
) -> None:
    accounting.enforces(what)
    with pytest.raises(ClusterError) as refused:
        check("physics")
    assert str(refused.value) == (
        f"Slurm's AccountingStorageEnforce is {said}: anybody could name any account, so no entitlements are enforced;"
        " set AccountingStorageEnforce=associations (or more) in slurm.conf, with slurmdbd"
    )
    assert not isinstance(refused.value, ClusterUnavailable), "asking again would not help"


def test_a_configuration_that_says_nothing_of_it_is_no_yes(accounting: Accounting) -> None:
    (accounting.folder / "scontrol.says").write_text("Configuration data as of 2026-11-20T10:00:00\n")
    with pytest.raises(ClusterError, match="names no AccountingStorageEnforce"):
        check_accounting(timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("name", ["alchemy", "phys", "Physics"])
def test_an_entitled_account_that_slurm_does_not_know_is_one_clear_line(accounting: Accounting, name: str) -> None:
    with pytest.raises(ClusterError) as refused:
        check("biology", name, "physics")
    assert str(refused.value) == (
        f"[entitlements] entitled names {name}, which is no account of Slurm's;"
        " there are biology, chemistry, gleaner, physics, root"
    )


@pytest.mark.parametrize(("program", "complaint"), [("scontrol", NO_CONTROLLER), ("sacctmgr", NO_DATABASE)])
def test_a_slurm_that_cannot_be_asked_is_asked_again_later(
    accounting: Accounting, program: str, complaint: str
) -> None:
    accounting.is_away(program, complaint)
    with pytest.raises(ClusterUnavailable, match=f"Slurm does not answer: {program}"):
        check("physics")


@pytest.mark.parametrize("wrong", ["account", "enforcement"])
def test_control_says_what_is_wrong_does_nothing_to_anybody_and_enforces_once_it_is_mended(
    accounting: Accounting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    harness = EntitlementsHarness(tmp_path)
    monkeypatch.setattr(harness.cluster, "check_owners", cluster(("shared",)).check_owners)
    if wrong == "account":
        accounting.has("root", "physics", "biology")
    else:
        accounting.enforces("none")
    harness.cluster.enter("p", "physics", 6)
    harness.rounds(3)
    said = harness.state.entitlements.problem
    assert said.startswith("[entitlements] entitled names chemistry" if wrong == "account" else "Slurm's Accounting")
    assert "\n" not in said
    assert (harness.runs, harness.cluster.acts, harness.decided("p")) == (set(), [], ())
    accounting.put_on()
    harness.rounds(2)
    assert (harness.runs, harness.state.entitlements.problem) == ({"p"}, "")
