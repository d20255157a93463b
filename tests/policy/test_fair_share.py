"""Whose turn it is between groups: below the target first, then the order of all jobs; and the same when replayed."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gleaner.control.policy.fair_share import POLICY, TURNS_KEPT, Book, First, ShareRules, Shares
from gleaner.control.policy.replay import REPLAYS

GROUPS = ("biology", "chemistry", "physics", "theory")
parts = st.dictionaries(st.sampled_from(GROUPS), st.floats(0, 25), max_size=4)
factors = st.dictionaries(st.sampled_from(GROUPS), st.floats(0.1, 3), max_size=4)
rules = st.builds(ShareRules, parts, factors, st.booleans())
shares = st.builds(
    Shares,
    rules,
    st.integers(0, 64),
    st.dictionaries(st.sampled_from(GROUPS), st.integers(0, 40)),
    st.frozensets(st.sampled_from(GROUPS)),
)
jobs = st.builds(
    First, st.integers(1, 99), st.sampled_from(GROUPS), st.integers(1, 4), st.booleans(), st.integers(-2, 2)
)
turns = st.lists(
    st.lists(
        jobs,
        min_size=1,
        max_size=4,
        unique_by=(lambda first: first.group, lambda first: first.job),
    ),
    max_size=20,
)


def first(job: int, group: str, *, cpus: int = 1, is_saved: bool = False, priority: int = 0) -> First:
    return First(job, group, cpus, is_saved, priority)


def played(known: Shares, asked: list[list[First]]) -> Book:
    book = Book(known)
    for among in asked:
        book.start(book.best(among), among, free_cpus=4)
    return book


@example(  # one is exactly at its target
    known=Shares(capacity_cpus=2, holds_cpus={"physics": 1}), asked=[[first(1, "physics"), first(2, "chemistry")]]
)
@given(known=shares, asked=turns)
def test_nobody_at_its_target_goes_before_a_group_below_it(known: Shares, asked: list[list[First]]) -> None:
    book = Book(known)
    holds = dict(known.holds_cpus)
    for among in asked:
        best = book.best(among)
        targets = known.target_cpus([each.group for each in among])
        below = [each for each in among if holds.get(each.group, 0) < targets[each.group]]
        assert best == min(below or among, key=lambda each: each.order)
        book.start(best, among, free_cpus=4)
        holds[best.group] = holds.get(best.group, 0) + best.cpus


@given(known=shares, asked=turns)
def test_a_stored_decision_is_the_same_when_replayed(known: Shares, asked: list[list[First]]) -> None:
    book = played(known, asked)
    stored = json.loads(json.dumps([book.input_json(), book.answer()]))
    assert REPLAYS[POLICY](stored[0]) == stored[1]


@given(known=shares)
def test_targets_add_up_to_no_more_than_the_capacity_without_multipliers(known: Shares) -> None:
    plain = Shares(ShareRules(known.rules.entitled), known.capacity_cpus, known.holds_cpus, known.waiting)
    assert sum(plain.target_cpus(GROUPS).values()) <= known.capacity_cpus + 1e-9


def test_within_two_groups_below_their_targets_saved_comes_first_then_priority_then_age() -> None:
    book = Book(Shares(capacity_cpus=8))
    new, high, saved = first(1, "physics"), first(3, "physics", priority=1), first(5, "physics", is_saved=True)
    other = first(2, "chemistry")
    assert book.best([other, new]) == new
    assert book.best([first(2, "chemistry"), first(3, "physics")]).job == 2
    assert book.best([other, high]) == high
    assert book.best([first(2, "chemistry", priority=9), saved]) == saved


def test_a_group_without_a_part_waits_for_those_that_have_one() -> None:
    none = Shares(ShareRules({"physics": 10}, are_others_equal=False), capacity_cpus=10)
    assert Book(none).best([first(1, "chemistry"), first(2, "physics")]).job == 2
    assert none.target_cpus(["chemistry", "physics"]) == {"chemistry": 0, "physics": 1}


def test_what_is_not_given_away_is_shared_by_the_others_that_have_jobs() -> None:
    known = Shares(ShareRules({"physics": 40}), 10, {"biology": 2, "gone": 0}, frozenset({"theory"}))
    assert known.target_cpus(["chemistry"]) == pytest.approx({"chemistry": 2})


def test_a_start_says_in_a_sentence_why_and_only_where_another_could_have_started() -> None:
    book = played(
        Shares(capacity_cpus=2),
        [
            [first(2, "physics"), first(1, "chemistry")],
            [first(2, "physics")],
            [first(3, "physics"), first(4, "theory")],
        ],
    )
    assert book.answer() == {
        "start": [1, 4],
        "because": {
            "job 1": "group chemistry held 0 of the 1 cores that are its target",
            "job 4": "group theory held 0 of the 1 cores that are its target",
        },
    }


def test_of_a_claim_for_many_places_only_the_first_turns_are_told() -> None:
    asked = [[first(2 * turn, "physics"), first(2 * turn + 1, "theory")] for turn in range(TURNS_KEPT + 5)]
    book = played(Shares(capacity_cpus=1000), asked)
    assert len(book.input_json()["turns"]) == len(book.starts) == TURNS_KEPT
    assert REPLAYS[POLICY](book.input_json()) == book.answer()
    assert book.best([first(1, "physics"), first(2, "theory")]).group == "physics"
