"""Governing where little can be had: agents on every node, an hour's saves spent, no node that can be used."""

from dataclasses import replace

from tests.governing.office import Office

from gleaner.control.cluster.owners import OwnersView
from gleaner.control.policy.governing_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room


def acts_on(office: Office, job: str) -> list[str]:
    return [act for act, about in office.cluster.acts if about == job]


def test_an_agent_gives_way_for_a_job_above_its_owners_entitlement_and_only_that_agent(office: Office) -> None:
    office.cluster.patience_s = 45
    for number in (1, 2, 3):
        office.cluster.agent(f"a{number}", f"node{number}")
    for job in ("x", "y"):
        office.cluster.submit(job, "others", 3, JobClass.CHECKPOINTABLE)
    office.rounds(14)
    assert office.runs == {"x", "y"}
    assert [act for act, _ in office.cluster.acts if act == "send home"] == ["send home"]
    assert acts_on(office, "x") == acts_on(office, "y") == ["release"], "neither was held again while the agent went"


def test_a_claim_that_comes_while_an_agent_leaves_for_another_job_has_another_agents_node(office: Office) -> None:
    office.cluster.patience_s = 20
    office.cluster.agent("a1", "node1")
    office.cluster.agent("a2", "node2")
    office.cluster.submit("c", "chemistry", 5)
    office.rounds(2)
    office.cluster.submit("x", "others", 6, JobClass.CHECKPOINTABLE)
    office.rounds()
    office.cluster.submit("p", "physics", 6)
    office.rounds(10)
    assert office.runs == {"c", "x", "p"}
    assert [about for act, about in office.cluster.acts if act == "hold"] == []


def test_a_claim_that_needs_more_saves_than_an_hour_allows_has_them_in_several(office: Office) -> None:
    office.restart(saves_per_hour_at_most=2)
    for number in range(18):
        office.cluster.submit(f"x{number}", "others", 1, JobClass.CHECKPOINTABLE)
    office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.submit("p", "physics", 5)
    for hour in (1, 2, 3):
        office.rounds(6)
        assert len([act for act, _ in office.cluster.acts if act == "signal"]) == min(5, 2 * hour)
        office.cluster.pass_time(3700)
    office.rounds(2)
    assert "p" in office.runs and len(office.runs) == 14, "nobody else had what those left who went first"


def test_while_no_node_can_be_used_control_governs_on_and_says_why_jobs_wait(office: Office) -> None:
    office.cluster.submit("p", "physics", 6)
    look = office.cluster.look

    def all_drained(now_s: float) -> OwnersView:
        return replace(look(now_s), nodes=())

    office.cluster.look = all_drained  # type: ignore[method-assign]
    office.rounds(3)
    assert office.cluster.heard_s == office.cluster.now_s - 5
    assert office.site.governing.problem == ""
    assert office.cluster.jobs["p"].said == "gleaner: no node of the governed partitions can be used now"
    office.cluster.look = look  # type: ignore[method-assign]
    office.rounds(2)
    assert office.runs == {"p"}


def test_a_job_whose_tasks_may_be_apart_is_not_held_again_while_the_agents_leave(office: Office) -> None:
    office.cluster.patience_s = 45
    for number in (1, 2, 3):
        office.cluster.agent(f"a{number}", f"node{number}")
    office.cluster.submit("x", "others", 8, JobClass.CHECKPOINTABLE)
    office.cluster.jobs["x"] = replace(office.cluster.jobs["x"], wish=Wish(8, Room(1, 100), apart=False))
    office.rounds(14)
    assert office.cluster.acts == [("release", "x"), ("send home", "a1"), ("send home", "a2")]
    assert office.runs == {"x"}
