"""What a simulation says no to, in one line that names what is wrong and what to do."""


class SimulationError(Exception):
    """The root: nothing was simulated."""


class BadTrace(SimulationError):
    """A workload that cannot be read, or holds nothing that fits."""


class BadScenario(SimulationError):
    """Settings that contradict each other or the workload."""


def raise_if_interrupted(error: Exception) -> None:
    """Raise `KeyboardInterrupt` if that is what the error comes from.

    After a signal while compiled code ran, Python says that the code "returned a result with an exception set".
    """
    cause: BaseException | None = error if isinstance(error, SystemError) else None
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause from None
        cause = cause.__cause__ or cause.__context__
