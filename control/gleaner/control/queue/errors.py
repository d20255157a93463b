"""What the queue says when it says no. The class tells what can be done about it, the message is for a person."""

from gleaner.control.life import Move


class QueueError(Exception):
    """The root: the queue has refused, or cannot answer."""


class Unknown(QueueError):
    """There is no such job, attempt, campaign or agent. Asking again does not help."""


class Refused(QueueError):
    """The thing is in a state that does not allow this. Nothing was changed."""


class MoveRefused(Refused):
    """A job cannot make this move from where it stands."""

    def __init__(self, job: int, move: Move, found: str) -> None:
        super().__init__(f"job {job}: cannot {move.name.lower().replace('_', ' ')}, for it is {found}")
        self.job = job
        self.move = move
        self.found = found


class NotCurrent(Refused):
    """A report of an attempt that is no longer the job's current one, or that has already ended differently."""

    def __init__(self, job: int, attempt: int, found: str) -> None:
        super().__init__(f"attempt {attempt} of job {job} may not report this any more: {found}")
        self.job = job
        self.attempt = attempt
        self.found = found


class Invalid(QueueError):
    """The input can never be right. Nothing was changed."""


class QueueBusy(QueueError):
    """The database is locked or away. Nothing was changed; ask again later."""


class NotLeading(QueueBusy):
    """Another program leads, or none, and only the leader writes. Nothing was changed."""


class SchemaMismatch(QueueError):
    """The database's tables are not those of this version."""
