"""What agents report of their attempts: saved, completed, given back.

A report counts if its attempt is the job's latest and runs, or was only assumed lost. The same ending reported once
more changes nothing and is no error: the answer to the first may have been lost. Everything else is `NotCurrent`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, update

from gleaner.agent.protocol import Completed, GivenBack, Saved, Why
from gleaner.control.life import Move, Outcome, State
from gleaner.control.policy.judging import counts, pause_s
from gleaner.control.queue import attempts, judging, lanes, pauses
from gleaner.control.queue.arrows import LANE_OF_NEW, lock, move, record, refuse
from gleaner.control.queue.errors import Invalid, NotCurrent, Refused, Unknown
from gleaner.control.queue.flags import put_on_hold
from gleaner.control.queue.losses import leave, outlived
from gleaner.control.queue.tables import JOB, Ending, Standing

NODES_UNTIL_BROKEN = 3
TRIES_UNTIL_BROKEN = 5
"""A generation counts as broken when so many nodes could not restore it or found it broken, or when it was tried in
vain so often where there are fewer: one bad node, with bad memory or half a file tree, must not cost every job what it
has saved."""
REFUSALS_UNTIL_HELD = 10
"""A job is held when so many nodes have refused its generation as incompatible."""
NODES_UNTIL_HELD = 3
TRIES_UNTIL_HELD = 5
"""A job is held when so many different nodes in a row were at fault with it (that its container was killed counts as
the node's fault), or when so many of its attempts in a row came to nothing, those that could not be saved included:
it may be the job, and would go on for ever."""
MAY_FOLLOW = (Why.TOO_LATE, Why.SAVE_FAILED, Why.STORAGE_FAULT)
"""An attempt that was given back for such a reason may still report that it was saved, or what its result is."""
AT_ONCE_S = 5.0
"""A job that has saved itself so soon after its start, as often in a row, is held too: it computes nothing."""
STARTS_UNTIL_HELD = 3
"""A job is held when it has begun so often, and nothing that it saved could be restored."""


def saved(db: Connection, job: int, attempt: int, report: Saved, *, now_s: float) -> bool:
    """The attempt ended with a whole generation; the job goes on from there. Whether that is news."""
    made = report.generation
    if made.attempt != attempt:
        raise Invalid(f"attempt {attempt} of job {job} reports a generation of attempt {made.attempt}")
    name = f"{made.attempt}/{made.number}"
    lane, kind = lanes.after_save(db, job, attempt, has_memory=made.has_memory)
    try:
        move(
            db,
            job,
            Move.SAVE,
            attempt=attempt,
            now_s=now_s,
            detail=f"generation {name}, {made.size_bytes} bytes",
            from_attempt=made.attempt,
            from_number=made.number,
            sound_attempt=attempt,
            lane=lane,
            end=attempts.ended(Ending.SAVED, ended_s=now_s, spent=report.slice),
        )
    except Refused:
        before = attempts.find(db, job, attempt)
        if before is not None and before.ending is Ending.SAVED and attempts.is_published(db, job, made):
            return False
        raise
    attempts.publish(db, job, made, kind=kind, now_s=now_s)
    judging.ran_well(db, job, attempt, now_s=now_s)
    if not made.has_memory and attempts.newest_computed_s(db, job, TRIES_UNTIL_HELD) < AT_ONCE_S:
        reason = f"it saved itself at once {TRIES_UNTIL_HELD} times in a row, without computing"
        put_on_hold(db, lock(db, job), reason=reason, now_s=now_s)
    return True


def completed(db: Connection, job: int, attempt: int, report: Completed, *, now_s: float) -> bool:
    """The workload exited: with 0 the job has succeeded, else it is tried again while it has a retry left.

    A failure costs a retry unless its node is doubted (see `policy.judging`). The answer says whether that is news.
    """
    ending = Ending.SUCCEEDED if report.exit_code == 0 else Ending.FAILED
    end = attempts.ended(ending, ended_s=now_s, spent=report.slice, exit_code=report.exit_code, detail=report.reason)
    try:
        if report.exit_code == 0:
            move(
                db,
                job,
                Move.SUCCEED,
                attempt=attempt,
                now_s=now_s,
                end=end,
                outcome=Outcome.SUCCEEDED,
                exit_code=0,
                sound_attempt=attempt,
                **_output(report),
            )
            judging.ran_well(db, job, attempt, now_s=now_s)
        else:
            _failed(db, job, attempt, report, end=end, now_s=now_s)
    except Refused:
        before = attempts.find(db, job, attempt)
        if before is not None and before.exit_code == report.exit_code:  # only an own end has an exit code
            return False
        raise
    return True


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
        refuse(db, job, Move.FAIL, attempt)
    made = attempts.find(db, job, attempt)
    failed = judging.failed(db, lock(db, job), made, computed_s=report.slice.compute_s, now_s=now_s)
    row = lock(db, job)  # what the node has cost it before may have been given back
    is_its_last = row.failures >= row.retries or row.from_attempt is not None
    failures = row.failures
    known = bool(pauses.unless_nowhere_else(db, job, judging.nodes_failed_on(db, job)))
    if counts(replace(failed, is_its_last=is_its_last, is_another_known=known)):
        failures += judging.count(db, job, attempt)
    detail = f"exit code {report.exit_code}" + (f": {report.reason}" if report.reason else "")
    if failures > row.retries:
        move(
            db,
            job,
            Move.FAIL,
            attempt=attempt,
            now_s=now_s,
            detail=detail,
            end=end,
            failures=row.retries + 1,
            outcome=Outcome.FAILED,
            exit_code=report.exit_code,
            sound_attempt=attempt,
            **_output(report),
        )
        return
    left = f"{row.retries - failures} retries left"
    if failures == row.failures:
        left += f", for {made.node} may be to blame"
    if failures == row.failures and row.from_attempt is not None:
        _try_again(db, row, end=end, now_s=now_s, detail=f"{detail}; {_whereto(row, Why.UNSTARTED)}, {left}")
    else:
        move(
            db,
            job,
            Move.RETRY,
            attempt=attempt,
            now_s=now_s,
            detail=f"{detail}; starts over, {left}",
            end=end,
            failures=failures,
            sound_attempt=attempt,
        )
        attempts.drop_all(db, job)
    nodes = judging.nodes_failed_on(db, job)
    elsewhere = pauses.unless_nowhere_else(db, job, nodes) or pauses.unless_nowhere_else(db, job, [made.node])
    pauses.pause(db, job, attempt, until_s=now_s + pause_s(job, sum(nodes.values())), not_on=elsewhere)


def _try_again(db: Connection, row: Any, *, end: Mapping[str, object], now_s: float, detail: str) -> None:
    """Let the job go on from where the failed attempt went on: what it has saved is as good as before."""
    if row.state is State.RUNNING:
        leave(db, row, now_s=now_s, detail=detail, end=end)
        return
    outlived(db, row.id)
    attempts.end(db, row.id, row.attempt, end)
    record(db, row.id, "retry", now_s=now_s, attempt=row.attempt, detail=detail)


def given_back(db: Connection, job: int, attempt: int, report: GivenBack, *, now_s: float) -> bool:
    """The attempt ended without a new generation and without an exit of the workload. It costs no retry.

    The answer says whether that is news.
    """
    row = lock(db, job)
    told = f"{report.why}: {report.detail}" if report.detail else str(report.why)
    before = attempts.find(db, job, attempt)
    if not _may_report(row, attempt) or (before is not None and before.ending is Ending.GIVEN_BACK):
        if before is None:
            raise Unknown(f"there is no attempt {attempt} of job {job}")
        if before.ending is Ending.GIVEN_BACK and before.detail == told:
            return False
        what = f"it has ended ({before.ending})" if before.ending else f"attempt {row.attempt} is the latest"
        raise NotCurrent(job, attempt, what)
    record(db, job, "give back", now_s=now_s, attempt=attempt, detail=told)
    may_speak = _is_what_it_went_on_from(row, before)
    speaks_against_it = may_speak and report.why in attempts.UNRESTORED
    is_broken = speaks_against_it and _is_hopeless(db, row)
    if is_broken:
        _break(db, row, told, now_s)
        row = lock(db, job)
    end = attempts.ended(Ending.GIVEN_BACK, ended_s=now_s, spent=report.slice, detail=told)
    if row.state is State.RUNNING:
        # What came too late may still be published: then the attempt says so, if nobody has claimed the job since.
        may_follow = report.why in MAY_FOLLOW
        leave(db, row, now_s=now_s, detail=_whereto(row, report.why), end=end, lost=may_follow)
    else:
        outlived(db, job)
        attempts.end(db, job, attempt, end)
    if report.why in (Why.IMAGE_MISSING, Why.IMAGE_REFUSED):
        put_on_hold(db, row, reason=told, now_s=now_s)
    if may_speak and report.why is Why.INCOMPATIBLE:
        _keep_off(db, row, told, now_s)
    if speaks_against_it and not is_broken:
        _ask_another_node(db, row, told, now_s)
    if report.why in attempts.FUTILE:
        _hold_if_futile(db, row, told, now_s)
    return True


def _hold_if_futile(db: Connection, row: Any, told: str, now_s: float) -> None:
    """Neither costs a retry, so nothing else would end it."""
    tries = attempts.futile(db, row.id, after=row.sound_attempt)
    nodes = list(dict.fromkeys(node for node, why in tries if why is Why.NODE_FAULT))
    if len(nodes) >= NODES_UNTIL_HELD:
        where = f"on {len(nodes)} different nodes in a row ({', '.join(nodes)})"
    elif len(tries) >= TRIES_UNTIL_HELD:
        where = f"{len(tries)} times in a row"
    else:
        return
    put_on_hold(db, row, reason=f"came to nothing {where}, the last time: {told}", now_s=now_s)


def _keep_off(db: Connection, row: Any, told: str, now_s: float) -> None:
    """Its node is offered the generation no more. Where one node after the other refuses it, somebody must look."""
    nodes = lanes.keep_off(db, row.id, attempts.find(db, row.id, row.attempt).node)
    if len(nodes) >= REFUSALS_UNTIL_HELD:
        put_on_hold(db, row, reason=f"{len(nodes)} nodes could not restore it, the last said: {told}", now_s=now_s)


def _ask_another_node(db: Connection, row: Any, told: str, now_s: float) -> None:
    """Nodes that could not restore the generation are offered it no more, as long as there may be another.

    Where the others have no room for so long that the same ones are asked again and again, somebody must look.
    """
    tried = attempts.unrestored(db, row.id, (row.from_attempt, row.from_number))
    nodes = pauses.unless_nowhere_else(db, row.id, tried)
    if not nodes:
        lanes.open_to(db, row.id)
        return
    pauses.keep_off(db, row.id, row.attempt, nodes, now_s=now_s)
    if len(tried) >= TRIES_UNTIL_BROKEN:
        where = f"{len(tried)} times on {', '.join(nodes)}, and no other node has tried"
        put_on_hold(db, row, reason=f"could not be restored {where}; the last time: {told}", now_s=now_s)


def _is_what_it_went_on_from(row: Any, made: Any) -> bool:
    """Return True if the attempt was to go on from the job's latest generation, and so may speak against it.

    What it has published itself since was never restored by it.
    """
    latest = (row.from_attempt, row.from_number)
    return row.from_attempt is not None and (made.from_attempt, made.from_number) == latest


def _may_report(row: Any, attempt: int) -> bool:
    return row.attempt == attempt and (row.state is State.RUNNING or row.lost)


def _whereto(row: Any, why: Why) -> str:
    if row.from_attempt is not None:
        return f"goes on from generation {row.from_attempt}/{row.from_number}"
    if why in (Why.GENERATION_BROKEN, Why.CANNOT_RESTORE):
        return "no whole generation is left: starts over"
    return "there is no generation: starts from the beginning"


def _is_hopeless(db: Connection, row: Any) -> bool:
    """Whether the generation is to blame, and not the nodes on which it could not be restored.

    However often one node says so, as long as there may be another it is no proof.
    """
    made = attempts.find(db, row.id, row.attempt)
    nodes = [made.node, *attempts.unrestored(db, row.id, (made.from_attempt, made.from_number))]
    if len(set(nodes)) >= NODES_UNTIL_BROKEN:
        return True
    return len(nodes) >= TRIES_UNTIL_BROKEN and not pauses.unless_nowhere_else(db, row.id, nodes)


def _break(db: Connection, row: Any, told: str, now_s: float) -> None:
    """The generation that the attempt was to go on from is broken; the one before it counts now.

    It is set aside until the job is Complete: what nodes say of it may still turn out to be wrong.
    """
    made = attempts.find(db, row.id, row.attempt)
    broken = (made.from_attempt, made.from_number)
    attempts.stand(db, row.id, *broken, Standing.BROKEN)
    left = attempts.named(db, row.id)
    detail = f"generation {broken[0]}/{broken[1]} is broken"
    if left:
        _go_on_from(db, row.id, left[0])
        detail += f"; {left[0][0]}/{left[0][1]} counts now"
        record(db, row.id, "generation broken", now_s=now_s, attempt=row.attempt, detail=detail)
        return
    record(db, row.id, "generation broken", now_s=now_s, attempt=row.attempt, detail=f"{detail}, and none is left")
    starts = attempts.starts_in_vain(db, row.id)
    if starts >= STARTS_UNTIL_HELD:
        reason = f"nothing that it saved could be restored, although it has begun {starts} times; the last time: {told}"
        put_on_hold(db, row, reason=reason, now_s=now_s)
    if row.state is State.SAVED:
        move(db, row.id, Move.START_OVER, now_s=now_s, detail="no whole generation is left")
    else:
        _go_on_from(db, row.id, None)


def _go_on_from(db: Connection, job: int, generation: tuple[int, int] | None) -> None:
    """The generation, as (attempt, number), that the job's next attempt starts with."""
    if generation is None:
        start: dict[str, Any] = {"from_attempt": None, "from_number": None, "lane": LANE_OF_NEW}
    else:
        attempt, number = generation
        start = {"from_attempt": attempt, "from_number": number, "lane": lanes.of_generation(db, job, attempt, number)}
    db.execute(update(JOB).where(JOB.c.id == job).values(start))
