"""The queue's refusals. The class shows how a caller can react, and the message is for a person."""

from gleaner.control.states import Transition


class QueueError(Exception):
    """The base class of the queue's errors. The queue has refused the request, or cannot answer it."""


class NotFound(QueueError):
    """The job, attempt, campaign or agent does not exist. Asking again does not help."""


class Conflict(QueueError):
    """The current state does not allow the request. Nothing was changed."""


class TransitionRefused(Conflict):
    """The job cannot make this transition from its state."""

    def __init__(self, job: int, transition: Transition, found: str) -> None:
        super().__init__(f"job {job}: cannot {transition.name.lower().replace('_', ' ')}, for it is {found}")


class NotCurrent(Conflict):
    """The report's attempt is not the job's current one, or has already ended differently."""

    def __init__(self, job: int, attempt: int, found: str) -> None:
        super().__init__(f"attempt {attempt} of job {job} may not report this any more: {found}")


class Invalid(QueueError):
    """The input can never be valid. Nothing was changed."""


class NotYours(Invalid):
    """The report is about another agent's attempt. Nothing was changed."""


class QueueBusy(QueueError):
    """The database is locked or unreachable. Nothing was changed. The caller can ask again later."""


class NotLeading(QueueBusy):
    """The program does not lead, and only the leader writes to the queue. Nothing was changed."""


class SchemaMismatch(QueueError):
    """The database's tables do not belong to this version."""


class KeyFault(QueueError):
    """The key for the secrets is missing or wrong. Nothing was changed."""
