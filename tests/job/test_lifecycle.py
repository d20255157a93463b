"""The life of one job on one agent, as a pure function."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.job.lifecycle import (
    SAVE_TRIES,
    AgentEnds,
    Clean,
    DropAsked,
    Ended,
    Event,
    Exited,
    Finish,
    Finished,
    Finishing,
    GoOn,
    JobLimit,
    Kill,
    LimitPassed,
    Lost,
    OutOfTime,
    Preparing,
    ReportCheckpointed,
    ReportReturned,
    ReportSaved,
    ReportStopped,
    Running,
    Save,
    SaveDone,
    SaveDue,
    SaveFailed,
    Saving,
    SendSignal,
    Signalled,
    Started,
    StoreFolder,
    Storing,
    Task,
    Todo,
    VacateAsked,
    step,
)
from gleaner.agent.job_spec import SelfSave
from gleaner.agent.messages import Checkpoint, ReturnReason
from gleaner.agent.runtime.interface import ContainerId

C = ContainerId("c1")
CHECKPOINT = Checkpoint(attempt=1, number=1, digest="sha256:" + "0" * 64, size_bytes=1, log_lines=0)
REPORTS = (ReportSaved, ReportStopped, ReportReturned, Finish)
HOW = SelfSave(signal="SIGUSR1", exit_code=85)
FULL = SaveFailed("disk full")
UNSAVABLE = SaveFailed("it has a queue: use a pipe", ReturnReason.UNSAVABLE)


def _times(number: int, *events: Event) -> list[Event]:
    return list(events) * number


def play(*events: Event, saves_itself: SelfSave | None = None) -> tuple[Task, list[Todo]]:
    task: Task = Preparing(saves_itself)
    todos: list[Todo] = []
    for event in events:
        task, more = step(task, event)
        todos += more
    return task, todos


def test_a_slice_is_saved_and_reported_at_once_before_its_container_is_killed() -> None:
    assert play(Started(C), VacateAsked(), SaveDone(CHECKPOINT)) == (
        Ended(),
        [Save(C), ReportSaved(CHECKPOINT), Kill(C), Clean()],
    )


def test_a_job_that_exits_is_finished() -> None:
    assert play(Started(C), Exited(3), Finished()) == (Ended(), [Finish(C, 3), Kill(C), Clean()])
    assert play(Started(C), Exited(1, out_of_memory=True))[1] == [Finish(C, 1, out_of_memory=True)]


def test_an_exit_during_the_save_wins_whichever_comes_first() -> None:
    expected = (Finishing(C), [Save(C), Finish(C, 0)])
    assert play(Started(C), VacateAsked(), Exited(0), SaveFailed("gone")) == expected
    assert play(Started(C), VacateAsked(), Exited(0), SaveDone(CHECKPOINT)) == expected


def test_a_failed_save_lets_the_job_go_on() -> None:
    assert play(Started(C), VacateAsked(), FULL) == (Running(C, 1, failure=FULL), [Save(C), GoOn(C)])


def test_a_save_that_keeps_failing_is_given_up_but_the_job_runs_to_the_end() -> None:
    events: list[Event] = [Started(C)]
    for _ in range(SAVE_TRIES):
        events += [VacateAsked(), FULL]
    task, todos = play(*events, VacateAsked())
    assert task == Running(C, SAVE_TRIES, failure=FULL)
    assert todos.count(Save(C)) == SAVE_TRIES
    task, todos = step(task, OutOfTime())
    assert task == Ended()
    assert todos == [
        ReportReturned(ReturnReason.SAVE_FAILED, "disk full"),
        Kill(C),
        Clean(),
    ]


def test_a_save_that_comes_too_late_is_no_failure_of_the_job_and_counts_if_it_is_published_after_all() -> None:
    late = ReportReturned(ReturnReason.TOO_LATE, "no checkpoint was published before the agent's end")
    task, todos = play(Started(C), AgentEnds(), OutOfTime())
    assert (task, todos) == (Ended(late=True), [Save(C), late, Kill(C), Clean()])
    assert step(task, SaveDone(CHECKPOINT)) == (Ended(), [ReportSaved(CHECKPOINT)])
    assert step(task, SaveFailed("its container is gone")) == (task, [])
    assert play(Started(C), OutOfTime())[1] == [late, Kill(C), Clean()]


def test_saves_that_failed_early_do_not_count_at_the_agents_end() -> None:
    early: list[Event] = [Started(C), *_times(SAVE_TRIES, VacateAsked(), FULL)]
    assert play(*early, AgentEnds(), SaveDone(CHECKPOINT))[1][-3:] == [ReportSaved(CHECKPOINT), Kill(C), Clean()]
    task, todos = play(*early, *_times(SAVE_TRIES, AgentEnds(), FULL), AgentEnds(), VacateAsked())
    assert task == Running(C, SAVE_TRIES, vacating=True, failure=FULL)
    assert todos.count(Save(C)) == 2 * SAVE_TRIES


def test_a_save_under_way_when_the_agent_ends_is_the_first_of_the_new_count() -> None:
    early: list[Event] = [Started(C), *_times(SAVE_TRIES - 1, VacateAsked(), FULL), VacateAsked()]
    task, todos = play(*early, AgentEnds(), FULL)
    assert task == Running(C, 1, vacating=True, failure=FULL)
    assert todos.count(Save(C)) == SAVE_TRIES


def test_a_job_told_to_vacate_before_it_runs_is_returned_unchanged() -> None:
    for told in (VacateAsked(), AgentEnds()):
        task, todos = play(told, Started(C))
        assert task == Ended()
        assert todos == [Kill(C), ReportReturned(ReturnReason.UNSTARTED, "the agent was ending"), Clean()]


def test_a_dropped_job_is_killed_and_nothing_is_reported() -> None:
    for before in ([Started(C)], [Started(C), VacateAsked()], [Started(C), Exited(0)]):
        task, todos = play(*before, DropAsked())
        assert task == Ended()
        assert todos[-2:] == [Kill(C), Clean()]
        assert not any(isinstance(todo, ReportSaved | ReportReturned) for todo in todos)
    assert play(DropAsked(), Started(C)) == (Ended(), [Kill(C), Clean()])


def test_a_job_lost_with_its_runtime_is_returned_whatever_it_was_doing() -> None:
    back = [Kill(C), ReportReturned(ReturnReason.NODE_FAULT, "gone"), Clean()]
    assert play(Started(C), Lost("gone")) == (Ended(), back)
    assert play(Started(C), VacateAsked(), Lost("gone")) == (Ended(), [Save(C), *back])
    assert play(Started(C), Exited(0), Lost("gone")) == (Finishing(C), [Finish(C, 0)])


def test_a_job_that_passes_a_limit_is_killed_and_has_failed_by_itself_also_while_it_is_being_saved() -> None:
    stopped = [Kill(C), ReportStopped("too large"), Clean()]
    assert play(Started(C), LimitPassed("too large")) == (Ended(), stopped)
    for told in (VacateAsked(), SaveDue(), AgentEnds()):
        assert play(Started(C), told, LimitPassed("too large")) == (Ended(), [Save(C), *stopped])
    signal = SendSignal(C, "SIGUSR1")
    assert play(Started(C), AgentEnds(), LimitPassed("too large"), saves_itself=HOW) == (Ended(), [signal, *stopped])


def test_a_job_that_has_used_up_its_time_before_is_not_begun() -> None:
    passed = LimitPassed("compute limit 2 h reached", JobLimit.COMPUTING)
    stopped = ReportStopped("compute limit 2 h reached", JobLimit.COMPUTING)
    assert play(passed) == (Ended(), [stopped])
    assert play(AgentEnds(), passed) == (Ended(), [stopped])
    assert play(DropAsked(), passed) == (Ended(), [])
    assert play(Started(C), passed) == (Ended(), [Kill(C), stopped, Clean()])


def test_an_exit_wins_over_a_limit_that_is_found_passed_after_it() -> None:
    assert play(Started(C), Exited(0), LimitPassed("too large")) == (Finishing(C), [Finish(C, 0)])
    assert play(Started(C), Exited(85), LimitPassed("too large"), saves_itself=HOW) == (Storing(C), [StoreFolder(C)])


def test_nothing_is_reported_twice_of_a_job_that_was_stopped() -> None:
    for late in (Exited(137), Lost("killed"), SaveDone(CHECKPOINT), SaveFailed("x"), OutOfTime(), LimitPassed("again")):
        assert step(Ended(), late) == (Ended(), [])


def test_a_periodic_save_is_reported_and_lets_the_job_go_on() -> None:
    task, todos = play(Started(C), SaveDue(), SaveDone(CHECKPOINT), SaveDue(), SaveDone(CHECKPOINT))
    assert task == Running(C)
    assert todos == [Save(C), ReportCheckpointed(CHECKPOINT), GoOn(C)] * 2


def test_a_periodic_save_that_fails_only_lets_the_job_go_on_however_often() -> None:
    task, todos = play(Started(C), *_times(10, SaveDue(), FULL))
    assert task == Running(C, failure=FULL)
    assert todos == [Save(C), GoOn(C)] * 10
    assert isinstance(step(task, VacateAsked())[0], Saving)


def test_the_first_reason_goes_with_a_job_that_could_not_be_saved() -> None:
    end: list[Event] = [Started(C), AgentEnds(), SaveFailed("first"), AgentEnds(), SaveFailed("second"), OutOfTime()]
    assert ReportReturned(ReturnReason.SAVE_FAILED, "first") in play(*end)[1]


def test_the_first_reason_goes_with_a_job_whose_last_save_came_too_late() -> None:
    detail = "no checkpoint was published before the agent's end; an earlier save had failed: disk full"
    ends: list[list[Event]] = [
        [*_times(SAVE_TRIES, VacateAsked(), FULL), AgentEnds()],
        [VacateAsked(), FULL, AgentEnds()],
        [SaveDue(), FULL, SaveDue(), SaveFailed("x"), AgentEnds()],
        [SaveDue(), FULL],
    ]
    for events in ends:
        assert ReportReturned(ReturnReason.TOO_LATE, detail) in play(Started(C), *events, OutOfTime())[1]
    since_saved = play(Started(C), SaveDue(), FULL, SaveDue(), SaveDone(CHECKPOINT), AgentEnds(), OutOfTime())[1]
    assert ReportReturned(ReturnReason.TOO_LATE, "no checkpoint was published before the agent's end") in since_saved


def test_what_the_node_lacks_for_a_save_sends_the_job_elsewhere_though_an_earlier_save_failed_otherwise() -> None:
    lacks = SaveFailed("its CRIU is too old", ReturnReason.NODE_LACKS)
    end: list[Event] = [Started(C), SaveDue(), FULL, SaveDue(), lacks, AgentEnds(), OutOfTime()]
    assert ReportReturned(ReturnReason.NODE_LACKS, lacks.detail) in play(*end)[1]


def test_a_reason_in_the_job_itself_is_reported_whenever_it_was_found() -> None:
    back = ReportReturned(ReturnReason.UNSAVABLE, UNSAVABLE.detail)
    found: list[list[Event]] = [
        [Started(C), SaveDue(), UNSAVABLE],
        [Started(C), SaveDue(), UNSAVABLE, AgentEnds()],
        [Started(C), SaveDue(), UNSAVABLE, AgentEnds(), FULL],
        [Started(C), AgentEnds(), FULL, AgentEnds(), UNSAVABLE],
    ]
    for events in found:
        assert back in play(*events, OutOfTime())[1]
        assert (
            ReportReturned(ReturnReason.STORAGE_FAULT, "no checkpoint was published before the agent's end: it hangs")
            in (play(*events, OutOfTime("it hangs"))[1])
        )


def test_a_save_that_succeeds_shows_that_the_job_can_be_saved() -> None:
    events: list[Event] = [Started(C), SaveDue(), UNSAVABLE, SaveDue(), SaveDone(CHECKPOINT), AgentEnds(), OutOfTime()]
    assert any(isinstance(todo, ReportReturned) and todo.why is ReturnReason.TOO_LATE for todo in play(*events)[1])


def test_a_periodic_save_under_way_is_the_final_one_when_the_job_is_to_go() -> None:
    for told in (VacateAsked(), AgentEnds()):
        task, todos = play(Started(C), SaveDue(), told, SaveDone(CHECKPOINT))
        assert task == Ended()
        assert todos == [Save(C), ReportSaved(CHECKPOINT), Kill(C), Clean()]


def test_a_periodic_save_that_became_the_final_one_and_fails_is_tried_again_like_any() -> None:
    task, todos = play(Started(C), SaveDue(), AgentEnds(), FULL)
    assert task == Running(C, 1, vacating=True, failure=FULL)
    assert step(task, AgentEnds())[1] == [Save(C)]
    assert todos == [Save(C), GoOn(C)]


def test_after_a_periodic_save_the_final_one_is_made_anew_since_the_process_has_run() -> None:
    task, todos = play(Started(C), SaveDue(), SaveDone(CHECKPOINT), VacateAsked(), SaveDone(CHECKPOINT))
    assert task == Ended()
    assert todos[3:] == [Save(C), ReportSaved(CHECKPOINT), Kill(C), Clean()]


def test_whatever_ends_the_job_during_a_periodic_save_is_handled_as_ever() -> None:
    during: list[Event] = [Started(C), SaveDue()]
    assert play(*during, Exited(3), SaveFailed("gone")) == (Finishing(C), [Save(C), Finish(C, 3)])
    assert play(*during, DropAsked()) == (Ended(), [Save(C), Kill(C), Clean()])
    assert play(*during, OutOfTime())[1][1:] == [
        ReportReturned(ReturnReason.TOO_LATE, "no checkpoint was published before the agent's end"),
        Kill(C),
        Clean(),
    ]
    assert play(*during, Lost("gone"))[0] == Ended()


def test_no_periodic_save_begins_while_the_job_is_vacating_saving_or_done() -> None:
    begun: list[list[Event]] = [[Started(C), VacateAsked()], [Started(C), Exited(0)], [], [Started(C), DropAsked()]]
    for events in begun:
        task, _ = play(*events)
        assert step(task, SaveDue()) == (task, [])
    vacating, _ = play(Started(C), AgentEnds(), SaveFailed("x"))
    assert step(vacating, SaveDue()) == (vacating, [])


def test_a_job_that_saves_itself_is_told_and_its_folder_is_its_checkpoint() -> None:
    for told in (VacateAsked(), AgentEnds()):
        task, todos = play(Started(C), told, Exited(85), SaveDone(CHECKPOINT), saves_itself=HOW)
        assert task == Ended()
        assert todos == [SendSignal(C, "SIGUSR1"), StoreFolder(C), ReportSaved(CHECKPOINT), Kill(C), Clean()]


def test_a_job_that_saves_itself_is_never_saved_periodically() -> None:
    assert play(Started(C), SaveDue(), saves_itself=HOW) == (Running(C, saves_itself=HOW), [])


def test_another_exit_of_a_job_that_saves_itself_is_its_end() -> None:
    for exit_code in (0, 1, 143):
        task, todos = play(Started(C), VacateAsked(), Exited(exit_code), saves_itself=HOW)
        assert (task, todos[-1]) == (Finishing(C), Finish(C, exit_code))


def test_a_job_that_its_own_signal_has_ended_is_returned_and_pays_nothing() -> None:
    task, todos = play(Started(C), VacateAsked(), Exited(138), saves_itself=HOW)
    assert (task, todos[-2:]) == (Ended(), [Kill(C), Clean()])
    assert any(isinstance(todo, ReportReturned) and todo.why is ReturnReason.SAVE_FAILED for todo in todos)


def test_the_exit_code_of_a_self_save_counts_unasked_and_means_nothing_for_other_jobs() -> None:
    assert play(Started(C), Exited(85), saves_itself=HOW) == (Storing(C), [StoreFolder(C)])
    assert play(Started(C), Exited(85)) == (Finishing(C), [Finish(C, 85)])


def test_a_job_that_does_not_heed_its_signal_is_told_once_more_at_the_agents_end_and_then_killed() -> None:
    task, todos = play(Started(C), VacateAsked(), VacateAsked(), AgentEnds(), AgentEnds(), saves_itself=HOW)
    assert task == Signalled(C, HOW, vacating=True)
    assert todos == [SendSignal(C, "SIGUSR1")] * 2
    task, todos = step(task, OutOfTime())
    assert task == Ended()
    assert todos == [
        ReportReturned(ReturnReason.SAVE_FAILED, "it had not saved itself and exited before the agent's end"),
        Kill(C),
        Clean(),
    ]


def test_a_self_saved_folder_that_cannot_be_stored_in_time_returns_the_job() -> None:
    task, todos = play(Started(C), VacateAsked(), Exited(85), OutOfTime(), saves_itself=HOW)
    assert task == Ended(late=True)
    assert any(isinstance(todo, ReportReturned) and todo.why is ReturnReason.TOO_LATE for todo in todos)


def test_what_the_storage_did_not_take_is_the_storages_fault_and_not_the_jobs() -> None:
    published = "no checkpoint was published before the agent's end: disk full"
    end = OutOfTime("disk full")
    saving: list[list[Event]] = [
        [Started(C), AgentEnds()],
        [Started(C), AgentEnds(), FULL],
    ]
    for events in saving:
        assert ReportReturned(ReturnReason.STORAGE_FAULT, published) in play(*events, end)[1]
    assert (
        ReportReturned(ReturnReason.STORAGE_FAULT, published) in play(Started(C), Exited(85), end, saves_itself=HOW)[1]
    )
    result = "its result was not stored before the agent's end"
    assert ReportReturned(ReturnReason.STORAGE_FAULT, f"{result}: disk full") in play(Started(C), Exited(0), end)[1]
    assert ReportReturned(ReturnReason.TOO_LATE, result) in play(Started(C), Exited(0), OutOfTime())[1]


def test_a_job_that_does_not_save_itself_in_time_is_to_blame_whatever_the_storage_does() -> None:
    todos = play(Started(C), AgentEnds(), OutOfTime("disk full"), saves_itself=HOW)[1]
    assert any(isinstance(todo, ReportReturned) and todo.why is ReturnReason.SAVE_FAILED for todo in todos)


EVENTS: tuple[Event, ...] = (
    SaveDue(), Exited(85), VacateAsked(), AgentEnds(), DropAsked(), Exited(0), Exited(1), OutOfTime(),
    LimitPassed("too large"), SaveDone(CHECKPOINT), SaveFailed("x"), UNSAVABLE,
)  # fmt: skip


@given(st.sampled_from([None, HOW]), st.lists(st.sampled_from(EVENTS), max_size=12))
def test_whatever_happens_there_is_one_report_at_most_and_no_kill_before_a_reason(
    how: SelfSave | None, events: list[Event]
) -> None:
    task: Task = Running(C, saves_itself=how)
    todos: list[Todo] = []
    ended_by: Event | None = None
    for event in events:
        # Only a task that is saving can hear of a save; one that exited exits once.
        if isinstance(event, SaveDone | SaveFailed) and not isinstance(task, Saving | Storing):
            continue
        if isinstance(event, SaveFailed) and isinstance(task, Storing):
            continue
        if isinstance(event, Exited) and isinstance(task, Finishing | Storing):
            continue
        before, (task, more) = task, step(task, event)
        if isinstance(task, Ended) and not isinstance(before, Ended):
            ended_by = event
        if any(isinstance(todo, ReportCheckpointed) for todo in more):
            assert more == [ReportCheckpointed(CHECKPOINT), GoOn(C)]
            assert isinstance(task, Running)
        todos += more
    if Kill(C) in todos:
        assert isinstance(ended_by, SaveDone | DropAsked | OutOfTime | LimitPassed)
        assert todos[-1] == Clean()
        assert todos.index(Kill(C)) > max((i for i, t in enumerate(todos) if isinstance(t, Save)), default=-1)
    assert sum(isinstance(todo, REPORTS) for todo in todos) <= 2  # an exit that could not be stored in time
    assert sum(isinstance(todo, ReportSaved) for todo in todos) <= 1
