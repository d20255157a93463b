"""How one slice spends its time."""

import time
from dataclasses import dataclass

from gleaner.agent.protocol import Slice


@dataclass(slots=True)
class Times:
    """When the parts of a slice began and ended, seconds since the epoch; 0 for not yet."""

    started_s: float = 0.0
    running_s: float = 0.0
    stopped_s: float = 0.0
    saved_s: float = 0.0

    def slice(self) -> Slice:
        """For a report; what still goes on counts up to now."""
        running_s = self.running_s or self.stopped_s or time.time()
        stopped_s = self.stopped_s or time.time()
        return Slice(
            started_s=self.started_s,
            restore_s=max(0.0, running_s - self.started_s),
            compute_s=max(0.0, stopped_s - running_s) if self.running_s else 0.0,
            save_s=max(0.0, self.saved_s - stopped_s) if self.saved_s else 0.0,
        )
