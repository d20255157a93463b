"""Processors and memory: of a node, in an agent's hands, of a piece of a job."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """Cores and MiB of memory in one place."""

    cpus: int
    memory_mib: int

    def plus(self, other: "Room") -> "Room":
        """Both together.

        >>> Room(2, 100).plus(Room(1, 50))
        Room(cpus=3, memory_mib=150)
        """
        return Room(self.cpus + other.cpus, self.memory_mib + other.memory_mib)

    def less(self, other: "Room") -> "Room":
        """What is left without the other one: never less than nothing.

        >>> Room(2, 100).less(Room(3, 50))
        Room(cpus=0, memory_mib=50)
        """
        return Room(max(0, self.cpus - other.cpus), max(0, self.memory_mib - other.memory_mib))


NOTHING = Room(0, 0)
