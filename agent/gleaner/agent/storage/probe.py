"""Whether a storage still answers. Asked only when something with it takes suspiciously long."""

import threading
import time

from gleaner.agent.storage.protocol import Storage, StorageError

PATIENCE_S = 10.0
"""A storage that does not answer for so long hangs."""


class Probe:
    """One small call that writes (reading may go on from a cache), in a thread of its own, since it may never end."""

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage = storage
        self._key = key
        self._out_since_s: float | None = None

    def look(self) -> None:
        """Ask, unless an earlier question is still out."""
        if self._out_since_s is None:
            self._out_since_s = time.monotonic()
            threading.Thread(target=self._ask, daemon=True).start()

    @property
    def out_for_s(self) -> float:
        """For how long a question has been waiting for its answer; 0 if none is."""
        since_s = self._out_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    @property
    def hangs(self) -> bool:
        """Whether the storage does not answer. A storage that says no does."""
        return self.out_for_s >= PATIENCE_S

    def _ask(self) -> None:
        try:
            with self._storage.draft(self._key) as draft:
                draft.add("probe", [b"?"])
        except StorageError:
            pass
        finally:
            self._out_since_s = None
