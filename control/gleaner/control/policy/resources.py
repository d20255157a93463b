"""Cores, memory and time of a node, an agent or a piece of a job."""

from collections.abc import Collection
from dataclasses import dataclass

STEPS_A_DOUBLING = 8


@dataclass(frozen=True, slots=True)
class Resources:
    """Cores and memory (MiB) in one place."""

    cpus: int
    memory_mib: int

    def plus(self, other: "Resources") -> "Resources":
        """Return the sum of both.

        >>> Resources(2, 100).plus(Resources(1, 50))
        Resources(cpus=3, memory_mib=150)
        """
        return Resources(self.cpus + other.cpus, self.memory_mib + other.memory_mib)

    def less(self, other: "Resources") -> "Resources":
        """Return the difference, never below zero.

        >>> Resources(2, 100).less(Resources(3, 50))
        Resources(cpus=0, memory_mib=50)
        """
        return Resources(max(0, self.cpus - other.cpus), max(0, self.memory_mib - other.memory_mib))


NOTHING = Resources(0, 0)

NO_REAL_MEMORY = "slurm.conf has no RealMemory for it: set what `slurmd -C` prints on the node"
_SLURMS_DEFAULT_MIB = 1


def lacks_real_memory(memory_mib: int) -> bool:
    """Return True if this memory belongs to a node for which slurm.conf has no RealMemory. Slurm then assumes 1 MiB."""
    return memory_mib <= _SLURMS_DEFAULT_MIB


_STRETCHES_S = tuple(60 * minutes for minutes in (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 720))


def time_step_s(needs_s: int, longest_s: float) -> int:
    """Return the least time of a job on an agent, in seconds, rounded up to a step, but not above an agent's time.

    A claim examines each time and each size of the waiting jobs, so the number of both is kept small. Above half a day,
    the steps are whole days.

    >>> [time_step_s(needs_s, 1e9) for needs_s in (0, 1, 1200, 1201, 86_401)]
    [0, 60, 1200, 1800, 172800]
    >>> time_step_s(3540, longest_s=3545.5)
    3545
    """
    if needs_s <= 0:
        return 0
    days_s = -(-needs_s // 86_400) * 86_400
    step_s = next((step_s for step_s in _STRETCHES_S if step_s >= needs_s), days_s)
    return int(min(step_s, longest_s)) if longest_s >= needs_s else step_s


def next_memory_mib(memory_mib: int, most_mib: int | None) -> int | None:
    """Return the next memory size, in MiB, of a job that has reached its limit.

    The memory is doubled, up to `most_mib`. The result is None if the job already has `most_mib`, or if that is None.

    >>> next_memory_mib(512, 4096), next_memory_mib(3000, 4096), next_memory_mib(4096, 4096), next_memory_mib(512, None)
    (1024, 4096, None, None)
    """
    if most_mib is None or memory_mib >= most_mib:
        return None
    return min(memory_step(2 * memory_mib), most_mib)


def memory_step(memory_mib: int, nodes: Collection[int] = ()) -> int:
    """Return a job's memory, in MiB. It is the requested memory, rounded up to a step, by at most an eighth.

    A claim examines each size of the waiting jobs, so jobs of nearly the same size count as one size.

    Powers of two, and other sizes with few digits, are steps. The memory of a node (`nodes`) and the part of it that
    agents leave for jobs are also steps, so that a job that requests a whole node still fits on it.

    >>> [memory_step(memory_mib) for memory_mib in (16, 500, 512, 513, 1536, 4000, 65_536)]
    [16, 512, 512, 576, 1536, 4096, 65536]
    >>> memory_step(60_000, nodes={64_000, 60_500})
    60500
    """
    granule = max(1, (1 << memory_mib.bit_length() - 1) // STEPS_A_DOUBLING)
    step = -(-memory_mib // granule) * granule
    return min([step, *(node for node in nodes if node >= memory_mib)])
