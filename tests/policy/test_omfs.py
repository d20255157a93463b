"""OMFS: what becomes of one waiting job, by the paper's words and by its listing, line by line.

Each question is put to the rules over arrays, which the simulator compiles, and to those of live control (by the
listing to a readable form), and the answers must be equal.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.oracle_omfs import FIXED, KILLED, REFUSE, SAVED, START, WAIT, Answer, Held, Rules, Wish, answer

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.replay import array_policies as twin
from gleaner.control.simulation.replay.compiler import compiled

COMPILED = compiled(twin.decide)
NOW_S = 10_000.0

both_forms = pytest.mark.parametrize("decide", [twin.decide, COMPILED], ids=["plain", "compiled"])


def decided(
    wish: Wish,
    running: Sequence[Held] = (),
    promised: Sequence[Wish] = (),
    *,
    idle: int,
    coming: int = 0,
    rules: Rules,
    decide: Callable[..., tuple[int, int]] = twin.decide,
) -> Answer:
    """The answer of the twin, in the oracle's words. It is that of live control or of the readable listing."""
    owners = list(rules.entitled)

    def held(one: str, kinds: Sequence[int] = (FIXED, KILLED, SAVED)) -> int:
        return sum(job.units for job in (*running, *promised) if job.owner == one and job.kind in kinds)

    rows = [(j.units, owners.index(j.owner), j.kind, j.priority, NOW_S - j.ran_s, j.cost_s) for j in running]
    victims = np.empty(len(running), np.int64)
    found, many = decide(
        twin.Asked(wish.units, owners.index(wish.owner), int(wish.kind)),
        np.array(rows, twin.RUNNING),
        twin.Owners(
            used=np.array([held(owner) for owner in owners], np.int64),
            used_fixed=np.array([held(owner, [FIXED]) for owner in owners], np.int64),
            promised=np.array([sum(job.units for job in promised if job.owner == owner) for owner in owners], np.int64),
            entitled=np.array(list(rules.entitled.values()), np.int64),
        ),
        idle,
        coming,
        NOW_S,
        twin.OmfsRules(float(rules.quantum_s), rules.protects, rules.literal),
        victims,
    )
    words: dict[int, Answer] = {twin.REFUSE: REFUSE, twin.START: START, twin.WAIT: WAIT}
    assert found == twin.VACATE or many == 0
    chosen: list[int] = victims[:many].tolist()
    decision = words.get(found, chosen)
    assert decision == answer(wish, running, promised, idle=idle, coming=coming, rules=rules)
    return decision


HALVES = Rules({"A": 5, "B": 5})
LISTING = Rules({"A": 5, "B": 5}, literal=True)


def b_has(*units: int, kind: JobClass = SAVED, ran_s: float = 1000) -> list[Held]:
    """B's jobs, the later the less important."""
    return [Held(one, "B", kind, priority=-at, ran_s=ran_s) for at, one in enumerate(units)]


def test_what_is_exactly_as_large_as_the_idle_units_starts() -> None:
    assert decided(Wish(6, "A"), idle=6, rules=HALVES) == START


def test_a_non_preemptible_job_may_fill_the_entitlement_and_no_more() -> None:
    assert decided(Wish(5, "A", FIXED), idle=10, rules=HALVES) == START
    assert decided(Wish(6, "A", FIXED), idle=10, rules=HALVES) == REFUSE
    assert decided(Wish(3, "A", FIXED), [Held(3, "A", FIXED)], idle=7, rules=HALVES) == REFUSE
    assert decided(Wish(2, "A", FIXED), [Held(3, "A", FIXED)], idle=7, rules=HALVES) == START


def test_only_non_preemptible_jobs_count_against_a_non_preemptible_one_while_there_is_room() -> None:
    assert decided(Wish(5, "A", FIXED), [Held(4, "A")], idle=6, rules=HALVES) == START
    assert decided(Wish(5, "A", FIXED), [Held(4, "A"), *b_has(6)], idle=0, rules=HALVES) == REFUSE


def test_a_job_larger_than_the_entitlement_runs_on_what_is_idle_alone() -> None:
    assert decided(Wish(8, "A"), b_has(2), idle=8, rules=HALVES) == START
    assert decided(Wish(8, "A"), b_has(3), idle=7, rules=HALVES) == REFUSE


def test_line_27_counts_all_jobs_of_the_owner() -> None:
    running = [Held(3, "A", priority=9), *b_has(7)]
    for rules in (HALVES, LISTING):
        assert decided(Wish(3, "A"), running, idle=0, rules=rules) == REFUSE
        assert decided(Wish(2, "A"), running, idle=0, rules=rules) == [1]


def test_what_was_promised_counts_as_used() -> None:
    assert decided(Wish(2, "A"), b_has(6), [Wish(4, "A")], idle=0, rules=HALVES) == REFUSE


def test_an_owner_goes_above_its_entitlement_only_once_it_has_what_it_was_promised() -> None:
    assert decided(Wish(3, "A"), b_has(2), [Wish(5, "A")], idle=3, rules=HALVES) == REFUSE
    assert decided(Wish(3, "A"), [*b_has(2), Held(5, "A")], idle=3, rules=HALVES) == START


def test_what_is_being_freed_for_nobody_is_not_freed_again() -> None:
    assert decided(Wish(4, "A"), b_has(4, 2), idle=1, coming=3, rules=HALVES) == []
    assert decided(Wish(4, "A"), b_has(4, 2), idle=1, coming=2, rules=HALVES) == [1]


def test_nobody_within_the_entitlement_is_vacated() -> None:
    thirds = Rules({"A": 4, "B": 4, "C": 4})
    running = [*b_has(4), Held(8, "C", priority=9)]
    assert decided(Wish(4, "A"), running, idle=0, rules=thirds) == [1]


def test_an_owner_that_has_come_down_to_its_entitlement_is_spared() -> None:
    thirds = Rules({"A": 4, "B": 4, "C": 4})
    running = [*b_has(1, 1, 1, 1, 1), Held(3, "C", priority=9), Held(4, "C", FIXED)]
    assert decided(Wish(4, "A"), running, idle=0, rules=thirds) == [4, 5]


def test_what_may_not_be_preempted_never_is() -> None:
    assert decided(Wish(5, "A"), b_has(10, kind=FIXED), idle=0, rules=HALVES) == WAIT


def test_the_least_prioritised_goes_first() -> None:
    assert decided(Wish(2, "A"), b_has(2, 2, 2, 2), idle=0, rules=HALVES) == [3]


def test_what_has_run_for_a_quantum_goes_before_what_is_less_important() -> None:
    running = [Held(2, "B", priority=9, ran_s=60), *b_has(2, 2, 2, ran_s=59)]
    for protects in (False, True):
        rules = Rules({"A": 5, "B": 5}, quantum_s=60, protects=protects)
        assert decided(Wish(2, "A"), running, idle=0, rules=rules) == [0]
    assert decided(Wish(2, "A"), running, idle=0, rules=Rules(rules.entitled, quantum_s=60, literal=True)) == [0]


def test_within_its_quantum_a_job_is_not_vacated_unless_the_quantum_only_demotes() -> None:
    protects = Rules({"A": 5, "B": 5}, quantum_s=60)
    demotes = Rules({"A": 5, "B": 5}, quantum_s=60, protects=False)
    running = [*b_has(2, ran_s=60), *b_has(6, ran_s=59)]
    assert decided(Wish(4, "A"), running, idle=0, rules=protects) == WAIT
    assert decided(Wish(4, "A"), running, idle=0, rules=demotes) == [1]


def test_an_owner_is_not_pushed_below_its_entitlement_where_that_can_be_helped() -> None:
    running = [Held(2, "B", priority=9), Held(6, "B", priority=0)]
    assert decided(Wish(2, "A"), running, idle=0, rules=HALVES) == [0]
    assert decided(Wish(5, "A"), running, idle=2, rules=HALVES) == [1]


def test_who_is_chosen_first_is_spared_if_the_last_is_enough() -> None:
    thirds = Rules({"A": 6, "B": 3, "C": 3})
    running = [Held(1, "B", priority=0), Held(3, "B", priority=1), Held(8, "C", priority=5)]
    assert decided(Wish(6, "A"), running, idle=0, rules=thirds) == [2]


def test_of_equals_the_cheapest_to_vacate_goes_first() -> None:
    saved = [Held(2, "B", SAVED, ran_s=500, cost_s=30), Held(2, "B", SAVED, ran_s=900, cost_s=20)]
    assert decided(Wish(2, "A"), [*saved, Held(6, "B", FIXED)], idle=0, rules=HALVES) == [1]
    killed = [*saved, Held(2, "B", KILLED, ran_s=10, cost_s=0)]
    assert decided(Wish(2, "A"), [*killed, Held(4, "B", FIXED)], idle=0, rules=HALVES) == [2]
    killed = [*saved, Held(2, "B", KILLED, ran_s=500, cost_s=0)]
    assert decided(Wish(2, "A"), [*killed, Held(4, "B", FIXED)], idle=0, rules=HALVES) == [1]


owners = st.sampled_from("ABC")
kinds = st.sampled_from([FIXED, KILLED, SAVED])
held_jobs = st.builds(
    Held,
    units=st.integers(1, 9),
    owner=owners,
    kind=kinds,
    priority=st.integers(0, 2),
    ran_s=st.integers(0, 90).map(float),
    cost_s=st.integers(0, 3).map(float),
)
wishes = st.builds(Wish, units=st.integers(1, 12), owner=owners, kind=kinds)
entitlements = st.fixed_dictionaries({owner: st.integers(0, 9) for owner in "ABC"})
any_rules = st.builds(
    Rules, entitled=entitlements, quantum_s=st.sampled_from([0, 45]), protects=st.booleans(), literal=st.booleans()
)
situations = st.fixed_dictionaries(
    {
        "wish": wishes,
        "running": st.lists(held_jobs, max_size=8),
        "promised": st.lists(wishes, max_size=2),
        "idle": st.integers(0, 6),
        "coming": st.integers(0, 4),
        "rules": any_rules,
    }
)


@both_forms
@settings(deadline=None)
@given(situation=situations)
def test_the_simulator_decides_as_live_control_does_and_by_the_listing_as_its_readable_form(
    decide: Callable[..., tuple[int, int]], situation: dict[str, Any]
) -> None:
    decided(**situation, decide=decide)


@settings(deadline=None)
@given(situation=situations)
def test_victims_are_above_their_entitlement_and_not_one_too_many(situation: dict[str, Any]) -> None:
    parts = dict(situation)
    wish, running, promised = parts.pop("wish"), parts.pop("running"), parts.pop("promised")
    rules = Rules(parts.pop("rules").entitled)
    found = decided(wish, running, promised, rules=rules, **parts)
    if isinstance(found, list):
        missing = wish.units - parts["idle"] - parts["coming"]
        assert sum(running[at].units for at in found) >= missing
        left = {owner: sum(j.units for j in (*running, *promised) if j.owner == owner) for owner in rules.entitled}
        for at in found:
            victim = running[at]
            assert victim.kind != FIXED
            assert victim.owner != wish.owner
            assert left[victim.owner] > rules.entitled[victim.owner]
            left[victim.owner] -= victim.units
            assert sum(running[other].units for other in found if other != at) < missing
