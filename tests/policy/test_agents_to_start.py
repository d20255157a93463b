"""The planner's cores: plain as live control calls them, compiled as the simulator does, and a readable form."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.control.policy.provisioning import agent_end, agents_to_start
from gleaner.control.simulation.replay.compiler import compiled

compiled_end, compiled_agents = compiled(agent_end), compiled(agents_to_start)


@dataclass(frozen=True)
class Rooms:
    """So many places with this much free."""

    cpus: int
    memory_mib: int
    count: int
    is_held: bool
    takes: tuple[bool, bool, bool]


@dataclass(frozen=True)
class Jobs:
    cpus: int
    memory_mib: int
    count: int


@dataclass(frozen=True)
class Question:
    slice_s: float
    at_most: int
    pending: int
    running: int
    rooms: list[Rooms]
    jobs: tuple[Jobs, Jobs, Jobs]


SHORTEST_S = 10.0
small = st.integers(0, 9)
rooms = st.builds(Rooms, small, small, st.integers(0, 40), st.booleans(), st.tuples(*[st.booleans()] * 3))
jobs = st.builds(Jobs, st.integers(1, 5), st.integers(1, 5), st.integers(0, 90))
questions = st.builds(
    Question,
    st.sampled_from([9.5, 10.0, 60.0]),
    st.integers(0, 60),
    small,
    small,
    st.lists(rooms, max_size=5).map(lambda made: sorted(made, key=lambda room: not room.is_held)),
    st.tuples(jobs, jobs, jobs),
)


def one_by_one(asked: Question) -> tuple[int, bool]:
    """Each place by itself, each job by itself."""
    left = [kind.count for kind in asked.jobs]
    useful, is_left_by_running = 0, sum(left) > 0
    for room in asked.rooms:
        if not room.is_held and asked.slice_s < SHORTEST_S:
            continue
        for _ in range(room.count):
            cpus, memory_mib, is_used = room.cpus, room.memory_mib, False
            for kind, job in enumerate(asked.jobs):
                while room.takes[kind] and left[kind] and job.cpus <= cpus and job.memory_mib <= memory_mib:
                    cpus, memory_mib, is_used = cpus - job.cpus, memory_mib - job.memory_mib, True
                    left[kind] -= 1
            useful += is_used and not room.is_held
        if room.is_held:
            is_left_by_running = sum(left) > 0
    below_cap = asked.at_most - asked.pending - asked.running
    return max(0, min(useful - asked.pending, below_cap)), is_left_by_running


@settings(deadline=None)  # the first one compiles
@given(questions)
def test_plain_and_compiled_answer_what_placing_jobs_one_by_one_gives(asked: Question) -> None:
    arguments: tuple[Any, ...] = (
        asked.slice_s,
        SHORTEST_S,
        asked.at_most,
        asked.pending,
        asked.running,
        sum(room.is_held for room in asked.rooms),
        *(np.array([getattr(room, of) for room in asked.rooms], np.int64) for of in ("cpus", "memory_mib", "count")),
        *(np.array([getattr(job, of) for job in asked.jobs], np.int64) for of in ("cpus", "memory_mib", "count")),
        np.array([room.takes for room in asked.rooms], np.bool_).reshape(len(asked.rooms), 3),
    )
    expected = one_by_one(asked)
    assert agents_to_start(*arguments) == expected
    assert compiled_agents(*arguments) == expected


@settings(deadline=None)  # the first one compiles
@given(st.floats(-1e9, 1e9), st.floats(1, 1e6), st.floats(-1e9, 1e9), st.booleans())
def test_plain_and_compiled_agree_about_the_end(
    now_s: float, length_s: float, origin_s: float, synchronised: bool
) -> None:
    assert compiled_end(now_s, length_s, origin_s, synchronised) == agent_end(now_s, length_s, origin_s, synchronised)


def test_a_million_alike_nodes_are_counted_in_one_step() -> None:
    """Else this would take minutes: it is the plain form."""
    million = np.array([1_000_000])
    one, all_fit = np.array([1]), np.ones((1, 1), np.bool_)
    assert agents_to_start(60, 10, 10**9, 0, 0, 0, one, one, million, one, one, 5 * million, all_fit) == (10**6, True)
