"""What governing asks Slurm's accounting first, of programs on the PATH that answer as Slurm 24.11 does."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.gateway.places import FakedSlurm
from tests.governing.office import SHARES, Office

from gleaner.control.cluster.accounting import check_accounting
from gleaner.control.cluster.gateway import GatewayError, GatewayUnavailable
from gleaner.control.cluster.slurm_owners import SlurmOwners

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
    SlurmOwners(partitions, agents="gleaner", timeout_s=TIMEOUT_S).check(entitled)


@pytest.mark.parametrize("what", ["associations", "associations,limits", "associations,limits,qos,safe"])
def test_accounting_that_enforces_associations_is_fit_to_govern_by(accounting: Accounting, what: str) -> None:
    accounting.enforces(what)
    check("physics", "biology")


def test_each_partition_that_slurm_does_not_know_is_named(accounting: Accounting) -> None:
    accounting.answers("sinfo", "--noheader --partition=shared,long --format=%R")
    with pytest.raises(GatewayError) as refused:
        check("physics", partitions=("shared", "long"))
    assert str(refused.value) == "[governing] partitions names long, which is no partition of Slurm's"


@pytest.mark.parametrize(("what", "said"), [("none", "none"), ("(null)", "none"), ("", "none"), ("nojobs", "nojobs")])
def test_governing_refuses_where_anybody_could_name_any_account(accounting: Accounting, what: str, said: str) -> None:
    accounting.enforces(what)
    with pytest.raises(GatewayError) as refused:
        check("physics")
    assert str(refused.value) == (
        f"Slurm's AccountingStorageEnforce is {said}: anybody could name any account, so nothing is governed; set"
        " AccountingStorageEnforce=associations (or more) in slurm.conf, with slurmdbd"
    )
    assert not isinstance(refused.value, GatewayUnavailable), "asking again would not help"


def test_a_configuration_that_says_nothing_of_it_is_no_yes(accounting: Accounting) -> None:
    (accounting.folder / "scontrol.says").write_text("Configuration data as of 2026-11-20T10:00:00\n")
    with pytest.raises(GatewayError, match="names no AccountingStorageEnforce"):
        check_accounting(timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("name", ["alchemy", "phys", "Physics"])
def test_an_entitled_account_that_slurm_does_not_know_is_one_clear_line(accounting: Accounting, name: str) -> None:
    with pytest.raises(GatewayError) as refused:
        check("biology", name, "physics")
    assert str(refused.value) == (
        f"[governing] entitled names {name}, which is no account of Slurm's;"
        " there are biology, chemistry, gleaner, physics, root"
    )


@pytest.mark.parametrize(("program", "complaint"), [("scontrol", NO_CONTROLLER), ("sacctmgr", NO_DATABASE)])
def test_a_slurm_that_cannot_be_asked_is_asked_again_later(
    accounting: Accounting, program: str, complaint: str
) -> None:
    accounting.is_away(program, complaint)
    with pytest.raises(GatewayUnavailable, match=f"Slurm does not answer: {program}"):
        check("physics")


@pytest.mark.parametrize("wrong", ["account", "enforcement"])
def test_control_says_what_is_wrong_does_nothing_to_anybody_and_governs_once_it_is_mended(
    accounting: Accounting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    office = Office(tmp_path)
    owners = SlurmOwners(("shared",), agents="gleaner", timeout_s=TIMEOUT_S)
    monkeypatch.setattr(office.cluster, "check", owners.check)
    if wrong == "account":
        accounting.has("root", "physics", "biology")
    else:
        accounting.enforces("none")
    office.cluster.submit("p", "physics", 6)
    office.rounds(3)
    said = office.site.governing.problem
    assert said.startswith("[governing] entitled names chemistry" if wrong == "account" else "Slurm's Accounting")
    assert "\n" not in said
    assert (office.runs, office.cluster.acts, office.decided("p")) == (set(), [], ())
    accounting.put_on()
    office.rounds(2)
    assert (office.runs, office.site.governing.problem) == ({"p"}, "")
