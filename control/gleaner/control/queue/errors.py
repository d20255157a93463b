"""The queue's refusals. The class tells what can be done about it, the message is for a person."""

from gleaner.control.states import Transition


class QueueError(Exception):
    """The root: the queue has refused, or cannot answer."""


class NotFound(QueueError):
    """There is no such job, attempt, campaign or agent. Asking again does not help."""


class Conflict(QueueError):
    """The state of the thing does not allow this. Nothing was changed."""


class TransitionRefused(Conflict):
    """The job cannot make this transition from its state."""

    def __init__(self, job: int, transition: Transition, found: str) -> None:
        super().__init__(f"job {job}: cannot {transition.name.lower().replace('_', ' ')}, for it is {found}")
        self.job = job
        self.transition = transition
        self.found = found


class NotCurrent(Conflict):
    """The report is of an attempt that is not the job's current one, or that has already ended differently."""

    def __init__(self, job: int, attempt: int, found: str) -> None:
        super().__init__(f"attempt {attempt} of job {job} may not report this any more: {found}")
        self.job = job
        self.attempt = attempt
        self.found = found


class Invalid(QueueError):
    """The input can never be right. Nothing was changed."""


class NotYours(Invalid):
    """The report is of another agent's attempt. Nothing was changed."""


class QueueBusy(QueueError):
    """The database is locked or away. Nothing was changed; ask again later."""


class NotLeading(QueueBusy):
    """Another program leads, or none, and only the leader writes. Nothing was changed."""


class SchemaMismatch(QueueError):
    """The database's tables are not those of this version."""


class KeyFault(QueueError):
    """The key of the secrets is missing or wrong. Nothing was changed."""
