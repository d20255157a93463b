"""The live loop's round against a real database and faked Slurm programs."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.control.stage import LEASE_S, Stage, end_jobs
from tests.gateway.places import FakedSlurm

from gleaner.agent.protocol import Completed, Generation, Saved, Slice
from gleaner.control.policy.quotas import GroupMost, Most, QuotaRules
from gleaner.control.queue import agents, drains, moves
from gleaner.control.queue.drain_tables import DrainTask
from gleaner.control.queue.engine import snapshot, transaction
from gleaner.control.queue.tokens import identify
from gleaner.control.rounds import sweep_tokens
from gleaner.control.settings import RoundSettings

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys, time
from pathlib import Path
from tests.control.stage import Stage

stage = Stage(url=sys.argv[1], folder=Path(sys.argv[2]))
gateway = stage.rounds._gateway
submit = gateway.submit

def die(request, now_s):
    if sys.argv[3] == "after":
        submit(request, now_s)
    os.kill(os.getpid(), signal.SIGKILL)

gateway.submit = die
stage.round()
"""


def killed_at_its_submission(stage: Stage, *, when: str) -> None:
    """Another program does a round and is killed with SIGKILL right before or after it calls sbatch."""
    done = subprocess.run([sys.executable, "-c", KILLED, stage.url, str(stage.folder), when], check=False)
    assert done.returncode == -9


def token_of(stage: Stage, name: str) -> Path:
    return stage.folder / "agents" / name / "token"


def test_a_waiting_job_brings_an_agent_with_a_row_an_id_and_a_token_for_the_owner_only(
    stage: Stage, faked: FakedSlurm, tmp_path: Path
) -> None:
    stage.submit_jobs(1)
    stage.round()
    (agent,) = stage.agents()
    path = token_of(stage, agent.name)
    assert (agent.scheduler_id, agent.end_s) == ("100", stage.site.boundary_s)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with snapshot(stage.site.engine) as db:
        identity = identify(db, path.read_text())
    assert identity is not None
    assert (identity.role, identity.name) == ("agent", agent.name)
    assert stage.site.problem == ""


def test_no_agent_is_submitted_for_a_job_that_no_known_node_can_restore(stage: Stage, faked: FakedSlurm) -> None:
    (job,) = stage.submit_jobs(1)
    stage.submit_jobs(3)
    stage.round()
    first, second, third = stage.agents()
    stage.register(first.name, "n1", criu="4.2")
    (given,) = stage.claim(first.name).jobs
    made = Generation(attempt=1, number=1, digest="sha256:" + "0" * 64, size_bytes=1, log_lines=0)
    with transaction(stage.site.engine) as db:
        moves.saved(db, job, 1, Saved(generation=made, slice=Slice(started_s=1.0)), now_s=stage.now_s)
    assert given.job == job
    for name, node in ((second.name, "n2"), (third.name, "n3")):
        stage.register(name, node, criu="4.1")
        (other,) = stage.claim(name).jobs
        assert other.job != job
        with transaction(stage.site.engine) as db:
            moves.completed(db, other.job, 1, Completed(exit_code=0, slice=Slice(started_s=1.0)), now_s=stage.now_s)
    (last,) = stage.claim(second.name).jobs
    with transaction(stage.site.engine) as db:
        moves.cancel(db, last.job, now_s=stage.now_s)
    for agent in (first, second, third):
        stage.farewell(agent.name)
    end_jobs(faked.folder)
    stage.round()
    (later,) = [agent for agent in stage.agents() if agent.phase == "submitted"]  # n1 can restore it
    stage.register(later.name, "n1", criu="4.1")  # but has been changed back
    stage.farewell(later.name)
    end_jobs(faked.folder)
    stage.round()
    stage.round()
    assert len(stage.agents()) == 4


def test_rounds_submit_no_more_than_the_work_needs_or_the_nodes_allow(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(2)
    stage.round()
    stage.round()
    assert len(stage.agents()) == 2
    stage.submit_jobs(5)
    stage.round()
    stage.round()
    assert len(stage.agents()) == len(faked.calls("sbatch")) == 3


def test_no_agent_is_submitted_for_jobs_that_a_quota_keeps_waiting(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(3)
    stage.site.quotas = QuotaRules(GroupMost(group=Most(cores=6)))
    stage.round()
    stage.round()
    (agent,) = stage.agents()
    stage.register(agent.name, "n1")
    assert len(stage.claim(agent.name).jobs) == 1
    stage.round()
    assert len(stage.agents()) == 1


def test_a_program_that_does_not_lead_asks_slurm_nothing(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    stage.site.leads_until_s = 0.0
    stage.round()
    assert faked.calls("sinfo") + faked.calls("sbatch") == []


def test_a_term_that_ends_while_the_agents_row_is_written_submits_nothing(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    stage.site.leads_until_s = 1.0
    stage.site.steady_clock = lambda: float(len(stage.agents()))
    stage.round()
    assert len(stage.agents()) == 1
    assert faked.calls("sbatch") == []


@pytest.mark.parametrize("checks", [1, 2])
def test_a_term_that_ends_during_a_round_cancels_nothing(stage: Stage, faked: FakedSlurm, checks: int) -> None:
    faked.switch("stuck")
    stage.submit_jobs(1)
    stage.round()
    stage.ahead_s = 310  # pending for longer than the limit
    asked = len(faked.calls("squeue"))
    times_s = iter([0.0] * checks)  # so often it still leads when it asks itself
    stage.site.steady_clock = lambda: next(times_s, 2.0)
    stage.site.leads_until_s = 1.0
    stage.round()
    assert len(faked.calls("squeue")) == asked + 1
    assert faked.calls("scancel") == []
    stage.site.leads_until_s = 3.0
    stage.round()
    assert len(faked.calls("scancel")) == 1


def test_killed_before_its_sbatch_the_row_is_closed_and_another_agent_submitted(
    stage: Stage, faked: FakedSlurm
) -> None:
    stage.submit_jobs(1)
    killed_at_its_submission(stage, when="before")
    (orphan,) = stage.agents()
    stage.round()
    assert [agent.name for agent in stage.agents()] == [orphan.name]  # it might still turn up
    stage.ahead_s = 30
    stage.round()
    first, second = stage.agents()
    assert (first.name, first.phase, first.reason) == (orphan.name, "ended", "the scheduler never took it")
    assert (second.phase, second.scheduler_id) == ("submitted", "100")
    assert not token_of(stage, first.name).exists()


def test_killed_after_its_sbatch_the_agent_is_found_by_its_name(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    killed_at_its_submission(stage, when="after")
    assert [agent.scheduler_id for agent in stage.agents()] == [None]
    stage.round()
    assert [agent.scheduler_id for agent in stage.agents()] == ["100"]
    assert len(faked.calls("sbatch")) == 1


def test_an_sbatch_that_accepts_and_never_answers_makes_one_agent(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    faked.switch("mute")
    stage.round()
    faked.heal("mute")
    stage.round()
    assert [agent.scheduler_id for agent in stage.agents()] == ["100"]
    assert len(faked.calls("sbatch")) == 1


def test_slurm_away_is_a_problem_and_nothing_is_lost(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    stage.round()
    seen = stage.site.cluster
    faked.switch("away")
    stage.ahead_s = 3000
    stage.round()
    assert stage.site.problem.startswith("Slurm does not answer: sinfo says ")
    assert stage.site.cluster is seen
    assert [agent.phase for agent in stage.agents()] == ["submitted"]
    faked.heal("away")
    stage.round()
    assert stage.site.problem == ""


def test_a_refused_submission_is_reported_leaves_nothing_behind_and_backs_off(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(3)
    faked.switch("refuse", "Invalid qos specification")
    stage.round()
    (agent,) = stage.agents()
    assert agent.phase == "ended"
    assert "Invalid qos specification" in agent.reason
    assert not token_of(stage, agent.name).exists()
    assert stage.site.problem.startswith("no agent could be submitted, next try in 20 s: Slurm refuses: sbatch")
    stage.ahead_s = 19
    stage.round()
    assert len(faked.calls("sbatch")) == 1
    stage.ahead_s = 25
    stage.round()
    assert len(faked.calls("sbatch")) == 2
    stage.ahead_s = 50  # the second pause is twice as long
    stage.round()
    assert len(faked.calls("sbatch")) == 2
    faked.heal("refuse")
    stage.ahead_s = 70
    stage.round()
    assert len(faked.calls("sbatch")) == 5
    assert stage.site.problem == ""


def test_a_storage_folder_that_is_gone_is_a_problem_and_submits_nothing(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    stage.folder.rename(stage.folder.with_suffix(".away"))
    stage.round()
    assert "no agent could be submitted" in stage.site.problem
    assert str(stage.folder) in stage.site.problem
    assert faked.calls("sbatch") == []
    stage.folder.with_suffix(".away").rename(stage.folder)
    stage.ahead_s = 30
    stage.round()
    assert (len(faked.calls("sbatch")), stage.site.problem) == (1, "")


def test_a_pending_agent_that_does_not_start_soon_is_withdrawn_and_its_row_closed(
    stage: Stage, faked: FakedSlurm
) -> None:
    faked.switch("stuck")
    stage.submit_jobs(1)
    stage.round()
    stage.ahead_s = 310
    stage.round()
    assert [call["words"] for call in faked.calls("scancel")] == [["100"]]
    stage.round()
    assert stage.agents()[0].phase == "ended"


def test_pending_agents_are_withdrawn_when_nothing_waits_any_more(stage: Stage, faked: FakedSlurm) -> None:
    faked.switch("stuck")
    (job,) = stage.submit_jobs(1)
    stage.round()
    with transaction(stage.site.engine) as db:
        moves.cancel(db, job, now_s=stage.now_s)
    stage.round()
    assert [call["words"] for call in faked.calls("scancel")] == [["100"]]


def test_an_agent_we_have_given_up_that_turns_up_pending_is_withdrawn(stage: Stage, faked: FakedSlurm) -> None:
    faked.switch("stuck")
    stage.submit_jobs(1)
    stage.round()
    with transaction(stage.site.engine) as db:
        agents.forget_unstarted(db, stage.agents()[0].name, now_s=stage.now_s, reason="given up")
    stage.round()
    assert [call["words"] for call in faked.calls("scancel")] == [["100"]]


def test_a_node_on_which_three_agents_die_in_a_row_is_left_alone_for_a_while(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    for _ in range(3):
        stage.round()  # submits; the faked Slurm starts it on n1
        stage.round()  # sees it there
        end_jobs(faked.folder)
    stage.round()
    assert stage.avoided() == ("n1",)
    assert "--exclude=n1" in faked.calls("sbatch")[-1]["words"]
    assert "died on n1" in stage.agents()[0].reason
    stage.ahead_s = 3601
    assert stage.avoided() == ()


@pytest.mark.parametrize("why", ["drained", "avoided", "incompatible"])
def test_a_node_that_has_left_slurm_keeps_no_agent_from_being_submitted(
    stage: Stage, faked: FakedSlurm, why: str
) -> None:
    (job,) = stage.submit_jobs(1)
    if why == "drained":
        with transaction(stage.site.engine) as db:
            drains.ask(db, task=DrainTask.DRAIN, nodes=["n1"], by="root", now_s=stage.now_s)
    if why == "avoided":
        with transaction(stage.site.engine) as db:
            for _ in range(3):
                agents.node_failed(db, "n1", now_s=stage.now_s, failures_until_avoided=3, avoid_s=3600)
    if why == "incompatible":  # saved on n2, and n1 lacks what it relies on
        stage.submit_jobs(1)
        stage.round()
        first, second = stage.agents()
        stage.register(first.name, "n1", criu="4.1")
        stage.register(second.name, "n2", criu="4.2")
        (given,) = stage.claim(second.name).jobs
        made = Generation(attempt=1, number=1, digest="sha256:" + "0" * 64, size_bytes=1, log_lines=0)
        with transaction(stage.site.engine) as db:
            moves.saved(db, given.job, 1, Saved(generation=made, slice=Slice(started_s=1.0)), now_s=stage.now_s)
            moves.cancel(db, ({job, job + 1} - {given.job}).pop(), now_s=stage.now_s)
        for agent in (first, second):
            stage.farewell(agent.name)
        end_jobs(faked.folder)
    told = len(faked.calls("sbatch"))
    stage.round()
    (call,) = faked.calls("sbatch")[told:]
    assert "--exclude=n1" in call["words"], "as long as Slurm knows it"
    end_jobs(faked.folder)
    faked.switch("nodes", "n2 n3")
    stage.round()
    stage.round()
    assert stage.site.problem == ""
    calls = faked.calls("sbatch")[told + 1 :]
    assert calls
    assert not any(word.startswith("--exclude") for call in calls for word in call["words"])


def test_an_agent_that_a_regular_job_drove_away_says_nothing_against_its_node(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1)
    for _ in range(3):
        (faked.folder / "states.json").unlink(missing_ok=True)
        stage.round()
        stage.round()
        end_jobs(faked.folder)
        faked.switch("states.json", '{"n1": "allocated"}')
        stage.round()
    assert stage.avoided() == ()


def test_a_registered_agent_that_slurm_has_forgotten_keeps_its_job_until_its_lease_ends(
    stage: Stage, faked: FakedSlurm
) -> None:
    (job,) = stage.submit_jobs(1)
    stage.round()
    name = stage.agents()[0].name
    stage.register(name, "n1")
    stage.claim(name)
    end_jobs(faked.folder)
    stage.round()
    assert stage.state_of(job) == "Running"
    stage.ahead_s = LEASE_S + 1
    with transaction(stage.site.engine) as db:
        agents.expire(db, now_s=stage.now_s, losses_until_held=3)
    stage.round()
    assert stage.state_of(job) == "New"
    assert [(agent.phase, agent.reason) for agent in stage.agents() if agent.name == name] == [
        ("ended", "the scheduler no longer knows it")
    ]


def test_jobs_that_fit_beside_a_running_one_wait_for_that_agent(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(1, cpus=2)
    stage.round()
    stage.register(stage.agents()[0].name, "n1")
    stage.claim(stage.agents()[0].name)
    stage.submit_jobs(2, cpus=2)
    stage.round()
    assert len(stage.agents()) == 1
    stage.submit_jobs(1, cpus=2)
    stage.round()
    assert len(stage.agents()) == 2


def test_token_files_of_ended_agents_are_swept_and_those_of_others_stay(stage: Stage, faked: FakedSlurm) -> None:
    stage.submit_jobs(2)
    stage.round()
    ended, living = (agent.name for agent in stage.agents())
    stage.register(ended, "n1")
    stage.farewell(ended)
    (stage.folder / "agents" / "gleaner-1-of-nobody").mkdir()
    assert sweep_tokens(stage.site, stage.now_s) == 2
    assert token_of(stage, living).exists()
    assert not token_of(stage, ended).parent.exists()


@pytest.mark.parametrize("length_s", [60.0, 3600.0])
def test_agents_of_several_polls_share_one_end(
    sqlite_url: str, tmp_path: Path, faked: FakedSlurm, length_s: float
) -> None:
    rounds = RoundSettings(length_s=length_s, shortest_slice_s=5, agent_needs_s=5, poll_s=20)
    stage = Stage(url=sqlite_url, folder=tmp_path / "storage", rounds_settings=rounds)
    start_s = (stage.now_s // length_s + 1) * length_s + 1
    for later_s in (0.0, length_s / 3, length_s / 2):
        stage.submit_jobs(1)
        stage.rounds.a_round(start_s + later_s)
    ends = {agent.end_s for agent in stage.agents()}
    assert ends == {start_s - 1 + length_s}


def test_a_job_whose_pause_is_over_gets_an_agent_although_none_is_there_to_claim(
    stage: Stage, faked: FakedSlurm, tmp_path: Path
) -> None:
    stage.submit_jobs(1)
    stage.round()
    (agent,) = stage.agents()
    stage.register(agent.name, "n1")
    (given,) = stage.claim(agent.name).jobs
    with transaction(stage.site.engine) as db:
        report = Completed(exit_code=1, slice=Slice(started_s=stage.now_s))
        moves.completed(db, given.job, given.attempt, report, now_s=stage.now_s)
    stage.farewell(agent.name)
    end_jobs(tmp_path / "bin")
    submitted = len(faked.calls("sbatch"))
    stage.round()
    assert len(faked.calls("sbatch")) == submitted, "while it pauses there is nothing to do for an agent"
    stage.ahead_s += 1000
    stage.round()
    assert len(faked.calls("sbatch")) == submitted + 1
