"""The live loop of governing, on a made cluster and a real database."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.governing.office import Office, chemistry_over_its_share

from gleaner.control.cluster.gateway import GatewayError
from gleaner.control.cluster.owners import OwnersView
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.replaying import REPLAYS
from gleaner.control.queue.decision_tables import DecisionKind

FIXED, KILLED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.PREEMPTIBLE, JobClass.CHECKPOINTABLE


def test_an_entitled_account_runs_within_one_grace_time_and_one_look(office: Office) -> None:
    chemistry_over_its_share(office)
    office.cluster.submit("p1", "physics", 6)
    began_s = office.cluster.now_s
    while "p1" not in office.runs:
        office.rounds()
        assert office.cluster.now_s - began_s <= 60 + 5
    assert ("send home", "a3") in office.cluster.acts
    assert office.runs == {"c1", "c2", "p1"}, "an agent was there, so nobody else gives way"


def test_exactly_what_is_asked_for_is_given_back_and_goes_on_later(office: Office) -> None:
    chemistry_over_its_share(office)
    office.cluster.submit("p1", "physics", 6)
    office.rounds(4)
    office.cluster.submit("p2", "physics", 3)
    office.rounds(4)
    assert office.runs >= {"p1", "p2"}
    assert len(office.runs & {"c1", "c2"}) == 1
    told = {job for act, job in office.cluster.acts if act == "signal"}
    assert len(told) == 1
    office.cluster.end("p1")
    office.rounds(3)
    assert office.runs == {"c1", "c2", "p2"}


def test_a_preemptible_job_is_requeued_and_an_undeclared_one_never_touched(office: Office) -> None:
    office.cluster.submit("fixed", "chemistry", 5, FIXED)
    for number, cpus in enumerate((1, 6, 6)):
        office.cluster.submit(f"k{number}", "chemistry", cpus, KILLED)
    office.rounds(2)
    assert len(office.runs) == 4
    office.cluster.pass_time(4000)
    office.cluster.submit("p", "physics", 9 - 3)
    office.rounds(4)
    assert "p" in office.runs and "fixed" in office.runs
    assert {act for act, _ in office.cluster.acts} == {"release", "requeue"}


def test_non_preemptible_work_above_the_entitlement_says_on_the_job_why_it_is_held(office: Office) -> None:
    office.cluster.submit("b", "biology", 4)
    office.rounds(2)
    assert office.runs == set()
    assert office.cluster.jobs["b"].said.startswith("gleaner: biology may have 3 CPUs in non-preemptible jobs")


def test_a_job_larger_than_its_owners_entitlement_runs_on_idle_cpus_and_is_saved_when_they_are_claimed(
    office: Office,
) -> None:
    office.cluster.submit("large", "biology", 6, SAVED)
    office.cluster.submit("c", "chemistry", 5)
    office.cluster.submit("p1", "physics", 4)
    office.rounds(2)
    assert office.runs == {"large", "c", "p1"}
    office.cluster.pass_time(4000)
    office.cluster.submit("p2", "physics", 5)
    office.rounds(4)
    assert office.runs == {"c", "p1", "p2"}
    assert ("signal", "large") in office.cluster.acts


def test_a_victim_that_does_not_go_is_left_alone_and_another_one_is_chosen(office: Office) -> None:
    for job in ("c1", "c2", "x"):
        office.cluster.submit(job, "chemistry", 6, SAVED)
    office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.stubborn = {"c1", "x"}
    office.cluster.submit("p", "physics", 6)
    office.rounds(40)
    assert "p" in office.runs and office.runs >= {"c1", "x"}
    told = [job for act, job in office.cluster.acts if act == "signal"]
    assert len(told) == len(set(told)), "one that did not go was asked again at once"


def test_a_victim_that_ends_while_it_is_saved_makes_room_all_the_same(office: Office) -> None:
    chemistry_over_its_share(office)
    office.cluster.end("a3")
    office.cluster.submit("c3", "chemistry", 6, SAVED)
    office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.submit("p", "physics", 6)
    office.governor.a_round(office.cluster.now_s)
    (told,) = [job for act, job in office.cluster.acts if act == "signal"]
    office.cluster.end(told)
    office.rounds(3)
    assert "p" in office.runs
    assert len([act for act, _ in office.cluster.acts if act == "signal"]) == 1


def test_a_dry_run_decides_the_same_and_does_nothing(office: Office) -> None:
    chemistry_over_its_share(office)
    before = list(office.cluster.acts)
    office.restart(mode="dry-run")
    office.cluster.submit("p", "physics", 6)
    office.cluster.heard_s = 0
    office.rounds(5)
    assert office.cluster.acts == before and office.cluster.heard_s == 0
    (decision, *older) = office.decided("p")
    assert not older, "nothing new was ruled, so nothing new is stored"
    assert not decision.acted
    assert decision.kind is DecisionKind.VICTIM
    assert decision.answer["rulings"][0]["victims"] == ["a3"]


def test_nothing_is_governed_before_the_cluster_was_found_fit_for_it(office: Office) -> None:
    office.cluster.refuses = "[governing] entitled names physics, which is no account of Slurm's"
    office.cluster.submit("p", "physics", 6)
    office.rounds(2)
    assert office.site.governing.problem == office.cluster.refuses
    assert not office.cluster.acts and office.cluster.heard_s == 0
    office.cluster.refuses = ""
    office.rounds(2)
    assert office.runs == {"p"}


def test_what_slurm_does_not_answer_is_a_problem_and_goes_on_when_it_does(office: Office) -> None:
    chemistry_over_its_share(office)
    office.cluster.submit("p", "physics", 6)
    office.cluster.is_away = True
    office.rounds(2)
    assert "does not answer" in office.site.governing.problem
    office.cluster.is_away = False
    office.rounds(4)
    assert office.site.governing.problem == "" and "p" in office.runs


def test_slurm_going_away_in_the_middle_of_an_eviction_loses_nothing(office: Office) -> None:
    chemistry_over_its_share(office)
    office.cluster.submit("p", "physics", 9)
    office.cluster.submit("p2", "physics", 6)
    release = office.cluster.release

    def release_and_go(job: str, *, top: bool, submitted_s: float | None = None) -> None:
        release(job, top=top, submitted_s=submitted_s)
        office.cluster.is_away = True

    office.cluster.release = release_and_go  # type: ignore[method-assign]
    office.rounds(2)
    assert office.site.governing.problem
    office.cluster.release = release  # type: ignore[method-assign]
    office.cluster.is_away = False
    office.rounds(5)
    assert "p2" in office.runs


def test_beyond_the_ceiling_only_agents_give_way_until_an_hour_has_passed(office: Office) -> None:
    office.restart(saves_per_hour_at_most=1)
    for job in ("c1", "c2", "c3"):
        office.cluster.submit(job, "chemistry", 6, SAVED)
    office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.submit("p1", "physics", 3)
    office.cluster.submit("p2", "physics", 6)
    office.rounds(5)
    assert len([act for act, _ in office.cluster.acts if act == "signal"]) == 1
    office.cluster.pass_time(3700)
    office.rounds(5)
    assert office.runs >= {"p1", "p2"}


def test_a_stored_decision_replays_to_the_same(office: Office) -> None:
    chemistry_over_its_share(office)
    office.cluster.submit("p", "physics", 6)
    office.rounds(3)
    found = {decision.id: decision for job in ("c1", "c2", "a3", "p") for decision in office.decided(job)}
    assert len(found) >= 2
    for decision in found.values():
        assert REPLAYS[decision.policy](decision.given) == decision.answer


@pytest.mark.parametrize("at", range(6))
def test_control_may_be_killed_at_any_act_and_the_next_one_goes_on(office: Office, at: int) -> None:
    chemistry_over_its_share(office)
    office.cluster.end("a3")
    office.cluster.submit("c3", "chemistry", 6, SAVED)
    office.rounds(2)
    office.cluster.pass_time(4000)
    office.cluster.submit("p1", "physics", 6)
    office.cluster.submit("p2", "physics", 3)
    office.cluster.dies_at = len(office.cluster.acts) + at
    office.rounds_though_killed(8)
    assert office.runs >= {"p1", "p2"}
    assert office.cluster.held_by("chemistry") >= 6
    assert len(office.cluster.jobs) == 5


def test_nobody_gives_way_for_a_job_that_was_cancelled_while_it_was_decided(office: Office) -> None:
    chemistry_over_its_share(office)
    office.cluster.submit("p", "physics", 6)
    seen = office.cluster.look(office.cluster.now_s)
    office.cluster.end("p")
    office.cluster.look = lambda now_s: seen  # type: ignore[method-assign]
    before = list(office.cluster.acts)
    office.governor.a_round(office.cluster.now_s)
    assert office.cluster.acts == before
    assert "there is no job p" in office.site.governing.problem


def test_one_who_cannot_decide_does_not_say_that_it_governs(office: Office) -> None:
    """Jobs would be held for ever, since the dead man's switch trusts in what is said."""
    office.rounds()
    last_s = office.cluster.heard_s
    look = office.cluster.look

    def fails(now_s: float) -> OwnersView:
        raise GatewayError("Slurm said '1K' where a number was expected")

    office.cluster.look = fails  # type: ignore[method-assign]
    office.rounds(3)
    assert office.cluster.heard_s == last_s
    office.cluster.look = look  # type: ignore[method-assign]
    office.cluster.is_away = True
    office.rounds()
    assert office.cluster.heard_s > last_s, "while Slurm is away nothing is let go"


@pytest.mark.parametrize("holds_in", [("shared", "debug"), ()], ids=["one more", "none"])
def test_where_jobs_are_held_that_control_does_not_look_at_nothing_is_governed(
    office: Office, holds_in: tuple[str, ...]
) -> None:
    """Also the other way round: what nobody holds cannot be ruled on."""
    office.cluster.holds_in = holds_in
    office.cluster.submit("p", "physics", 6)
    office.rounds(3)
    assert (office.cluster.heard_s, office.cluster.acts) == (0.0, [])
    assert "governed.conf" in office.site.governing.problem
    assert "\n" not in office.site.governing.problem
    office.cluster.holds_in = ("shared",)
    office.rounds(2)
    assert (office.site.governing.problem, office.runs) == ("", {"p"})


OWNERS = ("physics", "chemistry", "biology", "others")


@dataclass(frozen=True)
class Submitted:
    owner: str
    cpus: int
    kind: JobClass


@dataclass(frozen=True)
class AgentCame:
    node: str


@dataclass(frozen=True)
class JobEnded:
    number: int


@dataclass(frozen=True)
class Waited:
    rounds: int


happenings = st.one_of(
    st.builds(Submitted, st.sampled_from(OWNERS), st.integers(1, 6), st.sampled_from(JobClass)),
    st.builds(JobEnded, st.integers(0, 30)),
    st.builds(Waited, st.integers(1, 4)),
    st.builds(AgentCame, st.sampled_from(["node1", "node2", "node3"])),
)


@pytest.mark.slow
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=st.lists(happenings, max_size=25))
def test_whatever_comes_owners_get_what_they_are_entitled_to_and_nobody_below_loses(
    script: list[Submitted | AgentCame | JobEnded | Waited], tmp_path_factory: pytest.TempPathFactory
) -> None:
    office = Office(tmp_path_factory.mktemp("office"))
    for number, what in enumerate(script):
        rounds = 1
        match what:
            case Submitted(owner, cpus, kind):
                office.cluster.submit(f"j{number}", owner, cpus, kind)
            case AgentCame(node):
                if office.cluster.free()[node].cpus == 6:
                    office.cluster.agent(f"j{number}", node)
            case JobEnded(which):
                office.cluster.end(f"j{which}")
            case Waited(rounds):
                pass
        held = {owner: office.cluster.held_by(owner) for owner in OWNERS}
        acts = len(office.cluster.acts)
        office.rounds(rounds)
        for act, job in office.cluster.acts[acts:]:
            if act in {"signal", "requeue"} and job in office.cluster.jobs:
                owner = office.cluster.jobs[job].account
                entitled = {"physics": 9, "chemistry": 5, "biology": 3}.get(owner, 0)
                assert max(held[owner], office.cluster.held_by(owner)) > entitled
    office.rounds(20)  # a grace time and more: everything that is owed and can be placed runs
    entitled = {"physics": 9, "chemistry": 5, "biology": 3}
    waiting = [job for job in office.cluster.jobs.values() if not job.holds and job.account in entitled]
    for job in waiting:
        if job.wish.cpus > entitled[job.account] - office.cluster.held_by(job.account):
            continue
        fixed = {
            node: sum(
                one.holds[node].cpus
                for one in office.cluster.jobs.values()
                if one.holds
                and node in one.holds
                and (one.job_class is FIXED or office.cluster.held_by(one.account) <= entitled.get(one.account, 0))
                and one.partition == "shared"
            )
            for node in office.cluster.nodes
        }
        assert all(6 - taken < job.wish.cpus for taken in fixed.values()), f"{job.id} is owed and could be placed"


def test_made_offices_have_each_their_own_queue(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert Office(tmp_path / "one").runs == set()
