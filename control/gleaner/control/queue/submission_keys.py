"""The keys of submissions. A user who repeats a submission with its key within a day gets the first answer again.

The key is reserved and its answer stored in the transaction of the submission, so neither a crash nor a second program
can submit the jobs twice.
"""

from hashlib import sha256
from typing import cast

from sqlalchemy import Connection, delete, select, tuple_, update

from gleaner.control.models.jobs import Submission, Submitted
from gleaner.control.queue.errors import Conflict
from gleaner.control.queue.tables import SUBMISSION_KEY
from gleaner.control.queue.transitions import insert_unless_there

KEEP_S = 24 * 3600.0


def take(db: Connection, user: str, key: str, submission: Submission, *, now_s: float) -> Submitted | None:
    """Reserve the key for this submission, or return the stored answer if the submission has been made before.

    The function waits for another transaction that has reserved the key. Raises `Conflict` if the key belongs to
    another submission.
    """
    digest = sha256(submission.model_dump_json().encode()).hexdigest()
    mine = {"user": user, "key": key, "digest": digest, "at_s": now_s}
    taken = insert_unless_there(db, SUBMISSION_KEY).values(mine).returning(SUBMISSION_KEY.c.key)
    if db.execute(taken).one_or_none() is not None:
        return None
    wanted = SUBMISSION_KEY.c.user == user, SUBMISSION_KEY.c.key == key
    row = db.execute(select(SUBMISSION_KEY.c.digest, SUBMISSION_KEY.c.answer).where(*wanted)).one()
    if row.digest != digest:
        raise Conflict("this Idempotency-Key came with another submission: send a new key")
    return cast("Submitted", row.answer)


def keep(db: Connection, user: str, key: str, answer: Submitted) -> None:
    """Store the answer, in the transaction that has reserved the key."""
    mine = SUBMISSION_KEY.c.user == user, SUBMISSION_KEY.c.key == key
    db.execute(update(SUBMISSION_KEY).where(*mine).values(answer=answer))


def remove_old(db: Connection, *, now_s: float, at_most: int) -> int:
    """Remove the keys that are older than a day. Return how many."""
    some = tuple_(*SUBMISSION_KEY.primary_key)
    old = select(*SUBMISSION_KEY.primary_key).where(SUBMISSION_KEY.c.at_s < now_s - KEEP_S).limit(at_most)
    return db.execute(delete(SUBMISSION_KEY).where(some.in_(old))).rowcount
