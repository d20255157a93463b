"""The facts that the loops collect and users query. The program with the loops passes them to the people's port.

The loops and the people's port are in separate processes, so that users' requests cannot delay those of agents. The
leader writes its view into a row of the queue at regular intervals, and `follow` copies it to the place where the
routes read it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import zstandard
from pydantic import TypeAdapter

from gleaner.agent.checkpoints.storage_root import StorageNumber
from gleaner.control.control_state import WEB_STEP, ControlState, LoopFaults
from gleaner.control.policy.entitlements_view import EntitlementsStatus
from gleaner.control.queue import leader
from gleaner.control.queue.database import snapshot
from gleaner.control.slurm.snapshot import Snapshot

WRITE_EVERY_S = 2.0
READ_EVERY_S = 1.0
Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class ControlView:
    """The fields of `ControlState` that loops write, with their values at `written_s`."""

    written_s: float
    started_s: float
    cluster: Snapshot | None
    problem: str
    entitlements: EntitlementsStatus
    slurm_shares: Mapping[str, float] | None
    wrong_clocks: Mapping[str, float]
    storage_number: StorageNumber
    failing: tuple[str, ...]
    failed_rounds: Mapping[str, int]
    loop_ages_s: Mapping[str, float]
    loops_every_s: Mapping[str, float]


_SAME = ("started_s", "cluster", "problem", "entitlements", "slurm_shares", "wrong_clocks", "storage_number")
"""The fields that have the same name in `ControlState` and in `ControlView`."""
_VIEWS = TypeAdapter(ControlView)


def write_view(state: ControlState, now_s: float) -> None:
    """Write the view of this program, which is the leader. Raises `QueueError`."""
    view = ControlView(
        written_s=now_s,
        **{name: getattr(state, name) for name in _SAME},
        failing=state.faults.now,
        failed_rounds=state.faults.rounds,
        loop_ages_s=state.loop_ages_s,
        loops_every_s=state.faults.every_s.copy(),
    )
    packed = zstandard.ZstdCompressor().compress(_VIEWS.dump_json(view))
    with state.writing() as db:
        leader.publish_view(db, packed, written_s=now_s)


class Follower:
    """The reader of the view, for a program without its own loops."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._written_s: float | None = None

    def follow(self, now_s: float) -> None:
        """Copy the view if there is a new one. Raises `QueueError`."""
        state = self._state
        with snapshot(state.engine) as db:
            packed = leader.find_view(db, unlike_s=self._written_s)
        if packed is None:
            return
        view = _VIEWS.validate_json(zstandard.ZstdDecompressor().decompress(packed))
        self._written_s = view.written_s
        written_s = state.steady_clock() - max(0.0, now_s - view.written_s)
        for name in _SAME:
            setattr(state, name, getattr(view, name))
        mine = state.faults
        state.faults = LoopFaults(
            rounds=Counter({**view.failed_rounds, **_own(mine.rounds)}),
            worked_s={name: written_s - age_s for name, age_s in view.loop_ages_s.items()} | _own(mine.worked_s),
            every_s={**view.loops_every_s, **_own(mine.every_s)},
            failing=dict.fromkeys(view.failing, "") | _own(mine.failing),
            troubles=mine.troubles,
        )


def _own(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of the loops that the process of the people's port runs itself."""
    return {name: entry for name, entry in dict(entries).items() if name.startswith(WEB_STEP)}
