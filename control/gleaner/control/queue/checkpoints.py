"""Periodic saves: a generation that an attempt has published while it goes on computing."""

from sqlalchemy import Connection

from gleaner.agent.protocol import Checkpointed
from gleaner.control.life import Move
from gleaner.control.queue import attempts, lanes
from gleaner.control.queue.arrows import lock, move
from gleaner.control.queue.errors import Invalid


def checkpointed(db: Connection, job: int, attempt: int, report: Checkpointed, *, now_s: float) -> bool:
    """The job goes on from this generation if its attempt is lost; whether that is news.

    It counts under the same guard as an attempt's end. The same report once more changes nothing, however late; a
    generation that is not newer than the attempt's last one is `Invalid`.
    """
    made = report.generation
    if made.attempt != attempt:
        raise Invalid(f"attempt {attempt} of job {job} reports a generation of attempt {made.attempt}")
    row = lock(db, job)
    if attempts.is_published(db, job, made):
        return False
    lane, kind = lanes.after_save(db, job, attempt, has_memory=made.has_memory)
    is_lost = row.lost and row.attempt == attempt
    move(
        db,
        job,
        Move.CHECKPOINT_TO_SAVED if is_lost else Move.CHECKPOINT,
        attempt=attempt,
        now_s=now_s,
        detail=f"generation {made.attempt}/{made.number}, {made.size_bytes} bytes",
        from_attempt=made.attempt,
        from_number=made.number,
        sound_attempt=attempt,
        lost=is_lost,
        lane=lane,
        end=attempts.spent_so_far(report.slice),
    )
    attempts.publish(db, job, made, kind=kind, now_s=now_s)
    return True
