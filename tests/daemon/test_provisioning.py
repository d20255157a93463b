"""The live loop's round against a real database and faked Slurm programs."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.daemon.daemon_harness import DaemonHarness, end_jobs, start_jobs
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.agent.job_spec import JobSpec, OutputSpec
from gleaner.agent.messages import Completed, Output, Slice
from gleaner.control.models.drains import DrainTask
from gleaner.control.models.jobs import Submission
from gleaner.control.policy.quotas import Limit, Quantity, QuotaRules
from gleaner.control.queue import agents, attempt_reports, drains, jobs
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.queue.tokens import identify
from gleaner.control.settings import OutputSettings

pytestmark = pytest.mark.slow

KILLED = """
import os, signal, sys, time
from pathlib import Path
from tests.daemon.daemon_harness import DaemonHarness

harness = DaemonHarness(url=sys.argv[1], folder=Path(sys.argv[2]))
backend = harness.cluster
submit = backend.submit

def die(request, now_s):
    if sys.argv[3] == "after":
        submit(request, now_s)
    os.kill(os.getpid(), signal.SIGKILL)

backend.submit = die
harness.round()
"""


def killed_at_its_submission(harness: DaemonHarness, *, when: str) -> None:
    """Another program does a round and is killed with SIGKILL right before or after it calls sbatch."""
    done = subprocess.run([sys.executable, "-c", KILLED, harness.url, str(harness.folder), when], check=False)
    assert done.returncode == -9


def token_of(harness: DaemonHarness, name: str) -> Path:
    return harness.folder / "agents" / name / "token"


def test_a_waiting_job_brings_an_agent_with_a_row_an_id_and_a_token_for_the_owner_only(
    harness: DaemonHarness, faked: FakedSlurm, tmp_path: Path
) -> None:
    harness.submit_jobs(1)
    harness.round()
    (agent,) = harness.agents()
    path = token_of(harness, agent.name)
    assert (agent.scheduler_id, agent.end_s) == ("100", harness.state.boundary_s)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with snapshot(harness.state.engine) as db:
        identity = identify(db, path.read_text())
    assert identity is not None
    assert (identity.role, identity.name) == ("agent", agent.name)
    assert harness.state.problem == ""


def test_a_result_that_waits_to_be_delivered_brings_an_agent_where_none_is(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.state.settings = harness.state.settings.model_copy(
        update={"outputs": OutputSettings(urls=("file:///d/{group}/",))}
    )
    spec = JobSpec(name="j", image="i", outputs=OutputSpec(to="file:///d/g/"))
    rules = jobs.SubmissionRules(1, targets=("file:///d/g/",))
    with transaction(harness.state.engine) as db:
        jobs.submit(db, Submission(job=spec), group="g", rules=rules, now_s=harness.now_s)
    harness.round()
    (agent,) = harness.agents()
    harness.register(agent.name, "n1")
    (work,) = harness.claim(agent.name).jobs
    output = Output(digest=f"sha256:{0:064x}", size_bytes=1)
    done = Completed(exit_code=0, output=output, slice=Slice(started_s=1.0))
    with transaction(harness.state.engine) as db:
        attempt_reports.record_completion(db, work.job, work.attempt, done, now_s=harness.now_s)
    harness.round()
    assert len(harness.agents()) == 1  # the agent that is there delivers
    harness.farewell(agent.name)
    end_jobs(faked.folder)
    harness.round()
    assert len(harness.agents()) == 2


def test_rounds_submit_no_more_than_the_work_needs_or_the_nodes_allow(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(2)
    harness.round()
    harness.round()
    assert len(harness.agents()) == 2
    harness.submit_jobs(5)
    harness.round()
    harness.round()
    assert len(harness.agents()) == len(faked.calls("sbatch")) == 3


def test_no_agent_is_submitted_for_jobs_that_a_quota_keeps_waiting(harness: DaemonHarness, faked: FakedSlurm) -> None:
    harness.submit_jobs(3)
    harness.state.quotas = QuotaRules((Limit(Quantity.CORES, 6),))
    harness.round()
    harness.round()
    (agent,) = harness.agents()
    harness.register(agent.name, "n1")
    assert len(harness.claim(agent.name).jobs) == 1
    harness.round()
    assert len(harness.agents()) == 1


def test_no_agent_is_submitted_for_jobs_that_need_more_time_than_the_round_has_left(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(1, needs_at_least_s=1_000_000)
    harness.round()
    assert faked.calls("sbatch") == []
    harness.submit_jobs(1, needs_at_least_s=60)
    harness.round()
    assert len(harness.agents()) == 1


def test_killed_before_its_sbatch_the_row_is_closed_and_another_agent_submitted(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(1)
    killed_at_its_submission(harness, when="before")
    (orphan,) = harness.agents()
    harness.round()
    assert [agent.name for agent in harness.agents()] == [orphan.name]  # it might still turn up
    harness.ahead_s = 61
    harness.round()
    first, second = harness.agents()
    assert (first.name, first.phase, first.reason) == (orphan.name, "ended", "the scheduler never took it")
    assert (second.phase, second.scheduler_id) == ("submitted", "100")
    assert not token_of(harness, first.name).exists()


def test_killed_after_its_sbatch_the_agent_is_found_by_its_name(harness: DaemonHarness, faked: FakedSlurm) -> None:
    harness.submit_jobs(1)
    killed_at_its_submission(harness, when="after")
    assert [agent.scheduler_id for agent in harness.agents()] == [None]
    harness.round()
    assert [agent.scheduler_id for agent in harness.agents()] == ["100"]
    assert len(faked.calls("sbatch")) == 1


def test_slurm_away_is_a_problem_and_nothing_is_lost(harness: DaemonHarness, faked: FakedSlurm) -> None:
    harness.submit_jobs(1)
    harness.round()
    seen = harness.state.cluster
    faked.switch("away")
    harness.ahead_s = 3000
    harness.round()
    assert harness.state.problem.startswith("Slurm does not answer: sinfo says ")
    assert harness.state.cluster is seen
    assert [agent.phase for agent in harness.agents()] == ["submitted"]
    faked.heal("away")
    harness.round()
    assert harness.state.problem == ""


def test_a_refused_submission_is_reported_leaves_nothing_behind_and_backs_off(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(3)
    faked.switch("refuse", "Invalid qos specification")
    harness.round()
    (agent,) = harness.agents()
    assert agent.phase == "ended"
    assert "Invalid qos specification" in agent.reason
    assert not token_of(harness, agent.name).exists()
    assert harness.state.problem.startswith("no agent could be submitted: Slurm refuses: sbatch")
    assert harness.state.problem.endswith("(next try after 20 s)")
    harness.ahead_s = 19
    harness.round()
    assert len(faked.calls("sbatch")) == 1
    harness.ahead_s = 25
    harness.round()
    assert len(faked.calls("sbatch")) == 2
    harness.ahead_s = 50  # the second pause is twice as long
    harness.round()
    assert len(faked.calls("sbatch")) == 2
    faked.heal("refuse")
    harness.ahead_s = 70
    harness.round()
    assert len(faked.calls("sbatch")) == 5
    assert harness.state.problem == ""


def test_agents_that_slurm_does_not_start_are_withdrawn_but_for_one_and_the_pause_doubles_until_it_starts(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    faked.switch("stuck")
    harness.submit_jobs(3)

    def until(s: float) -> tuple[int, int]:
        """Look every 20 s. Return the number of agents that were submitted, and of those that were withdrawn."""
        while harness.ahead_s < s:
            harness.ahead_s += 20
            plan = {"n1": "idle", "n2": "idle", "n3": "idle+planned" if harness.ahead_s % 40 else "idle"}
            faked.switch("states.json", json.dumps(plan))  # another one at each look
            faked.switch("ahead", f"{harness.ahead_s:.0f}")
            harness.round()
        return len(faked.calls("sbatch")), sum(len(call["words"]) for call in faked.calls("scancel"))

    harness.round()
    harness.ahead_s = 10
    assert until(290) == (3, 0)
    assert until(330) == (5, 2)
    assert [agent.reason for agent in harness.agents() if agent.reason] == ["withdrawn: it did not start soon"] * 2
    assert until(610) == (5, 2)
    assert until(630) == (5, 4)
    assert harness.state.problem.startswith("Slurm has started no agent for 5 min (")
    assert harness.state.problem.endswith("(next try after 40 s)")
    assert until(650) == (5, 4)
    start_jobs(faked.folder)
    assert until(670) == (7, 4)
    assert harness.state.problem == ""


def test_while_the_kill_switch_is_on_nothing_is_submitted(harness: DaemonHarness, faked: FakedSlurm) -> None:
    faked.switch("stuck")
    harness.submit_jobs(1)
    harness.round()
    faked.switch("closed", "down")
    end_jobs(faked.folder, state="CANCELLED")
    harness.round()
    harness.round()
    assert len(faked.calls("sbatch")) == 1
    assert harness.agents()[0].reason == "it ended before it registered"
    assert harness.state.problem.startswith("the partition gleaner is DOWN, so no agent starts")
    faked.heal("closed")
    harness.round()
    assert (len(faked.calls("sbatch")), harness.state.problem) == (2, "")


def test_a_stop_lasts_until_it_is_lifted_and_lets_agents_that_run_save_their_jobs(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(1)
    harness.round()
    faked.switch("stuck")
    harness.submit_jobs(1)
    harness.round()  # sees one run on n1, and another one wait
    with transaction(harness.state.engine) as db:
        agents.set_stop(db, by="ann", now_s=harness.now_s)
    for _ in range(2):
        harness.restart()
        harness.round()
    warned, withdrawn = ([call["words"] for call in faked.calls("scancel")], len(faked.calls("sbatch")))
    assert (warned, withdrawn) == ([["101"], ["--batch", "--signal=USR1", "100"]], 2)
    assert "by ann: `glean control start` ends that" in harness.state.problem
    end_jobs(faked.folder)
    with transaction(harness.state.engine) as db:
        assert agents.end_stop(db)
    harness.round()
    assert (len(faked.calls("sbatch")), harness.state.problem) == (4, "")


def test_a_node_on_which_three_agents_die_in_a_row_is_left_alone_for_a_while(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(1)
    for _ in range(3):
        harness.round()  # submits; the faked Slurm starts it on n1
        harness.round()  # sees it there
        end_jobs(faked.folder)
    harness.round()
    assert harness.excluded() == ("n1",)
    assert "--exclude=n1" in faked.calls("sbatch")[-1]["words"]
    assert "died on n1" in harness.agents()[0].reason
    harness.ahead_s = 3601
    assert harness.excluded() == ()


def test_agents_that_end_at_once_wherever_they_begin_are_not_submitted_at_each_look(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(1)
    for _ in range(3):
        harness.round()
        end_jobs(faked.folder)  # before the next look
    harness.round()
    harness.round()
    assert len(faked.calls("sbatch")) == 3
    problem = "agents end before they register, and none has since: have the nodes glean-agent (agent_command)? "
    assert harness.state.problem.startswith(problem)
    assert harness.state.problem.endswith("(next try after 20 s)")
    harness.ahead_s = 21
    harness.round()
    assert len(faked.calls("sbatch")) == 4
    harness.register(harness.agents()[-1].name, "n1")
    harness.round()
    end_jobs(faked.folder)
    harness.farewell(harness.agents()[-1].name)
    harness.round()
    end_jobs(faked.folder)
    harness.round()  # one that ends early is no reason to wait, once another was there
    assert harness.state.problem == ""


def test_a_drained_node_gets_no_agent_and_once_it_has_left_slurm_its_name_keeps_none_from_being_submitted(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(1)
    with transaction(harness.state.engine) as db:
        drains.ask(db, task=DrainTask.DRAIN, nodes=["n1"], by="root", now_s=harness.now_s)
    harness.round()
    (call,) = faked.calls("sbatch")
    assert "--exclude=n1" in call["words"], "as long as Slurm knows it"
    end_jobs(faked.folder)
    faked.switch("nodes", "n2 n3")
    harness.round()
    harness.round()
    assert harness.state.problem == ""
    (_, *calls) = faked.calls("sbatch")
    assert calls
    assert not any(word.startswith("--exclude") for call in calls for word in call["words"])


def test_a_job_whose_pause_is_over_gets_an_agent_although_none_is_there_to_claim(
    harness: DaemonHarness, faked: FakedSlurm, tmp_path: Path
) -> None:
    harness.submit_jobs(1)
    harness.round()
    (agent,) = harness.agents()
    harness.register(agent.name, "n1")
    (given,) = harness.claim(agent.name).jobs
    with transaction(harness.state.engine) as db:
        report = Completed(exit_code=1, slice=Slice(started_s=harness.now_s))
        attempt_reports.record_completion(db, given.job, given.attempt, report, now_s=harness.now_s)
    harness.farewell(agent.name)
    end_jobs(tmp_path / "bin")
    submitted = len(faked.calls("sbatch"))
    harness.round()
    assert len(faked.calls("sbatch")) == submitted, "while it pauses there is nothing to do for an agent"
    harness.ahead_s += 1000
    harness.round()
    assert len(faked.calls("sbatch")) == submitted + 1
