"""Slurm's settings that keep agents off, or let them or regular jobs wait: each is named by its check."""

import pytest
from tests.setup import healthy as h
from tests.setup.slurm_cases import FAULTS, IN_ORDER, NO_NODE, NODES, PARTITIONS, WARNINGS, refused

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
