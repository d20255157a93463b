"""The rules that every backend keeps."""

import time

import pytest
from tests.slurm.slurm_harness import Place

from gleaner.control.slurm.agents_view import agent_phase, regular_nodes
from gleaner.control.slurm.snapshot import JobPhase, Snapshot

pytestmark = pytest.mark.slow


def idle(view: Snapshot) -> int:
    return sum(node.is_idle for node in view.nodes.values())


def test_an_idle_cluster_shows_its_nodes_and_no_agents(place: Place) -> None:
    view = place.look()
    assert len(view.nodes) == 3
    assert all(node.is_idle and node.cpus >= 1 and node.memory_mib >= 1 for node in view.nodes.values())
    assert view.jobs == ()
    assert regular_nodes(view) == frozenset()


def test_a_submitted_agent_is_found_again_by_its_name_on_a_node_of_its_own(place: Place) -> None:
    before_s = time.time()
    request = place.request()
    id_ = place.submit(request)

    def runs_on_its_node(view: Snapshot) -> bool:
        """Nodes and agents are two questions: it may have started between them."""
        busy = {node.name for node in view.nodes.values() if not node.is_idle}
        return [(agent_phase(agent), agent.node in busy) for agent in view.jobs] == [(JobPhase.RUNNING, True)]

    view = place.eventually(runs_on_its_node)
    (agent,) = view.jobs
    assert (agent.id, agent.name) == (id_, request.name)
    assert idle(view) == 2
    assert regular_nodes(view) == frozenset()
    assert before_s - 1 <= agent.submitted_s <= time.time() + 1


def test_the_scheduler_ends_an_agent_at_the_shared_end_or_less_than_a_minute_later(place: Place) -> None:
    request = place.request(last_s=170)
    place.submit(request)
    view = place.eventually(lambda view: [agent_phase(agent) for agent in view.jobs] == [JobPhase.RUNNING])
    end_s = view.jobs[0].end_s
    assert end_s is not None
    assert 0 <= end_s - request.end_s <= 60


def test_withdrawn_agents_are_soon_gone_and_their_nodes_idle(place: Place) -> None:
    ids = [place.cluster.submit(place.request(), time.time()) for _ in range(2)]
    place.eventually(lambda view: idle(view) == 1)
    place.cluster.withdraw(ids)
    place.eventually(lambda view: not view.jobs and idle(view) == 3)


def test_withdrawing_what_has_ended_or_nothing_at_all_is_no_error(place: Place) -> None:
    id_ = place.submit(place.request())
    place.cluster.withdraw([id_])
    place.eventually(lambda view: not view.jobs)
    place.cluster.withdraw([id_])
    place.cluster.withdraw([])


def test_an_agent_that_has_ended_is_still_among_the_recent_jobs_of_its_node_and_was_not_preempted(place: Place) -> None:
    id_ = place.submit(place.request())
    (node,) = place.eventually(lambda view: any(agent.nodes for agent in view.jobs)).jobs[0].nodes
    place.cluster.withdraw([id_])
    place.eventually(lambda view: not view.jobs)
    recent = [(one.nodes, one.preempted_s) for one in place.cluster.read_recent([node]) if one.id == id_]
    assert recent == [((node,), None)]


def test_an_agent_keeps_off_the_nodes_that_are_excluded(place: Place) -> None:
    first, *others = [node.name for node in place.look().nodes.values()]
    place.submit(place.request(exclude=tuple(others)))
    view = place.eventually(lambda view: [agent_phase(agent) for agent in view.jobs] == [JobPhase.RUNNING])
    assert view.jobs[0].node == first
