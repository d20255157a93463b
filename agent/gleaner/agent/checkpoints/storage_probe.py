"""Check whether a storage still answers when working with it takes suspiciously long."""

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.common.clock import Clock

PATIENCE_S = 10.0
"""A storage that does not answer within this time is considered to hang."""


class StorageProbe:
    """One small write (a cache might answer a read), in its own thread, since the write might never end."""

    def __init__(self, storage: FolderStorage, key: str, clock: Clock) -> None:
        self._storage = storage
        self._key = key
        self._clock = clock
        self._out_since_s: float | None = None

    def start(self) -> None:
        """Start a write, unless an earlier one is still under way."""
        if self._out_since_s is None:
            self._out_since_s = self._clock.monotonic_s()
            self._clock.start(self._ask)

    @property
    def waits_s(self) -> float:
        """The time since the current write started, or 0 if there is none."""
        since_s = self._out_since_s
        return 0.0 if since_s is None else self._clock.monotonic_s() - since_s

    @property
    def hangs(self) -> bool:
        """True if the storage does not answer. A storage that refuses a write does answer."""
        return self.waits_s >= PATIENCE_S

    def _ask(self) -> None:
        try:
            with self._storage.draft(self._key) as draft:
                draft.add("probe", [b"?"])
        except StorageError:
            pass
        finally:
            self._out_since_s = None
