"""What a simulation says no to, in one line that names what is wrong and what to do."""


class SimulationError(Exception):
    """The root: nothing was simulated."""


class BadTrace(SimulationError):
    """A workload that cannot be read, or holds nothing that fits."""


class BadScenario(SimulationError):
    """Settings that contradict each other or the workload."""
