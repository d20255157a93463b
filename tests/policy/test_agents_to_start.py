"""The number of agents that start, against a readable form and against the twin that the simulator compiles."""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.control.policy.provisioning import (
    PendingAgent,
    ProvisioningRules,
    ProvisioningView,
    RunningAgent,
    WaitingJobs,
    Why,
    agent_end,
    plan,
)
from gleaner.control.policy.resources import Resources
from gleaner.control.simulation.replay import array_policies as twin
from gleaner.control.simulation.replay.compiler import compiled

compiled_end, compiled_agents = compiled(agent_end), compiled(twin.agents_to_start)


@dataclass(frozen=True)
class Rooms:
    """So many places with this much free."""

    cpus: int
    memory_mib: int
    count: int
    is_held: bool
    takes: tuple[bool, bool, bool]


@dataclass(frozen=True)
class Question:
    slice_s: float
    at_most: int
    pending: int
    running: int
    rooms: list[Rooms]
    jobs: tuple[WaitingJobs, WaitingJobs, WaitingJobs]


SHORTEST_S = 10.0
SOON_S = 1000.0
small = st.integers(0, 9)
rooms = st.builds(Rooms, small, small, st.integers(0, 40), st.booleans(), st.tuples(*[st.booleans()] * 3))
jobs = st.builds(WaitingJobs, st.integers(1, 5), st.integers(1, 5), st.integers(0, 90))
questions = st.builds(
    Question,
    st.sampled_from([9.5, 10.0, 60.0]),
    st.integers(0, 60),
    small,
    small,
    st.lists(rooms, max_size=5).map(
        lambda made: sorted(made, key=lambda room: (not room.is_held, -room.cpus, -room.memory_mib))
    ),
    st.tuples(jobs, jobs, jobs).map(lambda made: tuple(sorted(made, key=lambda kind: (-kind.cpus, -kind.memory_mib)))),
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


def view_of(asked: Question) -> ProvisioningView:
    places = [(f"{at}.{number:02}", room) for at, room in enumerate(asked.rooms) for number in range(room.count)]
    held = [RunningAgent(SOON_S, Resources(room.cpus, room.memory_mib), name) for name, room in places if room.is_held]
    others = [RunningAgent(0.0, Resources(9, 9))] * asked.running  # they end too soon to take a job
    return ProvisioningView(
        now_s=0.0,
        rules=ProvisioningRules(asked.slice_s, 0.0, False, SHORTEST_S, SOON_S, asked.at_most + len(held)),
        all_nodes=frozenset(),
        nodes={name: Resources(room.cpus, room.memory_mib) for name, room in places if not room.is_held},
        excluded=frozenset(),
        pending=tuple(PendingAgent(f"a{at}", 0.0, SOON_S) for at in range(asked.pending)),
        running=(*held, *others),
        waiting=tuple(
            replace(job, misfits=frozenset(name for name, room in places if not room.takes[kind]))
            for kind, job in enumerate(asked.jobs)
        ),
    )


@given(questions)
def test_it_is_what_placing_jobs_one_by_one_gives(asked: Question) -> None:
    started, is_work_left = one_by_one(asked)
    answer = plan(view_of(asked))
    assert len(answer.submit) == started
    assert [each.why for each in answer.withdraw] == [Why.NO_WORK] * (0 if is_work_left else asked.pending)


@settings(deadline=None)  # the first one compiles
@given(
    st.sampled_from([9.5, 10.0]), st.integers(0, 60), small, st.integers(0, 40), st.integers(1, 9), st.integers(0, 90)
)
def test_the_simulator_starts_as_many_where_all_are_alike(
    slice_s: float, at_most: int, running: int, nodes: int, places: int, waiting: int
) -> None:
    idle, job = [Rooms(places, places, nodes, is_held=False, takes=(True, True, True))], WaitingJobs(1, 1, waiting)
    asked = Question(slice_s, at_most, 0, running, idle, (job, WaitingJobs(1, 1, 0), WaitingJobs(1, 1, 0)))
    arguments = (slice_s, SHORTEST_S, at_most, running, nodes, places, waiting)
    assert compiled_agents(*arguments) == twin.agents_to_start(*arguments) == len(plan(view_of(asked)).submit)


@settings(deadline=None)  # the first one compiles
@given(st.floats(-1e9, 1e9), st.floats(1, 1e6), st.floats(-1e9, 1e9), st.booleans())
def test_plain_and_compiled_agree_about_the_end(
    now_s: float, length_s: float, origin_s: float, synchronised: bool
) -> None:
    assert compiled_end(now_s, length_s, origin_s, synchronised) == agent_end(now_s, length_s, origin_s, synchronised)
