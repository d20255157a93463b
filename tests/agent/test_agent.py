"""The agent as a whole, against the real control API and a real storage folder; only its containers are pretended."""

import os
import signal
from pathlib import Path

import pytest
from tests.agent.control_harness import FAR_S, Control
from tests.privileged import slurm

from gleaner.agent.agent import DISK_EVERY_S, TICK_S
from gleaner.agent.messages import Deregistration
from gleaner.agent.privileged.common.slurm_job import JobHandle
from gleaner.agent.runtime.interface import LABEL_AGENT, LABEL_END, ContainerId
from gleaner.control.daemon.report_spool import take_spooled_reports
from gleaner.control.queue import agents, jobs, queries
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.states import Outcome, State


def signalled(control: Control, number: int) -> list[float]:
    """This process, and so the agent in it, gets the signal once a job counts; when it was sent."""
    told: list[float] = []

    def tell() -> None:
        told.append(control.now_s)
        signal.raise_signal(number)

    control.once_it_counts(tell)
    return told


def test_a_job_runs_its_folder_is_stored_and_the_agent_ends_for_want_of_work(control: Control) -> None:
    job = control.submit("20")
    assert control.live(control.agent("a1", lives_s=30)) == 0
    detail = control.job(job)
    assert (detail.job.state, detail.job.outcome, detail.job.exit_code) == (State.COMPLETE, Outcome.SUCCEEDED, 0)
    assert detail.output_bytes
    control.in_order(job, 20)
    assert not list((control.folder / "work" / "a1").iterdir())


@pytest.mark.slow
def test_what_one_agent_saves_another_goes_on_with(control: Control) -> None:
    job = control.submit("1500")
    agent = control.agent("a1", lives_s=12)
    control.live(agent)
    assert control.now_s <= agent.end_s
    assert control.job(job).job.state is State.SAVED
    control.live(control.agent("a2", lives_s=30))
    detail = control.job(job)
    assert detail.job.outcome is Outcome.SUCCEEDED
    assert [a.restored_from for a in detail.attempts] == [None, "1/1"]
    control.in_order(job, 1500)


def test_an_agent_outlives_a_silent_control_program_and_its_reports_count(control: Control) -> None:
    job = control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S)

    def leave_alone() -> None:
        control.go_away()
        control.end_soon(agent, computes_s=1)

    control.once_it_counts(leave_alone)
    control.live(agent)
    assert control.job(job).job.state is State.RUNNING  # control has heard nothing
    assert take_spooled_reports(control.state, control.now_s) >= 2
    detail = control.job(job)
    assert detail.job.state is State.SAVED
    assert detail.attempts[0].ending == "saved"
    assert take_spooled_reports(control.state, control.now_s) == 0
    control.serve()


def test_a_control_program_that_comes_back_hears_what_it_missed(control: Control) -> None:
    job = control.submit("200")

    def away_for_a_while() -> None:
        control.go_away()
        control.clock.pause(3)
        control.serve()

    control.once_it_counts(away_for_a_while)
    control.live(control.agent("a1", lives_s=30, idle_s=6))
    assert control.job(job).job.outcome is Outcome.SUCCEEDED
    control.in_order(job, 200)


def test_a_terminated_agent_does_not_wait_for_slurm_to_say_why(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobHandle, "look", lambda _job: control.clock.pause(12))
    job = control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S)
    agent.slurm_job = "7"
    told = signalled(control, signal.SIGTERM)
    control.live(agent)
    assert control.now_s - told[0] < 2
    assert control.job(job).job.state is State.SAVED


@pytest.mark.parametrize(
    ("number", "state", "kill_wait_s", "save_s"),
    [
        (signal.SIGTERM, "RUNNING", 6, 4),
        (signal.SIGUSR1, "RUNNING", 6, 4),
        (signal.SIGTERM, "CANCELLED", 30, 4),
        (signal.SIGTERM, "RUNNING", 4, 2),
    ],
    ids=["preempted after the warning", "preempted", "cancelled", "with a kill wait of four seconds"],
)
def test_a_preempted_or_cancelled_agent_saves_its_job_within_the_grace_time(
    control: Control,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    state: str,
    kill_wait_s: float,
    save_s: float,
) -> None:
    """A grace time that is longer than what is left changes no end; a job that was cancelled has its end behind it."""
    control.runtime.checkpoint_takes_s = save_s
    job = control.submit("100000")
    agent = control.agent("a1", lives_s=FAR_S, kill_wait_s=kill_wait_s)
    agent.slurm_job = "66"
    is_preempted = state == "RUNNING"
    end_s, preempt_s = (int(agent.end_s), int(control.now_s)) if is_preempted else (int(control.now_s), 0)
    program = slurm.answering(
        tmp_path, slurm.job(job_state=[state], end_time=slurm.number(end_s), preempt_time=slurm.number(preempt_s))
    )
    monkeypatch.setenv("PATH", f"{Path(program).parent}:{os.environ['PATH']}")
    told = signalled(control, number)
    control.live(agent)
    assert control.now_s - told[0] < save_s + 1
    assert control.job(job).job.state is State.SAVED


@pytest.mark.slow
def test_jobs_that_are_slow_to_start_do_not_silence_their_agent(control: Control) -> None:
    control.runtime.start_takes_s = 5  # longer than the lease
    jobs = [control.submit("5") for _ in range(15)]
    agent = control.agent("a1", lives_s=2 * FAR_S)
    agent.facts = agent.facts.model_copy(update={"cpus": 15, "memory_mib": 15 * 64})
    silent: list[str] = []

    def watch() -> None:
        while True:
            control.clock.pause(0.2)
            with transaction(control.state.engine) as db:
                silent.extend(agents.overdue(db, now_s=control.now_s))

    control.clock.start(watch)
    control.live(agent)
    assert silent == []
    assert {control.job(job).job.outcome for job in jobs} == {Outcome.SUCCEEDED}


def test_a_held_job_is_saved_and_a_cancelled_one_is_dropped(control: Control) -> None:
    held, cancelled = control.submit("100000"), control.submit("100000")

    def decide() -> None:
        with transaction(control.state.engine) as db:
            jobs.hold(db, held, reason="by its owner", now_s=control.now_s)
            jobs.cancel(db, cancelled, now_s=control.now_s)

    control.once_it_counts(decide, jobs=2)
    control.live(control.agent("a1", lives_s=FAR_S))
    assert control.job(held).job.state is State.SAVED
    assert control.job(held).job.held
    assert control.job(cancelled).job.outcome is Outcome.CANCELLED


@pytest.mark.slow
def test_control_hears_of_a_nodes_wrong_clock_and_that_it_was_mended(control: Control) -> None:
    control.clock.shift_s = 5.0
    control.submit("100000")
    control.live(control.agent("a1", lives_s=FAR_S))
    assert control.state.wrong_clocks == {control.agent("a2", lives_s=FAR_S).facts.node: 5.0}
    control.clock.shift_s = 0.0
    control.live(control.agent("a3", lives_s=FAR_S))
    assert control.state.wrong_clocks == {}


def test_an_agent_that_control_has_closed_leaves_the_node(control: Control) -> None:
    control.submit("100000")

    def close() -> None:
        with transaction(control.state.engine) as db:
            last = Deregistration(ended_s=control.now_s, reason="by an admin")
            agents.record_deregistration(db, "a1", last, now_s=control.now_s)

    control.once_it_counts(close)
    control.live(control.agent("a1", lives_s=FAR_S))
    assert control.clock.passed_s < 2


def test_a_container_that_somebody_else_kills_costs_the_job_no_retry(control: Control) -> None:
    job = control.submit("450")
    control.once_it_counts(control.runtime.kill_all)
    control.live(control.agent("a1", lives_s=FAR_S, idle_s=6))
    detail = control.job(job)
    assert (detail.job.outcome, detail.failures) == (Outcome.SUCCEEDED, 0)
    assert [attempt.ending for attempt in detail.attempts] == ["returned", "succeeded"]


def test_a_job_that_has_computed_as_long_as_it_may_fails_for_good_and_its_agent_goes_on(control: Control) -> None:
    job = control.submit("100000", retries=5, compute_limit_s=1)
    control.once(lambda: control.job(job).job.state is State.COMPLETE, lambda: control.submit("20"))
    control.live(control.agent("a1", lives_s=FAR_S, idle_s=8))
    detail = control.job(job)
    assert (detail.job.outcome, detail.job.exit_code, detail.failures) == (Outcome.FAILED, 152, 0)
    assert detail.failed_because == "compute limit 1 s reached"
    (attempt,) = detail.attempts
    assert (attempt.ending, attempt.detail) == ("failed", "compute limit 1 s reached")
    assert 1 <= attempt.compute_s <= 1 + TICK_S
    assert "event 1" in control.log(job).lines
    assert control.job(job + 1).job.outcome is Outcome.SUCCEEDED


def test_the_time_that_a_job_may_compute_is_that_of_all_its_slices(control: Control) -> None:
    job = control.submit("100000", compute_limit_s=3)
    control.live(control.brief("a1", computes_s=1))
    assert control.job(job).job.state is State.SAVED
    before_s = control.job(job).attempts[0].compute_s
    control.live(control.agent("a2", lives_s=FAR_S))
    detail = control.job(job)
    assert detail.failed_because == "compute limit 3 s reached"
    assert 3 - before_s <= detail.attempts[1].compute_s <= 3 - before_s + TICK_S
    assert detail.counted_s == before_s + detail.attempts[1].compute_s


def test_a_job_that_writes_nothing_for_too_long_over_all_its_slices_fails_and_says_so(control: Control) -> None:
    control.runtime.silent_from = 100  # after a second
    job = control.submit("100000", silent_limit_s=15)
    control.live(control.brief("a1", computes_s=10))
    first = control.job(job)
    assert (first.job.state, first.last_failure) == (State.SAVED, None)
    control.live(control.agent("a2", lives_s=FAR_S))
    detail = control.job(job)
    assert (detail.job.outcome, detail.job.exit_code) == (Outcome.FAILED, 142)
    assert detail.failed_because == "silent limit 15 s reached: it has printed and written nothing for so long"
    computed_s = sum(attempt.compute_s for attempt in detail.attempts)
    assert 15 <= computed_s <= 15 + 1 + 3 * DISK_EVERY_S


def test_a_job_that_passes_its_own_limit_of_the_disk_fails_and_others_have_the_nodes(control: Control) -> None:
    limited, other = control.submit("100000", disk_mib=2), control.submit("60")

    def fill() -> None:
        for job in (limited, other):
            (folder,) = (control.folder / "work" / "a1").glob(f"{job}-*")
            (folder / "large").write_bytes(bytes(3 * 2**20))

    control.once_it_counts(fill, jobs=2)
    control.live(control.agent("a1", lives_s=FAR_S))
    detail = control.job(limited)
    assert (detail.job.outcome, detail.job.exit_code, detail.spec.disk_mib) == (Outcome.FAILED, 153, 2)
    assert detail.failed_because == "disk limit 2 MiB reached: it takes at least 3 MiB of the disk"
    assert control.job(other).job.outcome is Outcome.SUCCEEDED


def test_an_agent_on_a_node_that_cannot_run_jobs_ends_and_says_so(control: Control) -> None:
    jobs = [control.submit("5", image="impossible") for _ in range(3)]
    assert control.live(control.agent("a1", lives_s=FAR_S)) == 1
    assert control.clock.passed_s < 1
    assert all(control.job(job).job.state is State.NEW for job in jobs)
    with snapshot(control.state.engine) as db:
        (row,) = queries.agent_rows(db, now_s=control.now_s)
    assert "cannot run jobs" in row.reason


def test_leftovers_of_agents_whose_end_has_passed_are_removed_and_others_are_not(control: Control) -> None:
    past, future = str(int(control.now_s) - 5), str(int(control.now_s) + 500)
    control.runtime.left_over = {
        ContainerId("old"): {LABEL_AGENT: "a0", LABEL_END: past},
        ContainerId("other"): {LABEL_AGENT: "a9", LABEL_END: future},
    }
    control.live(control.agent("a1", lives_s=30))
    assert set(control.runtime.left_over) == {ContainerId("other")}


def test_a_job_at_which_its_agent_breaks_is_returned_at_once_and_says_why(control: Control) -> None:
    def break_down(_container: ContainerId) -> str:
        raise ZeroDivisionError("a bug")

    control.runtime.image_id = break_down  # type: ignore[method-assign,assignment]
    job = control.submit("100000")
    assert control.live(control.brief("a1")) == 1
    (attempt,) = control.job(job).attempts
    assert attempt.detail == "node fault: the agent broke: ZeroDivisionError('a bug')"
    assert control.job(job).job.state is State.NEW
