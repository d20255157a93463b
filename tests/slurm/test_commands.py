"""The command lines of Slurm's programs, and the reading of their answers."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slurm.records import WORD, short_table

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm import commands
from gleaner.control.slurm.agents_view import agent_phase, agents_view
from gleaner.control.slurm.interface import AgentRequest, ClusterError
from gleaner.control.slurm.parse import parse_submitted, parse_tables
from gleaner.control.slurm.snapshot import JobPhase, SlurmJob, Snapshot

SETTINGS = ClusterSettings(backend="slurm")
END_S = 1_795_233_600.0
REQUEST = AgentRequest("gleaner-x", END_S, END_S - 600, Path("/srv/agents/gleaner-x/token"))

NODES = {
    "n1": "idle", "n2": "allocated", "n3": "idle+planned", "n4": "mixed", "n5": "idle+not_responding",
    "n6": "idle+drain", "n7": "idle+powered_down",
    "n8": "completing", "n9": "something-new",
}  # fmt: skip
AGENTS = (
    ("12", "PENDING", "", "1795232716", "1795233000", "N/A", "gleaner-b"),
    ("11", "RUNNING", "n2", "1795232710", "1795232717", "1795232957", "gleaner-a"),
    ("10", "COMPLETING", "n8", "1795232700", "1795232701", "1795232800", "gleaner-c"),
    ("9", "SOMETHING_NEW", "n9", "1795232700", "1795232701", "1795232800", "gleaner-d"),
    ("8", "RUNNING", "n4", "1795232700", "1795232701", "1795232800", "my|own\njob"),
)


def nodes_text(partition: str = "gleaner", **states: str) -> str:
    """Return what sinfo prints of nodes in these states."""
    rows = [(name, state, "0/6/0/6", "4000", "0", "(null)", "up", partition) for name, state in states.items()]
    return short_table(*rows)


def jobs_text(*agents: tuple[str, ...], user: str = "1000") -> str:
    """Return what squeue prints of jobs in the agents' partition."""
    rows = [
        (
            id_, state, "gleaner", "gleaner", "6", "1", "NO", "", "", node, "cpu=6,mem=4000M,node=1,billing=6",
            submitted, start, end, "N/A", "N/A", "1", "None", "(null)", "(null)", "0", user, "(null)", "(null)", name,
        )
        for id_, state, node, submitted, start, end, name in agents
    ]  # fmt: skip
    return short_table(*rows)


def view(nodes: str, jobs: str, *, own: int | None = None) -> Snapshot:
    return agents_view(parse_tables(nodes, jobs, WORD, own=own, read_s=1.0), "gleaner")


def words(request: AgentRequest, now_s: float) -> dict[str, str]:
    found = commands.submit(SETTINGS, request, now_s)
    return {name: value for name, _, value in (word.partition("=") for word in found)}


def test_only_nodes_that_slurm_calls_idle_or_planned_are_free() -> None:
    seen = view(nodes_text(**NODES), jobs_text(*AGENTS))
    idle = [node for node in seen.nodes.values() if node.is_idle]
    assert [(node.name, node.is_planned) for node in idle] == [
        ("n1", False),
        ("n3", True),
    ]
    assert seen.nodes["n9"].state == "something-new"


def test_nodes_and_jobs_of_other_partitions_are_none_of_provisionings() -> None:
    both = nodes_text(n1="idle", n2="idle") + nodes_text("shared", n2="idle", n3="idle")
    elsewhere = jobs_text(AGENTS[0]).replace(f"gleaner{WORD}gleaner{WORD}", f"gleaner{WORD}shared{WORD}")
    seen = view(both, elsewhere)
    assert (list(seen.nodes), seen.jobs) == (["n1", "n2"], ())


def test_of_everybodys_jobs_only_those_of_our_own_user_are_agents() -> None:
    """A name is anybody's to choose."""
    text = jobs_text(AGENTS[0], user="1000") + jobs_text(AGENTS[1], user="1001")
    assert [agent.name for agent in view(nodes_text(**NODES), text, own=1000).jobs] == ["gleaner-b"]


@pytest.mark.parametrize(
    ("nodes", "jobs"),
    [
        (nodes_text(n1="idle").replace(f"4000{WORD}", ""), ""),
        (nodes_text(n1="idle"), jobs_text(AGENTS[0]).replace(f"N/A{WORD}", "")),
        (nodes_text(n1="idle"), jobs_text(("11", "RUNNING", "n1", "now", "N/A", "N/A", "gleaner-a"))),
        (nodes_text(n1="idle"), "slurm: hello"),
    ],
)
def test_what_cannot_be_read_is_an_error_and_never_a_guess(nodes: str, jobs: str) -> None:
    with pytest.raises(ClusterError, match=r"sa(id|y)"):
        view(nodes, jobs)


def test_a_record_that_cannot_be_read_is_left_out_alone_unless_it_is_an_agents() -> None:
    """An agent that is left out would be taken for gone, and closed."""
    nodes = nodes_text(n1="idle", n2="idle").replace("4000", "many", 1)
    others = [
        ("7", "RUNNING", "n[1-", "1", "1", "2", "foreign"),
        ("8", "RUNNING", "n[1-999999999]", "1", "1", "2", "big"),
    ]
    found = parse_tables(nodes, jobs_text(*others, AGENTS[1]), WORD, own=1000, read_s=1.0)
    assert (list(found.nodes), [job.name for job in found.jobs]) == (["n2"], ["gleaner-a"])
    assert found.gaps == (
        "Slurm said of node n1 what cannot be read: 'many', where a number was expected;"
        " Slurm said of job 7 what cannot be read: 'n[1-' names no nodes (and of 1 more)"
    )
    with pytest.raises(ClusterError, match="agent gleaner-y"):
        parse_tables(
            nodes,
            jobs_text(AGENTS[1], ("9", "RUNNING", "n[1-a]", "1", "1", "2", "gleaner-y")),
            WORD,
            own=1000,
            read_s=1.0,
        )


@pytest.mark.parametrize("answer", ["", "Submitted batch job 5", "abc"])
def test_an_answer_without_a_job_id_is_an_error(answer: str) -> None:
    with pytest.raises(ClusterError, match="sbatch said"):
        parse_submitted(answer)


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
        ("PENDING", JobPhase.PENDING, JobPhase.PENDING),
        ("REQUEUE_HOLD", JobPhase.PENDING, JobPhase.PENDING),
        ("CONFIGURING", JobPhase.PENDING, JobPhase.RUNNING),
        ("SUSPENDED", JobPhase.RUNNING, JobPhase.RUNNING),
        ("COMPLETING", JobPhase.ENDING, JobPhase.ENDING),
        ("STAGE_OUT", JobPhase.ENDING, JobPhase.ENDING),
    ],
)
def test_an_agent_and_a_job_of_an_owners_stand_where_slurm_says_but_for_one_whose_node_is_made_ready(
    state: str, agent: JobPhase, owned: JobPhase
) -> None:
    """No agent runs yet in such a job; to the owners' other jobs its CPUs are taken."""
    job = SlurmJob(id="1", partitions=("p",), states=frozenset({state}))
    assert (agent_phase(job), job.phase) == (agent, owned)


def test_the_script_runs_the_agent_as_a_step_and_hands_the_warning_on() -> None:
    script = commands.script(SETTINGS, Path("/logs"), REQUEST)
    assert "srun " in script
    assert "glean-agent run --name gleaner-x --end 1795233600.000 --token-file /srv/agents/gleaner-x/token" in script
    assert "kill -USR1" in script
