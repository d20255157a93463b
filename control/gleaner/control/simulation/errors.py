"""The errors for simulations that are refused. Each error is one line with the problem and the remedy."""


class SimulationError(Exception):
    """The base class of these errors. After one of them, nothing has been simulated."""


_LONGEST, _HEAD, _REST = 200, 120, 75


def cut(text: str) -> str:
    """Return the text, shortened in the middle if it has more than 200 characters.

    Texts that quote a log need this, because a line or a name in a log can have any length. The beginning of a text
    names the file and the line, and its end names the remedy.
    """
    return text if len(text) <= _LONGEST else f"{text[:_HEAD]} ... {text[-_REST:]}"


class BadTrace(SimulationError):
    """The error for a workload that cannot be read, or that has no job small enough for the machine."""

    def __str__(self) -> str:
        return cut(super().__str__())


class BadScenario(SimulationError):
    """The error for settings that contradict each other or the workload."""


def raise_if_interrupted(error: Exception) -> None:
    """Raise `KeyboardInterrupt` if one caused the error.

    If a signal arrives while compiled code runs, Python reports that the code "returned a result with an exception
    set".
    """
    cause: BaseException | None = error if isinstance(error, SystemError) else None
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        cause = cause.__cause__ or cause.__context__
