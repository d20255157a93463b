"""Simultaneous Fair-Share: the worked example of the paper, and the walk against live control."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.oracle_priorities import Job, as_workload, chosen

from gleaner.control.policy.fair_share import Book, First, ShareRules, Shares
from gleaner.control.simulation.model import of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import (
    Backfill,
    PrioritySettings,
    SchedulerKind,
    SchedulerSettings,
    ShareSettings,
)

NAMES = "ABCDEFGHJK" + "MNPQRSUVWX"
ALICE_AND_BOB = [Job(0, 100, 100, 200, "Alice")] * 10 + [Job(0, 100, 100, 50, "Bob")] * 10


@pytest.mark.parametrize(("backfill", "first"), [(Backfill.NONE, "ABCDMN"), (Backfill.EASY, "ABCDMNPQ")])
def test_both_get_their_targets_before_anyone_gets_more(backfill: Backfill, first: str) -> None:
    """Pass one places A B M N (500 of 1000 nodes), pass two C D (900); E and F wait, P and Q overtake them (1000)."""
    share = ShareSettings(targets={"Alice": 288, "Bob": 58})
    scheduler = SchedulerSettings(kind=SchedulerKind.SFS, priority=PrioritySettings(backfill=backfill), sfs=share)
    start_s = replay(as_workload(ALICE_AND_BOB), of_nodes(1000), scheduler).start_s
    assert "".join(name for name, at_s in zip(NAMES, start_s, strict=True) if at_s == 0) == first


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
    order = sorted(range(len(GROUPS)), key=lambda number: firsts[number].order)
    started = chosen(
        [Job(0, 1, 1, 1, GROUPS[number]) for number in order],
        [(Job(0, 1, 1, holds[group], group), 0.0) for group in GROUPS],
        targets=dict(shares.target_cpus(GROUPS)),
        capacity=len(GROUPS) + sum(holds.values()),
        reservations=0,
        now_s=0,
    )
    assert Book(shares).best(firsts).job == order[started[0]]
