"""The walk over a queue: the worked example of the paper, against its readable form, and against live control."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.simulation.oracle_priorities import Job, Weights, chosen

from gleaner.control.policy.fair_share import Book, First, ShareRules, Shares
from gleaner.control.simulation.replay import fair_share
from gleaner.control.simulation.replay.compiler import compiled

Running = list[tuple[Job, float]]
Choose = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]

COMPILED = compiled(fair_share.choose)

both_forms = pytest.mark.parametrize("choose", [fair_share.choose, COMPILED], ids=["plain", "compiled"])


def starts(
    choose: Choose,
    waiting: list[Job],
    running: Running | None = None,
    *,
    targets: dict[str, float],
    capacity: int,
    reservations: int = 0,
    now_s: float = 0,
) -> list[int]:
    """Return those that start, as positions in the list."""
    return decision(
        choose,
        waiting,
        running or [],
        targets=targets,
        capacity=capacity,
        reservations=reservations,
        now_s=now_s,
    )[0]


def decision(
    choose: Choose,
    waiting: list[Job],
    running: Running,
    *,
    targets: dict[str, float],
    capacity: int,
    reservations: int,
    now_s: float = 0,
) -> tuple[list[int], list[float], list[int]]:
    """Return the answer."""
    users = list(targets)
    ends = sorted((start_s + job.limit_s, job.units) for job, start_s in running)
    started, shadow_s, spare = choose(
        np.arange(len(waiting)),
        np.array([job.units for job in waiting], dtype=np.int64),
        np.array([users.index(job.user) for job in waiting], dtype=np.int32),
        np.array([job.limit_s for job in waiting], dtype=float),
        np.array([sum(job.units for job, _ in running if job.user == user) for user in users], dtype=np.int64),
        np.array(list(targets.values()), dtype=float),
        capacity - sum(job.units for job, _ in running),
        reservations,
        float(now_s),
        np.array([end_s for end_s, _ in ends], dtype=float),
        np.array([units for _, units in ends], dtype=np.int64),
    )
    return started.tolist(), shadow_s.tolist(), spare.tolist()


NAMES = "ABCDEFGHJK" + "MNPQRSUVWX"
ALICE_AND_BOB = [Job(0, 100, 100, 200, "Alice")] * 10 + [Job(0, 100, 100, 50, "Bob")] * 10


@both_forms
@pytest.mark.parametrize(("reservations", "order"), [(0, "ABMNCD"), (1, "ABMNCDPQ"), (2, "ABMNCDPQ")])
def test_both_get_their_targets_before_anyone_gets_more(choose: Choose, reservations: int, order: str) -> None:
    """Pass one places A B M N (500 of 1000 nodes), pass two C D (900); E and F wait, P and Q overtake them (1000)."""
    found = starts(
        choose,
        ALICE_AND_BOB,
        targets={"Alice": 288, "Bob": 58},
        capacity=1000,
        reservations=reservations,
    )
    assert "".join(NAMES[index] for index in found) == order


@both_forms
def test_two_promises_are_kept_beside_each_other(choose: Choose) -> None:
    """6 of 10 units run until 50. A job of 8 is promised 50 to 150 (2 to spare), one of 9 then 150 to 250 (1 to spare).

    Of those behind them, 2 units for 50 s end in time; 1 for 200 s is beside both; 1 for 120 s beside the first.
    """
    running = [(Job(0, 50, 50, 6, "a"), 0.0)]
    waiting = [
        Job(0, 100, 100, 8, "a"),
        Job(0, 100, 100, 9, "a"),
        Job(0, 50, 50, 2, "a"),
        Job(0, 200, 200, 1, "a"),
        Job(0, 120, 120, 1, "a"),
        Job(0, 120, 120, 1, "a"),
    ]
    common = {"targets": {"a": 0.0}, "capacity": 10}
    assert decision(choose, waiting, running, reservations=2, **common) == ([2, 3, 4], [50, 150], [0, 0])  # type: ignore[arg-type]
    assert starts(choose, waiting, running, reservations=1, **common) == [2, 3, 4]  # type: ignore[arg-type]
    waiting[4] = Job(0, 200, 200, 1, "a")  # beside the first promise, in the way of the second
    assert starts(choose, waiting, running, reservations=2, **common) == [2, 3, 5]  # type: ignore[arg-type]
    assert starts(choose, waiting, running, reservations=1, **common) == [2, 3, 4]  # type: ignore[arg-type]


@both_forms
def test_a_later_promise_may_be_for_an_earlier_time_only_if_it_delays_none(choose: Choose) -> None:
    """8 units are promised 50. At 10 there are 3 for 40 s but not for 60 s, which are promised 150 instead."""
    running = [(Job(0, 10, 10, 3, "a"), 0.0), (Job(0, 50, 50, 6, "a"), 0.0)]
    waiting = [Job(0, 100, 100, 8, "a"), Job(0, 60, 60, 3, "a"), Job(0, 100, 100, 1, "a")]
    assert starts(choose, waiting, running, targets={"a": 0}, capacity=10, reservations=2) == [2]
    waiting[1:] = [Job(0, 40, 40, 4, "a"), Job(0, 100, 100, 1, "a")]
    assert starts(choose, waiting, running, targets={"a": 0}, capacity=10, reservations=2) == []


@both_forms
def test_who_is_at_its_target_waits_for_those_below(choose: Choose) -> None:
    """A claim for one slot: the group with a thousand jobs in front holds its target, so the other is served."""
    waiting = [Job(0, 1, 1, 1, "large")] * 1000 + [Job(0, 1, 1, 1, "small")] * 10
    running = [(Job(0, 1, 1, 1, "large"), 0.0)] * 5
    assert starts(choose, waiting, running, targets={"large": 5, "small": 5}, capacity=6) == [1000]


@both_forms
def test_what_pass_one_started_pass_two_does_not_start_again(choose: Choose) -> None:
    waiting = [Job(0, 9, 9, 5, "a"), Job(0, 9, 9, 9, "b"), Job(0, 9, 9, 1, "b"), Job(0, 9, 9, 1, "b")]
    assert starts(choose, waiting, targets={"a": 1, "b": 1}, capacity=10, reservations=1) == [0, 2, 3]


@both_forms
def test_nobody_waits_for_a_job_that_never_fits(choose: Choose) -> None:
    waiting = [Job(0, 10, 10, 11, "a"), Job(0, 10, 10, 5, "a")]
    assert starts(choose, waiting, targets={"a": 0}, capacity=10, reservations=1) == [1]


@both_forms
def test_what_should_have_ended_is_expected_to_end_now(choose: Choose) -> None:
    """The promise is then for now, so that a job may not take what it needs however short it is."""
    running = [(Job(0, 10, 10, 6, "a"), 0.0)]
    waiting = [Job(0, 10, 10, 8, "a"), Job(0, 1, 1, 3, "a"), Job(0, 1, 1, 2, "a")]
    assert starts(choose, waiting, running, targets={"a": 0}, capacity=10, reservations=1, now_s=20) == [2]


jobs = st.builds(
    Job,
    st.just(0.0),
    st.just(0.0),
    st.integers(1, 9).map(float),
    st.integers(1, 8),
    st.sampled_from(["a", "b", "c"]),
)


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)  # the first may compile
@given(
    waiting=st.lists(jobs, max_size=12),
    could_run=st.lists(st.tuples(jobs, st.integers(-8, 0).map(float)), max_size=6),
    targets=st.tuples(*[st.integers(0, 12)] * 3),
    capacity=st.integers(1, 16),
    reservations=st.integers(0, 3),
)
def test_the_core_agrees_with_its_readable_form(
    waiting: list[Job], could_run: Running, targets: tuple[int, int, int], capacity: int, reservations: int
) -> None:
    running: Running = []
    for job, start_s in could_run:
        if start_s + job.limit_s > 0 and sum(each.units for each, _ in running) + job.units <= capacity:
            running.append((job, start_s))
    named = dict(zip("abc", map(float, targets), strict=True))
    expected = chosen(waiting, running, targets=named, capacity=capacity, reservations=reservations, now_s=0)
    common = {"targets": named, "capacity": capacity, "reservations": reservations}
    assert starts(fair_share.choose, waiting, running, **common) == expected  # type: ignore[arg-type]
    assert starts(COMPILED, waiting, running, **common) == expected  # type: ignore[arg-type]


@given(
    waiting=st.lists(jobs, min_size=1),
    weights=st.tuples(*[st.integers(-4, 4)] * 3),
    now_s=st.integers(0, 100),
)
def test_a_priority_is_a_sum_and_the_order_never_changes(
    waiting: list[Job], weights: tuple[int, int, int], now_s: int
) -> None:
    since_s = np.arange(len(waiting), dtype=float)
    units = np.array([job.units for job in waiting])
    limit_s = np.array([job.limit_s for job in waiting])
    per = dict(zip(("per_second", "per_unit", "per_limit_s"), weights, strict=True))
    now, first = (fair_share.priorities(since_s, units, limit_s, now_s=at_s, **per) for at_s in (now_s, 0))
    sums = [Weights(*weights).priority(job, since_s=s, now_s=now_s) for job, s in zip(waiting, since_s, strict=True)]
    assert now.tolist() == sums
    assert np.argsort(-now, kind="stable").tolist() == np.argsort(-first, kind="stable").tolist()


GROUPS = ("biology", "chemistry", "physics")


@given(
    st.fixed_dictionaries(dict.fromkeys(GROUPS, st.integers(0, 8))),
    st.fixed_dictionaries({}, optional=dict.fromkeys(GROUPS, st.integers(0, 33))),
    st.permutations(range(len(GROUPS))),
)
def test_live_control_gives_a_place_to_the_group_whose_job_the_walk_starts_first(
    holds: dict[str, int], entitled: dict[str, float], priorities: list[int]
) -> None:
    """They may differ where the first job of a group does not fit."""
    shares = Shares(ShareRules(entitled), capacity_cpus=12, holds_cpus=holds, waiting=frozenset(GROUPS))
    firsts = [
        First(job=number, group=group, cpus=1, is_saved=False, priority=priorities[number])
        for number, group in enumerate(GROUPS)
    ]
    targets = shares.target_cpus(GROUPS)
    started, _, _ = fair_share.choose(
        np.array(sorted(range(len(GROUPS)), key=lambda number: firsts[number].order), np.int64),
        np.ones(len(GROUPS), np.int64),
        np.arange(len(GROUPS), dtype=np.int32),
        np.ones(len(GROUPS)),
        np.array([holds[group] for group in GROUPS], np.int64),
        np.array([targets[group] for group in GROUPS]),
        len(GROUPS),
        0,
        0.0,
        np.empty(0),
        np.empty(0, np.int64),
    )
    assert Book(shares).best(firsts).job == started[0]
