"""OMFS on nodes that have a shape: who is released, who is vacated or preempted."""

from dataclasses import replace

from tests.policy.entitlement_views import (
    FIXED,
    KILLED,
    NODE,
    NODES,
    NOW_S,
    RULES,
    SAVED,
    agent,
    decided,
    runs,
    view,
    view_of_nodes,
    wants,
)

from gleaner.control.policy.entitlements import targets_of
from gleaner.control.policy.entitlements_view import Verdict, WaitingJob, Wish
from gleaner.control.policy.resources import Resources


def test_agents_go_before_anybody_else_however_young_they_are() -> None:
    running = [runs("c1", "chemistry", "node1", 6), runs("c2", "chemistry", "node2", 6), agent("node3")]
    assert decided(view([wants("p", "physics", 6)], running))["p"].victims == ("agent-node3",)


def test_a_claim_on_certain_nodes_takes_back_what_is_there_and_waits_while_none_can_be_used() -> None:
    running = [runs(f"c-{node}", "chemistry", node, 6) for node in NODES]
    claim = wants("p", "physics", 6)
    there = replace(claim, wish=replace(claim.wish, nodes=("node2", "down")))
    assert decided(view([there], running))["p"].victims == ("c-node2",)
    nowhere = decided(view([replace(claim, wish=replace(claim.wish, nodes=("down",)))], running))["p"]
    assert (nowhere.verdict, nowhere.victims) == (Verdict.HOLD, ())
    assert nowhere.why.endswith("too few of the nodes that it may use can be used now")


def test_a_job_larger_than_its_owners_entitlement_runs_on_idle_cpus_and_is_preempted_later() -> None:
    large = wants("b", "biology", 6, SAVED)
    assert decided(view([large]))["b"].verdict is Verdict.START
    running = [runs("b", "biology", "node1", 6), runs("p1", "physics", "node2", 6), runs("c", "chemistry", "node3", 6)]
    assert decided(view([wants("p", "physics", 3)], running))["p"].victims == ("b",)


def test_non_preemptible_work_above_the_entitlement_is_held_with_the_reason() -> None:
    decision = decided(view([wants("b", "biology", 4)]))["b"]
    assert decision.verdict is Verdict.HOLD
    assert "biology may have 3 CPUs in non-preemptible jobs and has 0, this one asks for 4" in decision.why


def test_a_piece_needs_its_cpus_on_one_node() -> None:
    """Two CPUs are idle on each node; six on one node are claimed, so two jobs of one node go, not three anywhere."""
    over = [runs(f"c{at}", "chemistry", NODES[at // 2], 2) for at in range(6)]
    victims = decided(view([wants("p", "physics", 6)], over))["p"].victims
    assert len(victims) == 2
    assert len({NODES[int(one[1]) // 2] for one in victims}) == 1


def test_a_wide_job_gets_a_piece_on_each_of_its_nodes() -> None:
    wide = WaitingJob("p", "physics", FIXED, Wish(3, Resources(3, 300)))
    over = [runs(f"x{at}", "others", node, 6) for at, node in enumerate(NODES)]
    assert set(decided(view([wide], over))["p"].victims) == {"x0", "x1", "x2"}


def test_where_memory_is_missing_its_holder_is_preempted() -> None:
    hog = runs("x", "others", "node1", 1, holds={"node1": Resources(1, 4000)})
    running = [
        hog,
        runs("c", "chemistry", "node2", 6),
        runs("b", "biology", "node3", 3),
        runs("p0", "physics", "node3", 3),
    ]
    assert decided(view([wants("p", "physics", 5)], running))["p"].victims == ("x",)


def test_a_released_job_that_no_longer_fits_is_held_again() -> None:
    running = [
        runs("c1", "chemistry", "node1", 6),
        runs("c2", "chemistry", "node2", 6),
        runs("p0", "physics", "node3", 6),
    ]
    assert decided(view([wants("x", "others", 2, SAVED, released=True)], running))["x"].verdict is Verdict.HOLD


def test_where_an_owner_may_keep_what_is_left_to_it_another_node_is_cleared() -> None:
    """Chemistry is one CPU above its 6, so only one of its jobs of 3 goes: node1 cannot be had, node2 can."""
    running = [runs("c1", "chemistry", "node1", 3), runs("c2", "chemistry", "node1", 3)]
    running += [runs("c3", "chemistry", "node3", 1), runs("x", "others", "node2", 6)]
    running += [runs("p0", "physics", "node3", 3, FIXED), runs("b", "biology", "node3", 2, FIXED)]
    assert decided(view([wants("p", "physics", 6)], running))["p"].victims == ("x",)


def test_of_two_who_may_go_only_the_one_goes_that_gives_memory_and_cpus() -> None:
    large = runs("large", "others", "node1", 3, cost_s=5, holds={"node1": Resources(3, 3700)})
    running = [runs("cheap", "others", "node1", 3, cost_s=1), large]
    running += [runs("c", "chemistry", "node2", 6, FIXED), runs("b", "biology", "node3", 6, FIXED)]
    claim = WaitingJob("p", "physics", FIXED, Wish(1, Resources(3, 3000)))
    assert decided(view([claim], running))["p"].victims == ("large",)


def test_a_job_on_two_nodes_goes_alone_where_both_are_claimed() -> None:
    wide = runs("wide", "others", "node1", 9, cost_s=5, holds={"node1": Resources(3, 100), "node2": Resources(6, 100)})
    running = [runs("small", "others", "node1", 3, cost_s=1), wide, runs("b", "biology", "node3", 6, FIXED)]
    claim = WaitingJob("p", "physics", FIXED, Wish(2, Resources(3, 100)))
    assert decided(view([claim], running))["p"].victims == ("wide",)


def test_nothing_is_preempted_for_a_job_that_the_scheduler_may_not_want_yet() -> None:
    full = [runs(f"c{at}", "chemistry", node, 6) for at, node in enumerate(NODES)]
    for released in (False, True):
        decision = decided(view([wants("p", "physics", 3, ready=False, released=released)], full))["p"]
        assert (decision.verdict, decision.victims) == (Verdict.START, ())
    assert decided(view([wants("p", "physics", 3, released=True)], full))["p"].victims == ("c0",)


def test_what_waits_for_a_dependency_counts_but_never_before_what_is_ready() -> None:
    later = [wants(f"l{at}", "physics", 3, ready=False, released=at == 0) for at in range(4)]
    found = decided(view([*later, wants("p", "physics", 3)]))
    assert found["p"].verdict is Verdict.CLAIM
    assert [found[f"l{at}"].verdict for at in range(4)] == [Verdict.START, Verdict.START, Verdict.HOLD, Verdict.HOLD]


def test_the_room_of_a_job_that_the_scheduler_lets_wait_is_free_for_others() -> None:
    limited = wants("p", "physics", 6, ready=False, released=True)
    rest = [runs("c", "chemistry", "node1", 6), runs("x", "others", "node2", 6)]
    assert decided(view([limited, wants("b", "biology", 6, SAVED)], rest))["b"].verdict is Verdict.START


def test_pieces_that_may_share_fill_the_fullest_nodes_first() -> None:
    free = {"a": Resources(2, 100), "b": Resources(6, 100), "c": Resources(4, 100)}
    assert targets_of(Wish(3, Resources(2, 0), apart=False), free, {}, (), free) == ["a", "c", "c"]
    assert targets_of(Wish(7, Resources(2, 0), apart=False), free, {}, (), free) is None


def test_a_claim_that_needs_more_saves_than_an_hour_allows_is_answered_piece_by_piece() -> None:
    large, claim = {"node1": Resources(64, 64_000)}, wants("p", "physics", 9)
    small = [runs(f"x{at}", "others", "node1", 1, KILLED) for at in range(64)]
    now = decided(view_of_nodes(large, [claim], small, replace(RULES, saves_left=6)))["p"]
    assert (now.verdict, len(now.victims)) == (Verdict.CLAIM, 6)
    assert "6 of 9 jobs are preempted now" in now.why


def test_agents_beside_the_jobs_that_are_preempted_do_not_count_for_the_ceiling() -> None:
    claim = WaitingJob("p", "physics", FIXED, Wish(3, Resources(3, 100)))
    running = [agent("node1"), runs("x2", "others", "node2", 6), runs("x3", "others", "node3", 6)]
    decision = decided(view([claim], running, replace(RULES, saves_left=1)))["p"]
    assert set(decision.victims) in ({"agent-node1", "x2"}, {"agent-node1", "x3"})
    assert "1 of 2 jobs are preempted now" in decision.why


def test_what_an_owner_has_on_a_node_that_drains_is_not_counted_against_it() -> None:
    """Of 12 CPUs that can be used physics has 3; with the 6 on node1 it would seem to have 9 of its 9 and more."""
    two = dict.fromkeys(NODES[1:], NODE)
    running = [runs("p1", "physics", "node1", 6), runs("p2", "physics", "node2", 6)]
    running += [runs("c", "chemistry", "node3", 1), runs("x", "others", "node3", 5, FIXED)]
    found = decided(view_of_nodes(two, [wants("c2", "chemistry", 4), wants("p3", "physics", 3, FIXED)], running))
    assert (found["c2"].verdict, found["c2"].victims) == (Verdict.HOLD, ())
    assert "physics is entitled to 9 CPUs and has 6" in found["p3"].why


def test_where_no_node_can_be_used_everything_is_held_and_there_are_no_victims() -> None:
    waiting = [wants("p", "physics", 3), wants("x", "others", 2, SAVED, released=True)]
    waiting += [wants("l", "physics", 1, ready=False), wants("k", "biology", 1, kept_back=True)]
    running = [runs("c", "chemistry", "node1", 6), agent("node2")]
    found = decided(replace(view_of_nodes({}, waiting, running), entitled_cpus={"physics": 0}))
    assert all((found[job].verdict, found[job].victims) == (Verdict.HOLD, ()) for job in ("p", "x", "l"))
    assert {found[job].why for job in "pxl"} == {"no node of the owners' partitions can be used now"}
    assert found["k"].verdict is Verdict.START


AGENTS_EVERYWHERE = [agent(node) for node in NODES]


def test_agents_are_vacated_for_any_job_that_may_run_and_no_more_of_them_than_needed() -> None:
    found = decided(view([wants("x", "others", 6, SAVED), wants("b", "biology", 4)], AGENTS_EVERYWHERE))
    assert (found["x"].verdict, len(found["x"].victims)) == (Verdict.START, 1)
    assert (found["b"].verdict, found["b"].victims) == (Verdict.HOLD, ()), "it is refused"
    half = [runs("c", "chemistry", "node1", 2), *AGENTS_EVERYWHERE[1:]]
    assert decided(view([wants("x", "others", 4, SAVED)], half))["x"].victims == ()
    none_left = replace(RULES, saves_left=0, quantum_protects=True)
    assert decided(view([wants("x", "others", 6, SAVED)], AGENTS_EVERYWHERE, none_left))["x"].victims


def test_of_the_agents_those_go_that_leave_the_largest_nodes() -> None:
    sizes = {"node1": Resources(2, 4000), "node2": Resources(2, 4000), "node3": Resources(6, 4000)}
    agents = [replace(agent(node), holds={node: size}) for node, size in sizes.items()]
    four = WaitingJob("x", "others", SAVED, Wish(4, Resources(1, 100), apart=False))
    assert decided(view_of_nodes(sizes, [four], agents))["x"].victims == ("agent-node3",)


def test_a_job_for_which_an_agent_leaves_waits_for_it_and_for_no_other() -> None:
    """Neither is it held again, nor is one more agent vacated, nor has an older job of no claim its room."""
    running = [replace(AGENTS_EVERYWHERE[0], leaving=True), *AGENTS_EVERYWHERE[1:]]
    older = WaitingJob("old", "others", SAVED, Wish(3, Resources(6, 100)))
    found = decided(view([older, wants("x", "others", 6, SAVED, released=True)], running))
    assert (found["x"].verdict, found["x"].victims) == (Verdict.START, ())
    assert found["old"].verdict is Verdict.HOLD
    gone = decided(view([older, wants("x", "others", 6, SAVED, released=True)], running[1:]))
    assert (gone["x"].verdict, gone["x"].victims, gone["old"].verdict) == (Verdict.START, (), Verdict.HOLD)


def test_no_agent_is_vacated_for_what_the_scheduler_may_not_want_yet_or_while_its_owner_is_promised_more() -> None:
    assert decided(view([wants("x", "others", 6, SAVED, ready=False)], AGENTS_EVERYWHERE))["x"].verdict is Verdict.HOLD
    running = [runs("c", "chemistry", "node1", 6, leaving=True), *AGENTS_EVERYWHERE[1:]]
    waiting = [wants("p1", "physics", 6, released=True), wants("p2", "physics", 6, SAVED)]
    found = decided(view(waiting, running))
    assert (found["p1"].verdict, found["p2"].verdict) == (Verdict.CLAIM, Verdict.HOLD)
    assert "what was promised to its owner" in found["p2"].why


def test_an_agents_node_that_a_claim_waits_for_is_for_nobody_else() -> None:
    """The claim needs two nodes, and one of them is protected yet. Else it would wait for one quantum after another."""
    young = runs("x", "others", "node2", 6, since_s=NOW_S - 10)
    running = [agent("node1"), young, runs("c", "chemistry", "node3", 6, FIXED)]
    claim = WaitingJob("p", "physics", FIXED, Wish(2, Resources(4, 100)))
    found = decided(view([claim, wants("x2", "others", 6, SAVED)], running, replace(RULES, quantum_protects=True)))
    assert (found["p"].verdict, found["p"].victims) == (Verdict.CLAIM, ())
    assert (found["x2"].verdict, found["x2"].victims) == (Verdict.HOLD, ())


def test_a_job_that_is_less_than_its_pieces_counts_with_what_it_asks_for() -> None:
    """Nine CPUs on two nodes are pieces of five; physics is entitled to nine."""
    wide = WaitingJob("p", "physics", FIXED, Wish(2, Resources(5, 100), all_cpus=9))
    assert decided(view([wide]))["p"].verdict is Verdict.CLAIM
    assert decided(view([replace(wide, wish=replace(wide.wish, all_cpus=None))]))["p"].verdict is Verdict.HOLD
