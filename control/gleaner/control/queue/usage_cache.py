"""The current usage of each group of our queue, kept in memory by the leader, the only program that answers claims.

Summing over all running jobs at each claim would cost more than the claim itself. Therefore the sum is read from the
database from time to time. Between two readings, the leader adds the jobs that it assigns. A job that has ended still
counts until the next reading, and the result can be off by the changes during the reading itself.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from gleaner.agent.messages import Assignment
from gleaner.control.policy.fair_share import ShareRules, Shares
from gleaner.control.queue.queries import group_usage
from gleaner.control.queue.small_cache import SmallCache

FRESH_S = 1.0
"""The shortest time between two readings of the sum."""
REST = 50
"""The time between two readings is also at least this multiple of the time that the last reading took."""
RECORDED_PER_S = 1.0
"""The long-term rate at which decisions between groups are recorded. Further decisions are not recorded."""
RECORDED_AT_ONCE = 60
"""The number of decisions that can be recorded at once after a quiet time."""


class UsageCache:
    """The usage of all groups, and the number of decisions between them that can still be recorded."""

    def __init__(self, steady_clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = steady_clock
        self._lock = threading.Lock()
        self._usage = SmallCache[None, Shares](steady_clock)
        self._tokens = float(RECORDED_AT_ONCE)
        self._tokens_s = steady_clock()

    def shares(self, db: Connection, rules: ShareRules) -> Shares:
        """Return the usage of all groups. It is read again through this connection if the last reading is old."""
        return replace(self._usage.get(None, lambda: group_usage(db), fresh_s=FRESH_S, rest=REST), rules=rules)

    def record_claims(self, assignments: Sequence[Assignment]) -> None:
        """Record that these jobs are now running."""
        cpus: Counter[str] = Counter()
        for job in assignments:
            cpus[job.group] += job.spec.cpus
        with self._lock:
            self._usage.change(None, lambda usage: replace(usage, holds_cpus=cpus + Counter(usage.holds_cpus)))

    def may_record(self) -> bool:
        """Return True if one more decision between groups can be recorded now."""
        with self._lock:
            now_s = self._clock()
            self._tokens = min(RECORDED_AT_ONCE, self._tokens + (now_s - self._tokens_s) * RECORDED_PER_S)
            self._tokens_s = now_s
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True
