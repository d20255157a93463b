"""OMFS on nodes that have a shape: who is released, who gives way, and what never happens."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.control.policy import governing
from gleaner.control.policy.governed import (
    AGENTS,
    GovernRules,
    GovernView,
    JobClass,
    Ruling,
    RunningJob,
    Verdict,
    WaitingJob,
    Wish,
    as_answer,
    as_given,
)
from gleaner.control.policy.governing import govern
from gleaner.control.policy.placing import targets_of
from gleaner.control.policy.room import Room

FIXED, KILLED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.PREEMPTIBLE, JobClass.CHECKPOINTABLE
NODE = Room(6, 4000)
NODES: tuple[str, ...] = ("node1", "node2", "node3")
NOW_S = 10_000.0
RULES = GovernRules(quantum_s=600, quantum_protects=False, saves_left=100)
SHARES = {"physics": 9, "chemistry": 6, "biology": 3}


def view(
    waiting: Sequence[WaitingJob] = (), running: Sequence[RunningJob] = (), rules: GovernRules = RULES
) -> GovernView:
    free = dict.fromkeys(NODES, NODE)
    for job in running:
        for node, room in job.holds.items():
            free[node] = free[node].less(room)
    return GovernView(NOW_S, rules, SHARES, dict.fromkeys(NODES, NODE), free, tuple(waiting), tuple(running))


def wants(job: str, owner: str, cpus: int, kind: JobClass = FIXED, **more: object) -> WaitingJob:
    return replace(WaitingJob(job, owner, kind, Wish(1, Room(cpus, 100 * cpus))), **more)  # type: ignore[arg-type]


def runs(job: str, owner: str, node: str, cpus: int, kind: JobClass = SAVED, **more: object) -> RunningJob:
    made = RunningJob(job, owner, kind, NOW_S - 5000, {node: Room(cpus, 100 * cpus)})
    return replace(made, **more)  # type: ignore[arg-type]


def agent(node: str) -> RunningJob:
    return RunningJob(f"agent-{node}", AGENTS, SAVED, NOW_S - 10, {node: NODE})


def ruled(what: GovernView) -> dict[str, Ruling]:
    return {ruling.job: ruling for ruling in govern(what)}


def test_a_claim_takes_back_exactly_what_it_asks_for() -> None:
    """Chemistry has 12 CPUs and is entitled to 6; physics asks for 4 of its 9."""
    over = [runs(f"c{at}", "chemistry", NODES[at // 3], 2) for at in range(6)]
    full = [*over, runs("b", "biology", "node3", 3, FIXED), runs("b2", "biology", "node3", 3)]
    ruling = ruled(view([wants("p", "physics", 4)], full))["p"]
    assert ruling.verdict is Verdict.CLAIM
    assert len(ruling.victims) == 2 and {one[0] for one in ruling.victims} == {"c"}


def test_agents_go_before_anybody_else_however_young_they_are() -> None:
    running = [runs("c1", "chemistry", "node1", 6), runs("c2", "chemistry", "node2", 6), agent("node3")]
    assert ruled(view([wants("p", "physics", 6)], running))["p"].victims == ("agent-node3",)


def test_an_undeclared_job_is_never_a_victim() -> None:
    running = [runs(f"c{at}", "chemistry", node, 6, FIXED) for at, node in enumerate(NODES)]
    ruling = ruled(view([wants("p", "physics", 6)], running))["p"]
    assert (ruling.verdict, ruling.victims) == (Verdict.HOLD, ())
    assert "need not give way" in ruling.why


def test_nobody_within_its_entitlement_is_a_victim() -> None:
    running = [runs("c", "chemistry", "node1", 6), runs("b", "biology", "node2", 3), runs("x", "others", "node3", 6)]
    assert ruled(view([wants("p", "physics", 6)], running))["p"].victims == ("x",)


def test_a_job_larger_than_its_owners_entitlement_runs_on_idle_cpus_and_gives_way_later() -> None:
    large = wants("b", "biology", 6, SAVED)
    assert ruled(view([large]))["b"].verdict is Verdict.START
    running = [runs("b", "biology", "node1", 6), runs("p1", "physics", "node2", 6), runs("c", "chemistry", "node3", 6)]
    assert ruled(view([wants("p", "physics", 3)], running))["p"].victims == ("b",)


def test_non_preemptible_work_above_the_entitlement_is_held_with_the_reason() -> None:
    ruling = ruled(view([wants("b", "biology", 4)]))["b"]
    assert ruling.verdict is Verdict.HOLD
    assert "biology may have 3 CPUs in non-preemptible jobs and has 0, this one asks for 4" in ruling.why


def test_non_preemptible_jobs_of_one_decision_count_together() -> None:
    found = ruled(view([wants("p1", "physics", 6), wants("p2", "physics", 6)]))
    assert (found["p1"].verdict, found["p2"].verdict) == (Verdict.CLAIM, Verdict.HOLD)
    assert "has 6, this one asks for 6" in found["p2"].why


def test_whoever_ran_for_a_quantum_goes_before_one_that_did_not() -> None:
    young = runs("young", "chemistry", "node1", 6, since_s=NOW_S - 10)
    running = [young, runs("old", "chemistry", "node2", 6), runs("p0", "physics", "node3", 3, FIXED)]
    running += [runs("b", "biology", "node3", 3)]
    claim = wants("p", "physics", 6)
    assert ruled(view([claim], running))["p"].victims == ("old",)
    protected = replace(RULES, quantum_protects=True)
    alone = [young, runs("c2", "chemistry", "node2", 6, FIXED), *running[2:]]
    assert ruled(view([claim], alone, protected))["p"].victims == ()
    assert ruled(view([claim], alone))["p"].victims == ("young",)


def test_what_is_leaving_is_not_asked_for_twice_and_makes_room_for_its_claim() -> None:
    running = [runs("c1", "chemistry", "node1", 6, leaving=True), runs("c2", "chemistry", "node2", 6)]
    running += [runs("x", "others", "node3", 6)]
    ruling = ruled(view([wants("p", "physics", 6, released=True)], running))["p"]
    assert (ruling.verdict, ruling.victims) == (Verdict.CLAIM, ())


def test_one_that_did_not_go_is_replaced_by_another() -> None:
    running = [runs("c1", "chemistry", "node1", 6, stays=True), runs("c2", "chemistry", "node2", 6)]
    running += [runs("p0", "physics", "node3", 3), runs("b", "biology", "node3", 3)]
    assert ruled(view([wants("p", "physics", 6, released=True)], running))["p"].victims == ("c2",)


def test_a_piece_needs_its_cpus_on_one_node() -> None:
    """Two CPUs are idle on each node; six on one node are claimed, so two jobs of one node go, not three anywhere."""
    over = [runs(f"c{at}", "chemistry", NODES[at // 2], 2) for at in range(6)]
    victims = ruled(view([wants("p", "physics", 6)], over))["p"].victims
    assert len(victims) == 2
    assert len({NODES[int(one[1]) // 2] for one in victims}) == 1


def test_a_wide_job_gets_a_piece_on_each_of_its_nodes() -> None:
    wide = WaitingJob("p", "physics", FIXED, Wish(3, Room(3, 300)))
    over = [runs(f"x{at}", "others", node, 6) for at, node in enumerate(NODES)]
    assert set(ruled(view([wide], over))["p"].victims) == {"x0", "x1", "x2"}


def test_where_memory_is_missing_its_holder_gives_way() -> None:
    hog = runs("x", "others", "node1", 1, holds={"node1": Room(1, 4000)})
    running = [
        hog,
        runs("c", "chemistry", "node2", 6),
        runs("b", "biology", "node3", 3),
        runs("p0", "physics", "node3", 3),
    ]
    assert ruled(view([wants("p", "physics", 5)], running))["p"].victims == ("x",)


def test_beyond_the_ceiling_of_saves_only_agents_go() -> None:
    none_left = replace(RULES, saves_left=0)
    running = [
        runs("c1", "chemistry", "node1", 6),
        runs("c2", "chemistry", "node2", 6),
        runs("x", "others", "node3", 6),
    ]
    ruling = ruled(view([wants("p", "physics", 6)], running, none_left))["p"]
    assert not ruling.victims and "as the admin allows" in ruling.why
    assert ruled(view([wants("p", "physics", 6)], [*running[:2], agent("node3")], none_left))["p"].victims


def test_a_released_job_that_no_longer_fits_is_held_again() -> None:
    running = [
        runs("c1", "chemistry", "node1", 6),
        runs("c2", "chemistry", "node2", 6),
        runs("p0", "physics", "node3", 6),
    ]
    assert ruled(view([wants("x", "others", 2, SAVED, released=True)], running))["x"].verdict is Verdict.HOLD


def test_where_an_owner_may_keep_what_is_left_to_it_another_node_is_cleared() -> None:
    """Chemistry is one CPU above its 6, so only one of its jobs of 3 goes: node1 cannot be had, node2 can."""
    running = [runs("c1", "chemistry", "node1", 3), runs("c2", "chemistry", "node1", 3)]
    running += [runs("c3", "chemistry", "node3", 1), runs("x", "others", "node2", 6)]
    running += [runs("p0", "physics", "node3", 3, FIXED), runs("b", "biology", "node3", 2, FIXED)]
    assert ruled(view([wants("p", "physics", 6)], running))["p"].victims == ("x",)


def test_of_two_who_may_go_only_the_one_goes_that_gives_memory_and_cpus() -> None:
    large = runs("large", "others", "node1", 3, cost_s=5, holds={"node1": Room(3, 3700)})
    running = [runs("cheap", "others", "node1", 3, cost_s=1), large]
    running += [runs("c", "chemistry", "node2", 6, FIXED), runs("b", "biology", "node3", 6, FIXED)]
    claim = WaitingJob("p", "physics", FIXED, Wish(1, Room(3, 3000)))
    assert ruled(view([claim], running))["p"].victims == ("large",)


def test_a_job_on_two_nodes_goes_alone_where_both_are_claimed() -> None:
    wide = runs("wide", "others", "node1", 9, cost_s=5, holds={"node1": Room(3, 100), "node2": Room(6, 100)})
    running = [runs("small", "others", "node1", 3, cost_s=1), wide, runs("b", "biology", "node3", 6, FIXED)]
    claim = WaitingJob("p", "physics", FIXED, Wish(2, Room(3, 100)))
    assert ruled(view([claim], running))["p"].victims == ("wide",)


def test_nobody_gives_way_for_a_job_that_the_scheduler_may_not_want_yet() -> None:
    full = [runs(f"c{at}", "chemistry", node, 6) for at, node in enumerate(NODES)]
    for released in (False, True):
        ruling = ruled(view([wants("p", "physics", 3, ready=False, released=released)], full))["p"]
        assert (ruling.verdict, ruling.victims) == (Verdict.START, ())
    assert ruled(view([wants("p", "physics", 3, released=True)], full))["p"].victims == ("c0",)


def test_what_waits_for_a_dependency_counts_but_never_before_what_is_ready() -> None:
    later = [wants(f"l{at}", "physics", 3, ready=False, released=at == 0) for at in range(4)]
    found = ruled(view([*later, wants("p", "physics", 3)]))
    assert found["p"].verdict is Verdict.CLAIM
    assert [found[f"l{at}"].verdict for at in range(4)] == [Verdict.START, Verdict.START, Verdict.HOLD, Verdict.HOLD]


def test_the_room_of_a_job_that_the_scheduler_lets_wait_is_free_for_others() -> None:
    limited = wants("p", "physics", 6, ready=False, released=True)
    rest = [runs("c", "chemistry", "node1", 6), runs("x", "others", "node2", 6)]
    assert ruled(view([limited, wants("b", "biology", 6, SAVED)], rest))["b"].verdict is Verdict.START


def test_pieces_that_may_share_fill_the_fullest_nodes_first() -> None:
    free = {"a": Room(2, 100), "b": Room(6, 100), "c": Room(4, 100)}
    assert targets_of(Wish(3, Room(2, 0), apart=False), free, {}, (), free) == ["a", "c", "c"]
    assert targets_of(Wish(7, Room(2, 0), apart=False), free, {}, (), free) is None


owners = st.sampled_from(["physics", "chemistry", "biology", "others"])
waits = st.builds(
    wants,
    st.uuids().map(str),
    owners,
    st.integers(1, 6),
    st.sampled_from(JobClass),
    released=st.booleans(),
    ready=st.integers(0, 4).map(bool),
)


@st.composite
def busy(draw: st.DrawFn) -> list[RunningJob]:
    """Jobs that fit the nodes; some are leaving."""
    found: list[RunningJob] = []
    for node in NODES:
        left = draw(st.integers(0, 6))
        while left:
            cpus = draw(st.integers(1, left))
            found.append(
                runs(
                    f"{node}-{left}", draw(owners), node, cpus, draw(st.sampled_from(JobClass)),
                    priority=draw(st.integers(-3, 3)), since_s=NOW_S - draw(st.sampled_from([10, 5000])),
                    leaving=draw(st.integers(0, 5)) == 0, stays=draw(st.integers(0, 9)) == 0,
                )
            )  # fmt: skip
            left -= cpus
    return found


@settings(max_examples=200)
@given(st.lists(waits, max_size=8), busy(), st.booleans())
def test_whatever_runs_and_waits(waiting: list[WaitingJob], running: list[RunningJob], protects: bool) -> None:
    given_view = view(waiting, running, replace(RULES, quantum_protects=protects))
    rulings = govern(given_view)
    assert [ruling.job for ruling in rulings] == [job.job for job in waiting]
    by_name = {job.job: job for job in running}
    victims = [victim for ruling in rulings for victim in ruling.victims]
    assert len(victims) == len(set(victims)), "one job was asked twice"
    held = {owner: sum(j.cpus for j in running if j.owner == owner and not j.leaving) for owner in [*SHARES, "others"]}
    for one in (by_name[victim] for victim in victims):
        assert not one.leaving and not one.stays and one.job_class is not FIXED
        assert not (protects and one.since_s + RULES.quantum_s > NOW_S)
    for owner, cpus in held.items():
        mine = [by_name[victim] for victim in victims if by_name[victim].owner == owner]
        if mine:  # before the last of them went it was still above what it is entitled to
            assert cpus - sum(one.cpus for one in mine) + max(one.cpus for one in mine) > SHARES.get(owner, 0)
    released = {job.job: job for job in waiting}
    for ruling in rulings:
        if ruling.verdict is Verdict.CLAIM:
            assert released[ruling.job].wish.cpus <= SHARES.get(released[ruling.job].owner, 0)
        assert ruling.verdict is Verdict.CLAIM or not ruling.victims
    for owner in held:
        fixed = [j.cpus for j in running if j.owner == owner and j.job_class is FIXED and not j.leaving]
        let_in = [
            released[r.job].wish.cpus
            for r in rulings
            if r.verdict is not Verdict.HOLD and released[r.job].owner == owner and released[r.job].job_class is FIXED
        ]
        assert not let_in or sum(fixed) + sum(let_in) <= SHARES.get(owner, 0)


@settings(max_examples=100)
@given(st.lists(waits, max_size=6), busy())
def test_nobody_who_is_released_takes_back_from_whom_it_was_taken(
    waiting: list[WaitingJob], running: list[RunningJob]
) -> None:
    """Let the victims go and the claims start; then what was vacated is no claim that has others vacated for it."""
    first = govern(view(waiting, running))
    gone = {victim for ruling in first for victim in ruling.victims}
    again = [
        WaitingJob(job.job, job.owner, job.job_class, Wish(1, Room(job.cpus, 100 * job.cpus)))
        for job in running
        if job.job in gone
    ]
    takers = {ruling.job for ruling in first if ruling.victims}
    taken_by = {job.owner for job in waiting if job.job in takers}
    started = [
        runs(job.job, job.owner, node, job.wish.cpus, job.job_class, since_s=NOW_S)
        for job in waiting
        if job.job in takers
        for node in [next((n for n in NODES), "")]
    ]
    stays = [job for job in running if job.job not in gone and not job.leaving]
    free_view = view(again, stays)
    after = replace(free_view, running=(*stays, *started))
    for ruling in govern(after):
        victims = {job.owner for job in after.running if job.job in ruling.victims}
        assert not victims & taken_by


@settings(max_examples=50)
@given(st.lists(waits, max_size=6), busy())
def test_a_stored_decision_is_decided_the_same_again(waiting: list[WaitingJob], running: list[RunningJob]) -> None:
    decided = view(waiting, running)
    assert governing.replay(as_given(decided)) == as_answer(govern(decided))
