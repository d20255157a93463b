"""Slurm's settings that keep agents off, or let them or regular jobs wait: each is named by its check."""

from dataclasses import replace

import pytest
from tests.setup import healthy as h
from tests.setup.fault_cases import state_of
from tests.setup.slurm_cases import (
    AGENT,
    FAULTS,
    IN_ORDER,
    NO_NODE,
    NODES,
    PARTITIONS,
    RESERVED,
    WARNINGS,
    limited,
    refused,
    reserved,
    waiting,
)

from gleaner.control.settings import ClusterSettings
from gleaner.control.setup import readers
from gleaner.control.setup.doctor import findings
from gleaner.control.setup.facts import TRIAL, Facts, Output, Unread
from gleaner.control.setup.finding import CheckState, Finding


def found(name: str, facts: Facts) -> Finding:
    (one,) = (finding for finding in findings(facts) if finding.name == name)
    return one


@pytest.mark.parametrize(("name", "facts", "words"), FAULTS)
def test_slurms_setting_that_stops_agents_or_hurts_regular_jobs_is_a_fault(name: str, facts: Facts, words: str) -> None:
    one = found(name, facts)
    assert one.state is CheckState.FAULT
    assert words in one.seen
    assert one.to_do


@pytest.mark.parametrize(("name", "facts", "words"), WARNINGS)
def test_slurms_setting_that_lets_agents_wait_is_a_warning(name: str, facts: Facts, words: str) -> None:
    one = found(name, facts)
    assert one.state is CheckState.WARNING
    assert words in one.seen
    assert one.to_do


@pytest.mark.parametrize(("name", "facts"), IN_ORDER)
def test_slurms_setting_that_does_no_harm_is_in_order(name: str, facts: Facts) -> None:
    assert found(name, facts).state is CheckState.OK


def test_a_trial_that_finds_no_node_leaves_the_word_to_the_check_that_knows_why() -> None:
    for facts in (
        refused(NO_NODE, h.slurm("State=IDLE", "State=IDLE+DRAIN", NODES)),
        refused(NO_NODE, h.slurm("RootOnly=NO", "RootOnly=YES", PARTITIONS)),
        refused(NO_NODE, h.program(h.control(), NODES, Unread("scontrol did not answer within 5 s"))),
        refused(NO_NODE, h.slurm("State=UP GraceTime=120", "State=DOWN GraceTime=120", PARTITIONS)),
    ):
        assert found("trial submission", facts).state is CheckState.NOT_CHECKED


@pytest.mark.parametrize("said", ["Unable to contact slurm controller", "Socket timed out on send/recv operation"])
def test_a_slurm_that_does_not_answer_has_refused_nothing(said: str) -> None:
    assert found("trial submission", refused(f"allocation failure: {said}")).state is CheckState.NOT_CHECKED


def test_a_plug_ins_refusal_is_one_although_agents_are_queued() -> None:
    facts = h.program(refused("allocation failure: Rejected by job_submit plugin"), "squeue agents",
                      Output(0, f"PENDING|{AGENT}|Priority\n"))  # fmt: skip
    assert found("trial submission", facts).state is CheckState.FAULT


def test_what_slurm_hides_from_an_ordinary_user_is_not_judged() -> None:
    facts = h.program(
        h.slurm("PrivateData             = none", "PrivateData = nodes,users"), "sacctmgr level", Output(0, "")
    )
    assert found("PrivateData", replace(facts, uid=1000)).state is CheckState.NOT_CHECKED
    assert found("PrivateData", facts).state is CheckState.FAULT


def test_a_trial_submits_nothing_and_only_in_the_accounts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = h.settings(cluster=ClusterSettings(backend="slurm", account="physics", qos="idle", partition="spare"))
    monkeypatch.setattr("os.geteuid", lambda: 0)
    as_root = readers.submit_for_trial(settings, "gleaner", "root")
    assert {"--test-only", "--uid=gleaner", "--wrap=true", "--partition=spare", "--account=physics"} <= set(as_root)
    assert not [word for word in as_root if word.startswith(("--parsable", "--deadline"))]
    assert readers.submit_for_trial(settings, "", "root") == ()
    monkeypatch.setattr("os.geteuid", lambda: 4200)
    own = readers.submit_for_trial(settings, "gleaner", "gleaner")
    assert "--test-only" in own
    assert not [word for word in own if word.startswith("--uid")]
    assert readers.submit_for_trial(settings, "gleaner", "alice") == ()
    assert readers.submit_for_trial(settings, "gleaner", "") == ()


def test_nobody_else_tries_a_submission() -> None:
    programs = {name: said for name, said in h.control().programs.items() if name != TRIAL}
    one = found("trial submission", h.control(programs=programs))
    assert one.state is CheckState.NOT_CHECKED
    assert one.seen == "only root and the service account can try this"


def test_slurm_of_another_machine_has_no_order_of_starts() -> None:
    facts = h.program(h.control(), "systemctl slurm", Output(0, "Id=slurmctld.service\nLoadState=not-found\n"))
    assert found("slurmctld's start", facts).state is CheckState.OK
    assert found("slurmctld's start", h.control(has_systemd=False)).state is CheckState.NOT_CHECKED
    unread = h.program(h.control(), "systemctl slurm", Unread("no answer within 5 s"))
    assert found("slurmctld's start", unread).state is CheckState.NOT_CHECKED


def test_a_limit_of_nothing_is_named_with_the_command_that_takes_it_away() -> None:
    facts = limited("|||||cpu=0,node=5||")
    (found,) = (finding for finding in findings(facts) if finding.name == "Slurm's limits")
    assert found.seen == "account gleaner has GrpTRES=cpu=0: no agent starts"
    assert found.to_do == "sacctmgr modify account gleaner set GrpTRES=cpu=-1"


def test_agents_may_wait_for_nodes_and_beside_others() -> None:
    for facts in (
        waiting(),
        waiting("Resources", "Priority"),
        waiting("QOSGrpCpuLimit", more=f"RUNNING|{AGENT}|None\n"),
        waiting(more="PENDING|another-job|QOSGrpCpuLimit\n"),
    ):
        assert state_of("agents", facts) is CheckState.OK


def test_reservations_matter_once_no_node_is_left() -> None:
    name = "reservations"
    assert state_of(name, reserved("node[1-2]", "gpu[1-2]")) is CheckState.OK
    later = RESERVED.format("9", "node[1-3]", "INACTIVE")
    assert state_of(name, reserved(more=later.replace("1799000000", "1800000700"))) is CheckState.OK
    assert state_of(name, reserved(more=later.replace("1799000000", "1800000500"))) is CheckState.WARNING
    (found,) = (finding for finding in findings(reserved("gpu1", "node[1-3]")) if finding.name == name)
    when = "no agent starts before 2027-01-26 21:46 UTC"
    assert found.seen == f"{when}: all nodes of gleaner are reserved (old1)"
    longer = RESERVED.format("9", "node3", "ACTIVE").replace("1801000000", "1809000000")
    (found,) = (finding for finding in findings(reserved("node[1-2]", more=longer)) if finding.name == name)
    assert found.seen == f"{when}: all nodes of gleaner are reserved (old0, old9)"
    ours = RESERVED.format("9", "node[1-3]", "ACTIVE Flags=MAGNETIC Accounts=gleaner")
    assert state_of(name, reserved(more=ours)) is CheckState.OK
    others = reserved(more=RESERVED.format("9", "node[1-3]", "ACTIVE Flags=MAGNETIC Users=eve"))
    assert state_of(name, replace(others, account=Unread("nobody knows"))) is CheckState.WARNING


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (limited("|||||cpu=7||"),
         "account gleaner has GrpTRES=cpu=7, and the smallest node has 8 CPUs: no agent starts "
         "sacctmgr modify account gleaner set GrpTRES=cpu=8"),
        (limited("gleaner||||||mem=3G|", "||||||mem=9G|"),
         "user gleaner has MaxTRESPerJob=mem=3G, and the smallest node has 4000 MiB: no agent starts "
         "sacctmgr modify user gleaner where account=gleaner set MaxTRESPerJob=mem=4000M"),
        (limited("|||||||00:01:00"),
         "account gleaner has MaxWall=00:01:00, and a round is 3600 s: no agent starts raise it"),
        (limited("|||||||00:30:00"), "agents start only in the last 1800 s of a round"),
    ],
)  # fmt: skip
def test_a_limit_that_is_too_small_is_named_with_what_would_do(facts: Facts, words: str) -> None:
    (found,) = (finding for finding in findings(facts) if finding.name == "Slurm's limits")
    assert words in f"{found.seen} {found.to_do}"


@pytest.mark.parametrize(
    "facts",
    [
        limited("|||||cpu=8,mem=4000M||01:00:00"),
        limited("gleaner|||||||1-00:00:00", "|||||||00:01:00"),  # the user's counts
        limited("|||0||||", qos="gleaner|||9|||||||"),  # the QOS's counts
        limited("|0||||||", cluster="another"),
        limited("|0||||||", partition="another"),
        h.program(limited("|0||||||"), "scontrol config", Output(0, h.CONFIG.replace(",limits,qos", ""))),
    ],
)  # fmt: skip
def test_limits_that_are_met_or_do_not_count_are_in_order(facts: Facts) -> None:
    assert state_of("Slurm's limits", facts) is CheckState.OK


def test_a_node_has_the_cpus_that_slurm_leaves_to_jobs() -> None:
    facts = limited("|||||cpu=6||")
    assert state_of("Slurm's limits", facts) is CheckState.FAULT
    nodes = Output(0, h.NODES.replace("CPUTot=8", "CPUTot=8 CPUEfctv=6"))
    assert state_of("Slurm's limits", h.program(facts, "scontrol nodes", nodes)) is CheckState.OK


def test_limits_of_others_who_use_the_account_do_not_matter() -> None:
    assert state_of("Slurm's limits", limited("eve|0||||||")) is CheckState.OK
