"""What Slurm's programs are told, and how their answers are read."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.cluster import slurm_owners, slurm_words
from gleaner.control.cluster.gateway import AgentPhase, AgentRequest, GatewayError
from gleaner.control.cluster.owners import OwnedPhase
from gleaner.control.settings import ClusterSettings

SETTINGS = ClusterSettings(gateway="slurm")
END_S = 1_795_233_600.0
REQUEST = AgentRequest("gleaner-x", END_S, END_S - 600, Path("/srv/agents/gleaner-x/token"))

NODES = """\
n1|6|4000|idle
n2|6|4000|allocated
n3|6|4000|planned
n4|6|4000|mixed
n5|6|4000|idle*
n6|6|4000|drained
n7|6|4000|idle~
n8|6|4000|completing
n9|6|4000|something-new
"""
AGENTS = """\
12|PENDING||1795232716|1795233000|N/A|gleaner-b
11|RUNNING|n2|1795232710|1795232717|1795232957|gleaner-a
10|COMPLETING|n8|1795232700|1795232701|1795232800|gleaner-c
9|SOMETHING_NEW|n9|1795232700|1795232701|1795232800|gleaner-d
8|RUNNING|n4|1795232700|1795232701|1795232800|my|own job
"""


def words(request: AgentRequest, now_s: float) -> dict[str, str]:
    found = slurm_words.submit(SETTINGS, request, now_s)
    return {name: value for name, _, value in (word.partition("=") for word in found)}


def test_only_nodes_that_slurm_calls_idle_or_planned_are_free() -> None:
    view = slurm_words.parse_view(NODES, AGENTS, partition="gleaner", read_s=1.0)
    assert [(node.name, node.planned) for node in view.nodes if node.idle] == [("n1", False), ("n3", True)]
    assert {node.name: node.state for node in view.nodes}["n9"] == "something-new"


def test_nodes_in_use_that_are_not_ours_are_regular() -> None:
    view = slurm_words.parse_view(NODES, AGENTS, partition="gleaner", read_s=1.0)
    assert view.regular_nodes == {"n4"}


def test_agents_are_told_from_other_jobs_by_their_name_and_have_times_only_once_they_run() -> None:
    view = slurm_words.parse_view(NODES, AGENTS, partition="gleaner", read_s=1.0)
    assert [(agent.name, agent.phase, agent.start_s) for agent in view.agents] == [
        ("gleaner-b", AgentPhase.PENDING, None),
        ("gleaner-a", AgentPhase.RUNNING, 1795232717.0),
        ("gleaner-c", AgentPhase.ENDING, 1795232701.0),
        ("gleaner-d", AgentPhase.ENDING, 1795232701.0),
    ]


@pytest.mark.parametrize(
    ("nodes", "agents"),
    [("n1|6|4000", ""), ("n1|six|4000|idle", ""), ("n1|6|4000|idle", "11|RUNNING"), ("n1|6|4000|idle", "slurm: hello")],
)
def test_what_cannot_be_read_is_an_error_and_never_a_guess(nodes: str, agents: str) -> None:
    with pytest.raises(GatewayError, match="said"):
        slurm_words.parse_view(nodes, agents, partition="gleaner", read_s=1.0)


@pytest.mark.parametrize("answer", ["", "Submitted batch job 5", "abc"])
def test_an_answer_without_a_job_id_is_an_error(answer: str) -> None:
    with pytest.raises(GatewayError, match="sbatch said"):
        slurm_words.parse_submitted(answer)


def test_the_limits_of_a_submission() -> None:
    found = words(REQUEST, END_S - 3541)
    assert (found["--time"], found["--time-min"], found["--deadline"]) == ("60", "10", "2026-11-21T04:01:00")


@given(left_s=st.floats(5, 7200), late_s=st.floats(0, 7200))
def test_however_late_the_start_slurms_own_end_is_the_shared_end_or_up_to_a_minute_later(
    left_s: float, late_s: float
) -> None:
    now_s = END_S - left_s
    found = words(replace(REQUEST, latest_start_s=END_S - min(left_s, 600)), now_s)
    start_s = int(min(now_s + late_s, END_S - 1))
    minutes = min(int(found["--time"]), int(END_S + 60 - start_s) // 60)  # as Slurm cuts at the start
    assert END_S - 1 <= start_s + 60 * minutes <= END_S + 60
    assert int(found["--time-min"]) <= int(found["--time"])


@pytest.mark.parametrize(
    ("state", "agent", "owned"),
    [
        ("PENDING", AgentPhase.PENDING, OwnedPhase.PENDING),
        ("REQUEUE_HOLD", AgentPhase.PENDING, OwnedPhase.PENDING),
        ("CONFIGURING", AgentPhase.PENDING, OwnedPhase.RUNNING),
        ("SUSPENDED", AgentPhase.RUNNING, OwnedPhase.RUNNING),
        ("COMPLETING", AgentPhase.ENDING, OwnedPhase.ENDING),
        ("STAGE_OUT", AgentPhase.ENDING, OwnedPhase.ENDING),
    ],
)
def test_an_agent_and_a_job_of_an_owners_stand_where_slurm_says_but_for_one_whose_node_is_made_ready(
    state: str, agent: AgentPhase, owned: OwnedPhase
) -> None:
    """No agent runs yet in such a job; to the owners' other jobs its CPUs are taken."""
    assert (slurm_words.phase_of(state), slurm_owners.phase_of(state)) == (agent, owned)


def test_the_script_runs_the_agent_as_a_step_and_hands_the_warning_on() -> None:
    script = slurm_words.script(SETTINGS, Path("/logs"), REQUEST)
    assert "srun " in script
    assert "glean-agent run --name gleaner-x --end 1795233600.000 --token-file /srv/agents/gleaner-x/token" in script
    assert "kill -USR1" in script
