"""The job that is migrated in the background: only where it pays, never in circles."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.policy import rebalancing, replay
from gleaner.control.policy.rebalancing import (
    POLICY,
    AgentJob,
    AgentNode,
    Algorithm,
    RebalancingView,
    Relocation,
    as_answer,
    as_input,
    decide,
)
from gleaner.control.simulation.replay import array_policies as twin

HOUR_S = 3600.0


def view(
    *places: dict[int, int],
    cpus: int = 4,
    algorithm: Algorithm = "compaction",
    end_s: float = HOUR_S,
    cost_s: float = 10,
) -> RebalancingView:
    """Nodes n0, n1, ... with these jobs on each, as number: cores; `prefer` is n0, then n1."""
    nodes = tuple(AgentNode(f"n{at}", cpus, 1000 * cpus, end_s) for at in range(len(places)))
    jobs = [
        AgentJob(job, f"n{at}", cores, 100 * cores, is_migratable=True, cost_s=cost_s)
        for at, place in enumerate(places)
        for job, cores in place.items()
    ]
    by_age = tuple(sorted(jobs, key=lambda job: job.job))
    return RebalancingView(0.0, algorithm, 30.0, (("n0",), ("n1",)), 0, 0, nodes, by_age)


def changed(seen: RebalancingView, number: int, **changes: object) -> RebalancingView:
    jobs = tuple(replace(job, **changes) if job.job == number else job for job in seen.jobs)  # type: ignore[arg-type]
    return replace(seen, jobs=jobs)


def where(move: Relocation | None) -> tuple[int, str, str] | None:
    return None if move is None else (move.job, move.from_node, move.to_node)


def test_a_partly_used_node_is_emptied_into_the_one_before_it() -> None:
    assert where(decide(view({1: 2}, {2: 1, 3: 1}))) == (3, "n1", "n0")


def test_cost_and_gain_of_emptying_a_node_are_those_of_all_its_jobs() -> None:
    move = decide(view({1: 2}, {2: 1, 3: 1}))
    assert move is not None
    assert move.cost_core_s == 2 * 10
    assert move.gain_core_s == 4 * (HOUR_S - 30 - 10), "the second job moves 30 s later, and is gone 10 s after that"


def test_near_the_boundary_nothing_moves() -> None:
    assert decide(view({1: 2}, {2: 1}, end_s=12.5)) is None
    assert decide(view({1: 2}, {2: 1}, end_s=12.6)) is not None, "1 core for 10 s against 4 for 2.6 s"


def test_a_node_that_cannot_be_emptied_is_left_alone() -> None:
    seen = view({1: 2}, {2: 1, 3: 1})
    assert decide(changed(seen, 2, is_migratable=False)) is None
    assert decide(changed(seen, 2, misfits=("n0",))) is None
    assert decide(changed(seen, 2, memory_mib=3900)) is None


@pytest.mark.parametrize("algorithm", ["compaction", "priorities"])
@pytest.mark.parametrize("change", [{"waiting": 1}, {"moving": 1}])
def test_nothing_moves_while_a_job_waits_or_moves(algorithm: Algorithm, change: dict[str, int]) -> None:
    seen = view({1: 1}, {2: 1}, algorithm=algorithm)
    assert decide(seen) is not None
    assert decide(replace(seen, **change)) is None  # type: ignore[arg-type]


def test_work_moves_to_the_most_preferred_node_that_has_room() -> None:
    assert where(decide(view({1: 4}, {}, {2: 2}, algorithm="priorities"))) == (2, "n2", "n1")
    assert where(decide(view({}, {1: 4}, {2: 2}, algorithm="priorities"))) == (2, "n2", "n0")


def test_a_job_that_is_saved_too_slowly_is_not_moved_to_a_preferred_node() -> None:
    seen = view({}, {}, {2: 2, 3: 1}, algorithm="priorities")
    assert where(decide(changed(seen, 2, cost_s=HOUR_S / 2))) == (3, "n2", "n0")
    assert where(decide(changed(seen, 2, cost_s=HOUR_S / 2 - 1))) == (2, "n2", "n0")


def test_a_decision_is_the_same_when_it_is_replayed_from_what_is_stored() -> None:
    seen = view({1: 2}, {2: 1, 3: 1})
    stored = json.loads(json.dumps(as_input(seen)))
    answer = json.loads(json.dumps(as_answer(decide(seen))))
    assert replay.REPLAYS[POLICY](stored) == answer
    assert "costs 20 core seconds and gains 14240" in answer["because"]["job 3"]


# ── what must always hold ──

jobs_of_a_node = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 2000), st.booleans()), max_size=5)


@st.composite
def views(draw: st.DrawFn) -> RebalancingView:
    """Nodes of several sizes and ends, no fuller than they can be, with jobs of all sorts."""
    nodes: list[AgentNode] = []
    jobs: list[AgentJob] = []
    for at in range(draw(st.integers(1, 6))):
        node = AgentNode(
            f"n{at}", draw(st.integers(1, 8)), 4000, draw(st.sampled_from([5.0, 100.0, HOUR_S, 2 * HOUR_S]))
        )
        nodes.append(node)
        cpus, memory_mib = node.cpus, node.memory_mib
        for cores, mib, migratable in draw(jobs_of_a_node):
            if cores <= cpus and mib <= memory_mib:
                cpus, memory_mib = cpus - cores, memory_mib - mib
                misfits = draw(st.lists(st.sampled_from(["n0", "n1", "n2"]), max_size=1))
                cost_s = draw(st.sampled_from([0.5, 10.0, 600.0]))
                jobs.append(AgentJob(len(jobs) + 1, node.name, cores, mib, migratable, cost_s, tuple(misfits)))
    jobs = draw(st.permutations(jobs))
    prefer = draw(st.sampled_from([(("n0",), ("n1", "n2")), (("n5",),), ()]))
    algorithm: Algorithm = draw(st.sampled_from(["compaction", "priorities"]))
    return RebalancingView(0.0, algorithm, 30.0, prefer, 0, 0, tuple(nodes), tuple(jobs))


def used(seen: RebalancingView, node: str) -> int:
    return sum(job.cpus for job in seen.jobs if job.node == node)


def partly_used(seen: RebalancingView) -> int:
    return sum(0 < used(seen, node.name) < node.cpus for node in seen.nodes)


@given(views())
def test_moved_again_and_again_all_come_to_rest_and_each_move_keeps_its_word(seen: RebalancingView) -> None:
    for _ in range(len(seen.jobs) * len(seen.nodes) + 1):
        move = decide(seen)
        if move is None:
            return
        moved = next(job for job in seen.jobs if job.job == move.job)
        target = next(node for node in seen.nodes if node.name == move.to_node)
        before = partly_used(seen)
        assert moved.is_migratable
        assert moved.node == move.from_node != move.to_node
        assert move.to_node not in moved.misfits
        assert move.gain_core_s > move.cost_core_s
        # The youngest comes last: a job that has just started elsewhere is the youngest.
        rest = tuple(job for job in seen.jobs if job.job != move.job)
        seen = replace(seen, jobs=(*rest, replace(moved, node=move.to_node)), now_s=seen.now_s + seen.every_s)
        assert used(seen, target.name) <= target.cpus
        assert sum(job.memory_mib for job in seen.jobs if job.node == target.name) <= target.memory_mib
        if seen.algorithm == "compaction":
            assert partly_used(seen) <= before
    raise AssertionError("they go round in circles")


@given(views())
def test_it_chooses_what_the_simulator_chooses(seen: RebalancingView) -> None:
    """Each job can be restored everywhere here, since the simulator knows no memory of a node."""
    seen = replace(seen, jobs=tuple(replace(job, memory_mib=0, misfits=()) for job in seen.jobs))
    rank = {name: -at for at, names in enumerate(seen.prefer) for name in names}
    place = {node.name: at for at, node in enumerate(seen.nodes)}
    level = np.array([rank.get(node.name, -len(seen.prefer)) for node in seen.nodes], np.int64)
    nodes = (
        np.array([used(seen, node.name) for node in seen.nodes], np.int64),
        np.array([node.cpus for node in seen.nodes], np.int64),
    )
    on = np.array([place[job.node] for job in seen.jobs], np.int64)
    cpus = np.array([job.cpus for job in seen.jobs], np.int64)
    can_go = np.array([job.is_migratable for job in seen.jobs], np.bool_)
    expected = [
        twin.compaction(*nodes, on, cpus, can_go, False),
        twin.priorities(*nodes, level, level[on], cpus, can_go, False),
    ]
    for found, (job, taken) in zip(
        (rebalancing.compaction(seen, set()), next(rebalancing.priorities(seen), None)), expected, strict=True
    ):
        at = (seen.jobs.index(found[0]), place[found[1].name]) if found else (-1, 0)
        assert at == (job, int(taken.argmax()))
