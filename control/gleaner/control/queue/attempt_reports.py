"""Record agents' reports about their attempts (saved, completed, returned), and attempts that are lost without a
report.

A report counts if its attempt is the job's latest one and still runs, or was only assumed to be lost. An agent repeats
a report if the answer to it was lost. The repeated report changes nothing and is not an error. Any other report is
refused with `NotCurrent`.

Each function works in the caller's transaction. If it raises an exception, the transaction is rolled back, so nothing
changes.
"""

from collections.abc import Mapping
from typing import Any, assert_never

from sqlalchemy import Connection, select, update

from gleaner.agent.common.quantities import memory_in_words
from gleaner.agent.messages import Checkpointed, Completed, LogLines, Returned, ReturnReason, Saved
from gleaner.agent.privileged.shim.head_room import NEEDS_MEMORY
from gleaner.control.models.jobs import NOTHING_TO_KEEP, Ending
from gleaner.control.policy import retries, returns
from gleaner.control.policy.resources import next_memory_mib
from gleaner.control.policy.returns import AfterFailure, Blame, Next, OwnFailure, Reaction, Then, TimesGiven
from gleaner.control.queue import attempts, campaign_rules, compatibility, deliveries, lanes, logs, node_health
from gleaner.control.queue.errors import Conflict, Invalid, NotCurrent, NotFound
from gleaner.control.queue.jobs import memory_range_mib, spec_of
from gleaner.control.queue.tables import JOB, Standing
from gleaner.control.queue.transitions import LANE_OF_NEW, lock, make_transition, put_on_hold, record, refuse
from gleaner.control.states import Outcome, State, Transition

AT_ONCE_S, SAVES_AT_ONCE = 5.0, 5
"""A job that saves itself without its memory is held after `SAVES_AT_ONCE` attempts in a row that compute for less than
`AT_ONCE_S` seconds."""

AttemptReport = Checkpointed | Saved | Completed | Returned | LogLines


def record_report(
    db: Connection,
    job: int,
    attempt: int,
    report: AttemptReport,
    *,
    agent: str,
    most_log_bytes: int,
    now_s: float,
) -> bool:
    """Record an agent's report about its attempt, with its measurements. Return True if the report is new.

    Raises `NotYours` if the attempt belongs to another agent, and the exceptions of the function for this kind of
    report.
    """
    attempts.check_agent(db, job, attempt, agent)
    match report:
        case LogLines():
            logs.append(db, job, attempt, report, most_bytes=most_log_bytes)
            return True
        case Checkpointed():
            is_news = record_checkpoint(db, job, attempt, report, now_s=now_s)
        case Saved():
            is_news = record_save(db, job, attempt, report, now_s=now_s)
        case Completed():
            is_news = record_completion(db, job, attempt, report, now_s=now_s)
        case Returned():
            is_news = record_return(db, job, attempt, report, now_s=now_s)
    if is_news:
        node_health.record_costs(db, job, attempt, report, now_s=now_s)
    return is_news


def record_save(db: Connection, job: int, attempt: int, report: Saved, *, now_s: float) -> bool:
    """Record that the attempt ended with a complete checkpoint, from which the job will continue.

    Return True if the report is new.
    """
    made = report.checkpoint
    if made.attempt != attempt:
        raise Invalid(f"attempt {attempt} of job {job} reports a checkpoint of attempt {made.attempt}")
    name = f"{made.attempt}/{made.number}"
    lane, kind = lanes.ensure_after_save(db, job, attempt, has_memory=made.has_memory)
    try:
        make_transition(
            db,
            job,
            Transition.SAVE,
            attempt=attempt,
            now_s=now_s,
            detail=f"checkpoint {name}, {made.size_bytes} bytes",
            from_attempt=made.attempt,
            from_number=made.number,
            sound_attempt=attempt,
            lane=lane,
            end=attempts.end_columns(Ending.SAVED, ended_s=now_s, spent=report.slice),
        )
    except Conflict:
        before = attempts.find(db, job, attempt)
        if before is not None and before.ending is Ending.SAVED and attempts.is_published(db, job, made):
            return False
        raise
    attempts.publish(db, job, made, kind=kind, now_s=now_s)
    node_health.record_success(db, job, attempt, now_s=now_s)
    if not made.has_memory and attempts.newest_computed_s(db, job, SAVES_AT_ONCE) < AT_ONCE_S:
        reason = f"it saved itself at once {SAVES_AT_ONCE} times in a row, without computing"
        put_on_hold(db, lock(db, job), reason=reason, now_s=now_s)
    return True


def record_completion(db: Connection, job: int, attempt: int, report: Completed, *, now_s: float) -> bool:
    """Record that the workload exited.

    With exit code 0, the job has succeeded. Otherwise it is retried while it has retries left.

    A failure costs a retry unless its node is excluded (see `policy.returns`). If the job's specification excludes this
    exit code from retries, the job fails immediately. Return True if the report is new.
    """
    ending = Ending.SUCCEEDED if report.exit_code == 0 else Ending.FAILED
    detail = report.reason if report.exit_code == 0 else _cause(report)
    end = attempts.end_columns(ending, ended_s=now_s, spent=report.slice, exit_code=report.exit_code, detail=detail)
    try:
        if report.exit_code == 0:
            counts = make_transition(
                db,
                job,
                Transition.SUCCEED,
                attempt=attempt,
                now_s=now_s,
                end=end,
                outcome=Outcome.SUCCEEDED,
                exit_code=0,
                sound_attempt=attempt,
                **_output(report),
            )
            node_health.record_success(db, job, attempt, now_s=now_s)
            if counts:
                campaign_rules.record_end(db, job, Outcome.SUCCEEDED, now_s=now_s)
            if report.output is not None:
                deliveries.expect(db, job, attempt, now_s=now_s)
        else:
            _failed(db, job, attempt, report, end=end, now_s=now_s)
    except Conflict:
        before = attempts.find(db, job, attempt)
        if before is not None and before.exit_code == report.exit_code:  # only a program's own end has a code
            return False
        raise
    unmatched = report.output.unmatched if report.output is not None else ()
    if unmatched and lock(db, job).state is State.COMPLETE:  # else the job is retried, and this result does not count
        for pattern in unmatched:
            record(db, job, NOTHING_TO_KEEP, now_s=now_s, attempt=attempt, detail=pattern)
    return True


def _cause(report: Completed) -> str:
    return report.reason if report.out_of_memory or report.at_limit else retries.cause(report.exit_code, report.reason)


def _output(report: Completed) -> dict[str, Any]:
    output = report.output
    return {
        "output_digest": output.digest if output else None,
        "output_bytes": output.size_bytes if output else None,
    }


def _failed(
    db: Connection, job: int, attempt: int, report: Completed, *, end: Mapping[str, object], now_s: float
) -> None:
    if not _may_report(lock(db, job), attempt):
        refuse(db, job, Transition.FAIL, attempt)
    if not report.may_retry:
        _fail_for_good(db, lock(db, job), report, end=end, detail=_cause(report), now_s=now_s)
        return
    if report.out_of_memory and _give_more_memory(db, job, report, end=end, now_s=now_s):
        return
    made = attempts.find(db, job, attempt)
    attempts.end(db, job, attempt, {**end, "blame": Blame.NOBODY})
    node_health.record_failure(db, made, now_s=now_s)
    row = lock(db, job)  # retries that were spent because of the node might have been refunded
    failed = node_health.failures_of(db, job)
    nodes = [node for node, _ in failed.values()]
    elsewhere = lanes.unless_nowhere_else(db, job, [*nodes, made.node])
    spec = spec_of(db, job)
    never = retries.refusal(report.exit_code, retry_on=spec.retry_on, never_retry_on=spec.never_retry_on)
    if attempt in failed:
        failure = OwnFailure(
            failures=row.failures + 1,
            retries=row.retries,
            computed_s=report.slice.compute_s,
            lasted_s=now_s - made.claimed_s,
            nodes=len(set(nodes)),
            is_another_known=bool(elsewhere),
            was_spared=any(blame is Blame.NOBODY for each, (_, blame) in failed.items() if each != attempt),
        )
        way, blame = returns.after_failure(failure)
    else:
        way, blame = AfterFailure.CONTINUE, Blame.NODE
    if never:
        way, blame = AfterFailure.FAIL, Blame.JOB
    end, failures = {**end, "blame": blame}, row.failures + (blame is Blame.JOB)
    detail = _cause(report)
    if way is AfterFailure.FAIL:
        detail = f"{detail}; not tried again: {never}" if never else detail
        _fail_for_good(db, row, report, end=end, detail=detail, now_s=now_s, failures=min(failures, row.retries + 1))
        return
    left = f"{row.retries - failures} retries left"
    if blame is not Blame.JOB:
        left += f", for {made.node} may be to blame"
    if way is AfterFailure.CONTINUE and row.from_attempt is not None:
        db.execute(update(JOB).where(JOB.c.id == job).values(failures=failures))
        _try_again(db, row, end=end, now_s=now_s, detail=f"{detail}; {_whereto(row)}, {left}")
    else:
        make_transition(
            db,
            job,
            Transition.RETRY,
            attempt=attempt,
            now_s=now_s,
            detail=f"{detail}; starts over, {left}",
            end=end,
            failures=failures,
            sound_attempt=attempt,
        )
        attempts.drop_all(db, job)
    not_on = elsewhere or lanes.unless_nowhere_else(db, job, [made.node])
    lanes.pause(db, job, attempt, until_s=now_s + retries.pause_s(len(nodes)), not_on=not_on)


def _give_more_memory(db: Connection, job: int, report: Completed, *, end: Mapping[str, object], now_s: float) -> bool:
    """Give more memory to a job that has reached its memory limit. Return False if the job cannot have more.

    The larger limit costs no retry, because neither the job nor the node has failed.
    """
    row = lock(db, job)
    more_mib = next_memory_mib(*memory_range_mib(db, job))
    if more_mib is None:
        return False
    name = f"checkpoint {row.from_attempt}/{row.from_number}"
    whereto = f"continues from {name}" if row.from_attempt is not None else "starts from the beginning"
    detail = f"{_cause(report)}; {whereto} with {memory_in_words(more_mib)}"
    _try_again(db, row, end={**end, "detail": detail}, now_s=now_s, detail=detail)
    db.execute(update(JOB).where(JOB.c.id == job).values(sound_attempt=row.attempt))
    lanes.give_memory(db, job, more_mib)
    return True


def _fail_for_good(
    db: Connection,
    row: Any,
    report: Completed,
    *,
    end: Mapping[str, object],
    detail: str,
    now_s: float,
    failures: int | None = None,
) -> None:
    """Record that the job has failed permanently.

    `failures` is the number of failures that have cost the job a retry. None leaves the number unchanged.
    """
    counts = make_transition(
        db,
        row.id,
        Transition.FAIL,
        attempt=row.attempt,
        now_s=now_s,
        detail=detail,
        end=end,
        failures=row.failures if failures is None else failures,
        outcome=Outcome.FAILED,
        exit_code=report.exit_code,
        sound_attempt=row.attempt,
        **_output(report),
    )
    if counts:
        campaign_rules.record_end(db, row.id, Outcome.FAILED, now_s=now_s)


def _try_again(db: Connection, row: Any, *, end: Mapping[str, object], now_s: float, detail: str) -> None:
    """Queue the job again. It continues from its last checkpoint, which is still good."""
    if row.state is State.RUNNING:
        take_from_agent(db, row, now_s=now_s, detail=detail, end=end)
        return
    _settle(db, row.id)
    attempts.end(db, row.id, row.attempt, end)
    record(db, row.id, "retry", now_s=now_s, attempt=row.attempt, detail=detail)


def record_return(db: Connection, job: int, attempt: int, report: Returned, *, now_s: float) -> bool:
    """Record that the attempt ended without a new checkpoint and before the workload exited.

    This costs the job no retry. Return True if the report is new.
    """
    row = lock(db, job)
    line = f"{report.why}: {report.detail}" if report.detail else str(report.why)
    before = attempts.find(db, job, attempt)
    if before is None:
        raise NotFound(f"there is no attempt {attempt} of job {job}")
    if not _may_report(row, attempt) or before.ending is Ending.RETURNED:
        if before.ending is Ending.RETURNED and before.detail == line:
            return False
        what = f"it has ended ({before.ending})" if before.ending else f"attempt {row.attempt} is the latest"
        raise NotCurrent(job, attempt, what)
    record(db, job, "return", now_s=now_s, attempt=attempt, detail=line)
    reaction = returns.REACTIONS[report.why]
    counts = not reaction.of_checkpoint or _is_what_it_went_on_from(row, before)
    end = attempts.end_columns(Ending.RETURNED, ended_s=now_s, spent=report.slice, detail=line, why=report.why)
    attempts.end(db, job, attempt, end | {"blame": Blame.NOBODY if reaction.of_node and counts else None})
    if reaction.of_node and counts:
        node_health.record_failure(db, before, now_s=now_s)
    is_for_memory = report.why is ReturnReason.UNSAVABLE and report.detail.startswith(NEEDS_MEMORY)
    more_mib = next_memory_mib(*memory_range_mib(db, job)) if is_for_memory else None
    given = _given(db, row, report.why, before)
    then = returns.verdict(reaction, given) if counts and more_mib is None else None
    if then is Then.SET_ASIDE:
        _set_aside(db, row, reaction, line, now_s)
        row = lock(db, job)
    whereto = _whereto(row, has_lost_all=reaction.then is Then.SET_ASIDE)
    if row.state is State.RUNNING:
        # The agent might still publish a late checkpoint, which the attempt can report until the job is claimed again.
        detail = whereto + (f" with {memory_in_words(more_mib)}" if more_mib else "")
        take_from_agent(db, row, now_s=now_s, detail=detail, end={}, lost=reaction.may_follow)
    else:
        _settle(db, job)
    if more_mib is not None:
        lanes.give_memory(db, job, more_mib)
    elif then in {Then.HOLD, Then.HOLD_CAMPAIGN, Then.HOLD_NEW_CAMPAIGN}:
        _hold(db, row, then, returns.hold_reason(reaction, given, line), now_s)
    elif counts and then is None:
        _send_on(db, row, report, given, node=before.node, now_s=now_s)
    return True


def _given(db: Connection, row: Any, why: ReturnReason, made: Any) -> TimesGiven:
    """Return the attempts that reported this reason for the checkpoint, or for the campaign or the job since it was
    last sound."""
    reaction = returns.REACTIONS[why]
    alike = reaction.alike or (why,)
    if reaction.of_checkpoint:
        node_of_each = attempts.failing_nodes(db, row.id, (made.from_attempt, made.from_number), alike)
        tries = len(node_of_each)
    elif _is_of_campaign(db, row, reaction.then):
        node_of_each = attempts.nodes_without_image(db, row.campaign, why)
        tries = len(node_of_each)
    else:
        found = attempts.futile_attempts(db, row.id, after=row.sound_attempt, whys=alike)
        node_of_each, tries = [node for node, each in found if each is why], len(found)
    return TimesGiven(node_of_each, tries, bool(lanes.unless_nowhere_else(db, row.id, node_of_each)))


def _is_of_campaign(db: Connection, row: Any, then: Then) -> bool:
    if row.campaign is None or then not in {Then.HOLD_CAMPAIGN, Then.HOLD_NEW_CAMPAIGN}:
        return False
    return then is Then.HOLD_CAMPAIGN or not attempts.has_begun(db, row.campaign)


def _hold(db: Connection, row: Any, then: Then, reason: str, now_s: float) -> None:
    if _is_of_campaign(db, row, then):
        campaign_rules.hold_rest(db, row.campaign, reason=reason, now_s=now_s, new_only=True)
    put_on_hold(db, lock(db, row.id), reason=reason, now_s=now_s)


def _send_on(db: Connection, row: Any, report: Returned, given: TimesGiven, *, node: str, now_s: float) -> None:
    """Choose the nodes to which a returned job is offered next."""
    reaction = returns.REACTIONS[report.why]
    match reaction.next:
        case Next.ANYWHERE:
            pass
        case Next.LATER:
            lanes.pause(db, row.id, row.attempt, until_s=now_s + retries.pause_s(given.tries), not_on=())
        case Next.NEVER_HERE:
            lanes.keep_off(db, row.id, node)
        case Next.NOT_HERE:
            folder = report.detail.partition(": ")[0]
            if report.why is not ReturnReason.MOUNT_MISSING or not compatibility.forget_mount(db, node, folder):
                lanes.keep_off_for_now(db, row.id, row.attempt, [node], now_s=now_s)
        case Next.ELSEWHERE:
            if given.is_another_known:
                lanes.keep_off_for_now(db, row.id, row.attempt, given.nodes, now_s=now_s)
            elif reaction.of_checkpoint:
                lanes.open_to(db, row.id)
        case _:
            assert_never(reaction.next)


def _is_what_it_went_on_from(row: Any, made: Any) -> bool:
    """Return True if the attempt started from the job's latest checkpoint, so that its failure is evidence against it.

    A checkpoint that the attempt itself published later was never restored by this attempt.
    """
    latest = (row.from_attempt, row.from_number)
    return row.from_attempt is not None and (made.from_attempt, made.from_number) == latest


def _may_report(row: Any, attempt: int) -> bool:
    return row.attempt == attempt and (row.state is State.RUNNING or row.lost)


def _whereto(row: Any, *, has_lost_all: bool = False) -> str:
    if row.from_attempt is not None:
        return f"goes on from checkpoint {row.from_attempt}/{row.from_number}"
    if has_lost_all:
        return "no whole checkpoint is left: starts over"
    return "there is no checkpoint: starts from the beginning"


def _set_aside(db: Connection, row: Any, reaction: Reaction, line: str, now_s: float) -> None:
    """Set aside the broken checkpoint from which the job should have continued. The previous one counts from now on.

    The broken checkpoint is kept until the job is Complete, because the nodes' reports about it might turn out to be
    wrong.
    """
    broken = (row.from_attempt, row.from_number)
    attempts.set_standing(db, row.id, *broken, Standing.BROKEN)
    left = attempts.named_checkpoints(db, row.id)
    detail = f"checkpoint {broken[0]}/{broken[1]} is broken"
    if left:
        _go_on_from(db, row.id, left[0])
        detail += f"; {left[0][0]}/{left[0][1]} counts now"
        record(db, row.id, "checkpoint broken", now_s=now_s, attempt=row.attempt, detail=detail)
        return
    record(db, row.id, "checkpoint broken", now_s=now_s, attempt=row.attempt, detail=f"{detail}, and none is left")
    starts = attempts.starts_in_vain(db, row.id)
    if starts >= reaction.starts:
        begun = "once" if starts == 1 else f"{starts} times"
        reason = f"nothing that it saved could be restored, although it has begun {begun}; the last time: {line}"
        put_on_hold(db, row, reason=reason, now_s=now_s)
    if row.state is State.SAVED:
        make_transition(db, row.id, Transition.START_OVER, now_s=now_s, detail="no whole checkpoint is left")
    else:
        _go_on_from(db, row.id, None)


def _go_on_from(db: Connection, job: int, checkpoint: tuple[int, int] | None) -> None:
    """Make the job's next attempt start from this checkpoint (attempt, number), or from the beginning if it is None."""
    if checkpoint is None:
        start: dict[str, Any] = {"from_attempt": None, "from_number": None, "lane": LANE_OF_NEW}
    else:
        attempt, number = checkpoint
        start = {
            "from_attempt": attempt,
            "from_number": number,
            "lane": lanes.ensure_for_checkpoint(db, job, attempt, number),
        }
    db.execute(update(JOB).where(JOB.c.id == job).values(start))


def record_checkpoint(db: Connection, job: int, attempt: int, report: Checkpointed, *, now_s: float) -> bool:
    """Record a checkpoint of an attempt that keeps running. The job continues from it if the attempt is lost.

    The report is guarded like the report of an attempt's end. A repeated report changes nothing, however late it
    arrives. Return True if the report is new. Raises `Invalid` for a checkpoint that is not newer than the attempt's
    last one.
    """
    made = report.checkpoint
    if made.attempt != attempt:
        raise Invalid(f"attempt {attempt} of job {job} reports a checkpoint of attempt {made.attempt}")
    row = lock(db, job)
    if attempts.is_published(db, job, made):
        return False
    lane, kind = lanes.ensure_after_save(db, job, attempt, has_memory=made.has_memory)
    is_lost = row.lost and row.attempt == attempt
    make_transition(
        db,
        job,
        Transition.CHECKPOINT_TO_SAVED if is_lost else Transition.CHECKPOINT,
        attempt=attempt,
        now_s=now_s,
        detail=f"checkpoint {made.attempt}/{made.number}, {made.size_bytes} bytes",
        from_attempt=made.attempt,
        from_number=made.number,
        sound_attempt=attempt,
        lost=is_lost,
        lane=lane,
        end=attempts.slice_columns(report.slice),
    )
    attempts.publish(db, job, made, kind=kind, now_s=now_s)
    node_health.record_success(db, job, attempt, now_s=now_s)
    return True


def lose(db: Connection, agent: str, *, now_s: float, losses_until_held: int, detail: str) -> tuple[int, ...]:
    """Take all running jobs from an agent that is gone, and return their ids. This costs the jobs no retry.

    A job is held if it was lost on `losses_until_held` different nodes and no event in between shows that it is sound,
    because the job itself might be killing the agents.
    """
    jobs = running_on(db, agent)
    for row in jobs:
        give_up(db, row, Ending.LOST, now_s=now_s, detail=detail)
        nodes = attempts.lost_nodes(db, row.id, after=row.sound_attempt)
        if len(nodes) >= losses_until_held and not row.held:
            reason = f"lost together with its agent on {len(nodes)} different nodes in a row: {', '.join(nodes)}"
            put_on_hold(db, lock(db, row.id), reason=reason, now_s=now_s)
    return tuple(row.id for row in jobs)


def running_on(db: Connection, agent: str) -> list[Any]:
    """Lock the agent's jobs, and return their rows.

    The rows are locked in the order of their ids, so that two programs that lock many rows do not deadlock.
    """
    mine = select(JOB).where(JOB.c.agent == agent).order_by(JOB.c.id).with_for_update()
    return list(db.execute(mine))


def give_up(db: Connection, row: Any, ending: Ending, *, now_s: float, detail: str) -> None:
    """End the running attempt on the assumption that it is lost. Its own report still counts until the next claim."""
    end = attempts.end_columns(ending, ended_s=now_s, detail=detail)
    take_from_agent(db, row, now_s=now_s, detail=detail, end=end, lost=True)


def take_from_agent(
    db: Connection, row: Any, *, now_s: float, detail: str, end: Mapping[str, object], lost: bool = False
) -> None:
    """Take a running job from its agent. The job becomes Saved if it has a complete checkpoint, otherwise New."""
    step = Transition.LOSE_TO_NEW if row.from_attempt is None else Transition.LOSE_TO_SAVED
    make_transition(db, row.id, step, now_s=now_s, attempt=row.attempt, detail=detail, end=end, lost=lost)


def _settle(db: Connection, job: int) -> None:
    """Accept no further report from an attempt that was given up, because it has now reported its own end."""
    db.execute(update(JOB).where(JOB.c.id == job).values(lost=False))


def revive(db: Connection, job: int, attempt: int, *, agent: str, now_s: float) -> None:
    """Let an attempt that was given up continue. Raises `Conflict` if the job has been claimed or has ended since."""
    make_transition(
        db, job, Transition.REVIVE, now_s=now_s, attempt=attempt, detail=f"{agent} is heard again", agent=agent
    )
    attempts.reopen(db, job, attempt)
