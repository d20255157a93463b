"""Refusals of a simulation, each in one line that names what is wrong and what to do."""


class SimulationError(Exception):
    """The root of these errors: nothing was simulated."""


_LONGEST, _HEAD, _REST = 200, 120, 75


def cut(text: str) -> str:
    """Return the text in at most 200 letters, without its middle if it is longer.

    Texts that quote a log need this, since a line or a name in a log can have any length. The beginning names the file
    and the line, and the end what to do.
    """
    return text if len(text) <= _LONGEST else f"{text[:_HEAD]} ... {text[-_REST:]}"


class BadTrace(SimulationError):
    """The error for a workload that cannot be read, or holds no job that fits."""

    def __str__(self) -> str:
        return cut(super().__str__())


class BadScenario(SimulationError):
    """The error for settings that contradict each other or the workload."""


def raise_if_interrupted(error: Exception) -> None:
    """Raise `KeyboardInterrupt` if the error comes from one.

    After a signal while compiled code ran, Python says that the code "returned a result with an exception set".
    """
    cause: BaseException | None = error if isinstance(error, SystemError) else None
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        cause = cause.__cause__ or cause.__context__
