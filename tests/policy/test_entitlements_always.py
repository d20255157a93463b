"""OMFS on nodes that have a shape: what never happens, on full nodes that one owner has too much of."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.policy.entitlement_views import FIXED, NODES, NOW_S, RULES, SAVED, SHARES, agent, runs, view, wants

from gleaner.control.policy import entitlements
from gleaner.control.policy.entitlements import decide, targets_of
from gleaner.control.policy.entitlements_view import (
    AGENTS,
    Decision,
    EntitlementView,
    JobClass,
    RunningJob,
    Verdict,
    as_answer,
    as_input,
)

OWNERS = (*SHARES, "others")
owners = st.sampled_from(OWNERS)
kinds = st.sampled_from(JobClass)


@st.composite
def contended(draw: st.DrawFn) -> EntitlementView:
    """Full nodes. One owner has more than its share, most of it not fixed; all others less, and one of them a claim."""
    low, high = draw(st.sampled_from([(low, high) for low in SHARES for high in OWNERS if low != high]))
    running = _on_the_nodes(draw, low, high)
    used = {owner: sum(job.cpus for job in running if job.owner == owner) for owner in OWNERS}
    assume(used[high] > SHARES.get(high, 0))
    claim = wants("claim", low, draw(st.integers(1, min(6, SHARES[low] - used[low]))), draw(kinds))
    others = [
        wants(f"w{at}", draw(owners), draw(st.integers(1, 6)), draw(kinds), released=draw(st.booleans()),
              ready=draw(st.integers(0, 4)) > 0)
        for at in range(draw(st.integers(0, 5)))
    ]  # fmt: skip
    waiting = draw(st.permutations([claim, *others]))
    rules = replace(RULES, quantum_protects=draw(st.booleans()), saves_left=draw(st.sampled_from([0, 2, 100])))
    return view(waiting, running, rules)


def _on_the_nodes(draw: st.DrawFn, low: str, high: str) -> list[RunningJob]:
    found: list[RunningJob] = []
    for node in NODES:
        if draw(st.integers(0, 5)) == 0:
            found.append(agent(node))
            continue
        most_of_it = draw(owners)
        left = 6 - draw(st.sampled_from([0, 0, 0, 1]))
        while left:
            cpus = draw(st.integers(1, left))
            owner = draw(st.sampled_from([most_of_it, most_of_it, *OWNERS]))
            has = sum(job.cpus for job in found if job.owner == owner) + cpus
            if has > SHARES.get(owner, 0) - (owner == low):
                owner = high
            kind = SAVED if draw(st.integers(0, 3)) else draw(kinds)
            more = {"leaving": draw(st.integers(0, 9)) == 0, "stays": draw(st.integers(0, 9)) == 0}
            since_s = NOW_S - draw(st.sampled_from([10, 5000, 5000]))
            priority = draw(st.integers(-3, 3))
            found.append(runs(f"{node}-{left}", owner, node, cpus, kind, since_s=since_s, priority=priority, **more))
            left -= cpus
    return found


def victims_of(decisions: tuple[Decision, ...], running: tuple[RunningJob, ...]) -> list[RunningJob]:
    there = {job.job: job for job in running}
    return [there[victim] for decision in decisions for victim in decision.victims]


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(contended())
def test_only_who_is_above_its_entitlement_and_may_be_asked_is_a_victim(asked: EntitlementView) -> None:
    decisions = decide(asked)
    victims = victims_of(decisions, asked.running)
    assume(victims)
    assert len(victims) == len({one.job for one in victims}), "one job was asked twice"
    assert sum(1 for one in victims if one.owner != AGENTS) <= asked.rules.saves_left
    for one in victims:
        assert not one.leaving and not one.stays and one.job_class is not FIXED
        is_young = one.owner != AGENTS and one.since_s + asked.rules.quantum_s > NOW_S
        assert not (asked.rules.quantum_protects and is_young)
    for owner in OWNERS:
        mine = [one.cpus for one in victims if one.owner == owner]
        held = sum(job.cpus for job in asked.running if job.owner == owner and not job.leaving)
        if mine:  # before the last of them went it was still above what it is entitled to
            assert held - sum(mine) + max(mine) > SHARES.get(owner, 0)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(contended())
def test_only_claims_preempt_owners_jobs_and_nobody_holds_fixed_jobs_above_its_entitlement(
    asked: EntitlementView,
) -> None:
    decisions = decide(asked)
    assert [decision.job for decision in decisions] == [job.job for job in asked.waiting]
    waiting = {job.job: job for job in asked.waiting}
    for decision in decisions:
        if decision.verdict is Verdict.CLAIM:
            assert waiting[decision.job].wish.cpus <= SHARES.get(waiting[decision.job].owner, 0)
        elif victims := victims_of((decision,), asked.running):
            assert decision.verdict is Verdict.START and {one.owner for one in victims} == {AGENTS}
    for owner in OWNERS:
        let_in = [waiting[decision.job] for decision in decisions if decision.verdict is not Verdict.HOLD]
        asked_for = sum(job.wish.cpus for job in let_in if job.owner == owner and job.job_class is FIXED)
        stay = [job for job in asked.running if job.owner == owner and job.job_class is FIXED and not job.leaving]
        assert not asked_for or sum(job.cpus for job in stay) + asked_for <= SHARES.get(owner, 0)


def played(asked: EntitlementView, decisions: tuple[Decision, ...]) -> EntitlementView:
    """Some time later: who was told to go, or was going, has gone and waits; what is released has started if it fits.

    What is owed starts first, as the scheduler has it.
    """
    told = {victim for decision in decisions for victim in decision.victims}
    gone = [job for job in asked.running if job.job in told or job.leaving]
    running = [job for job in asked.running if job not in gone]
    waiting = list(asked.waiting)
    waiting += [wants(job.job, job.owner, job.cpus, job.job_class) for job in gone if job.owner != AGENTS]
    verdicts = {decision.job: decision.verdict for decision in decisions}
    for verdict in (Verdict.CLAIM, Verdict.START):
        for job in [job for job in waiting if verdicts.get(job.job) is verdict and job.ready]:
            now = view((), running)
            targets = targets_of(job.wish, now.free, {}, (), now.size)
            if targets is not None:
                waiting.remove(job)
                running.append(runs(job.job, job.owner, targets[0], job.wish.cpus, job.job_class))
    waiting = [replace(job, released=verdicts.get(job.job, Verdict.HOLD) is not Verdict.HOLD) for job in waiting]
    return view(waiting, running, asked.rules)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(contended())
def test_what_was_vacated_never_takes_back_from_whom_it_went_to(asked: EntitlementView) -> None:
    """The takers are on the nodes, with all that they were given; those who went ask again."""
    decisions = decide(asked)
    takers = {decision.job for decision in decisions if decision.verdict is Verdict.CLAIM and decision.victims}
    later = played(asked, decisions)
    took = {job.job: job.owner for job in later.running if job.job in takers}
    assume(took)
    victims = victims_of(decide(later), later.running)
    assert not {one.owner for one in victims} & set(took.values())


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(contended())
def test_where_nothing_comes_and_nothing_ends_everything_comes_to_rest(asked: EntitlementView) -> None:
    asked = replace(asked, rules=replace(asked.rules, saves_left=100))
    assume(any(decision.victims for decision in decide(asked)))
    for _ in range(len(asked.waiting) + len(asked.running)):
        decisions = decide(asked)
        later = played(asked, decisions)
        if later == asked:
            return
        asked = later
    raise AssertionError("it goes round in circles")


@settings(max_examples=examples(30))
@given(contended())
def test_a_stored_decision_is_decided_the_same_again(decided: EntitlementView) -> None:
    assert entitlements.replay(as_input(decided)) == as_answer(decide(decided))
