"""What this agent expects of its saves, and learns from each: the running state around `agent.margin`."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gleaner.agent.leastsquares import LEAST_MIB, MIB
from gleaner.agent.margin import KEPT, Line, Save, crowd, fitted, safety, told
from gleaner.agent.protocol import NodeRates, Way

ASSUMED_MIB_S = {Way.DOCKER: 20.0, Way.SHIM: 150.0, Way.CRIU: 150.0, Way.SELF: 20.0}
"""Until something was measured, by the way of saving: memory saved and published per second, all jobs together."""


@dataclass(frozen=True, slots=True)
class Load:
    """One job that would have to be saved. `way` is `SELF` for one that saves itself."""

    memory_bytes: int
    way: Way

    @property
    def counted_bytes(self) -> int:
        """What it counts as in measurements and estimates."""
        return max(self.memory_bytes, int(LEAST_MIB) * MIB)


@dataclass(slots=True)
class Estimates:
    """The measurements of one agent, on top of what control knows of its node."""

    way: Way
    """How this node saves memory."""
    at_once: int
    """So many are saved at once."""
    assumed_mib_s: float | None = None
    """In place of `ASSUMED_MIB_S`."""
    _told: list[Save] = field(default_factory=list[Save])
    _crowd: float = 1.0
    _own: dict[Way, list[Save]] = field(default_factory=dict[Way, list[Save]])

    def learn(self, rates: NodeRates | None) -> None:
        """Take in what control knows. What was measured at earlier boundaries has the other nodes' saves in it."""
        self._told = told(rates)
        self._crowd = crowd(rates.saves_elsewhere) if rates and not self._told else 1.0

    def note(self, load: Load, *, at_once: int, took_s: float, expected_s: float) -> None:
        """One save more."""
        new = Save(memory_bytes=load.counted_bytes * at_once, took_s=took_s, expected_s=expected_s)
        self._own[load.way] = [*self._own.get(load.way, []), new][-KEPT:]

    def expected_s(self, load: Load, *, at_once: int = 1) -> float:
        """How long one save takes, as likely longer as shorter."""
        return self._line(load.way).save_s(load.counted_bytes, at_once=at_once)

    def all_s(self, loads: Iterable[Load]) -> float:
        """How long it takes to save all of them at the agent's end, with what is added for safety."""
        by_way: dict[Way, list[int]] = {}
        for load in loads:
            by_way.setdefault(load.way, []).append(load.counted_bytes)
        # Those that save themselves do so meanwhile.
        return max((self._all_s(way, sizes) for way, sizes in by_way.items()), default=0.0)

    def _all_s(self, way: Way, sizes: list[int]) -> float:
        own = self._own.get(way, [])
        at_once = len(sizes) if way is Way.SELF else self.at_once
        return self._line(way).all_s(sizes, at_once=at_once) * safety(own) * self._crowd

    def _line(self, way: Way) -> Line:
        before = [] if way is Way.SELF else self._told
        assumed_mib_s = ASSUMED_MIB_S[way] if self.assumed_mib_s is None else self.assumed_mib_s
        return fitted([*before, *self._own.get(way, [])], assumed=assumed_mib_s * MIB)
