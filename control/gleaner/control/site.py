"""What one control program knows, shared by its loops and the API.

Each field has one writer (the rounds, the keeper, the governor, the reader of Slurm's shares); the API only reads. A
field is replaced as a whole, never changed in place, so a reader in another thread sees the old value or the new one.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, Engine

from gleaner.agent.storage.protocol import Storage
from gleaner.control.cluster.gateway import ClusterView
from gleaner.control.policy.governing_view import Governing
from gleaner.control.policy.quotas import Allowance, QuotaRules
from gleaner.control.policy.shares import ShareRules
from gleaner.control.queue.quotas import Stored, allowance
from gleaner.control.settings import Settings
from gleaner.control.tally import Tally


def seconds_since_boot() -> float:
    """Like `time.monotonic`, but it goes on while the machine sleeps: another program leads meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Site:
    """The facts of this control program: how it was set up, and how its last poll went."""

    settings: Settings
    engine: Engine
    storage: Storage
    leads_until_s: float = 0.0
    """On `steady_clock`: until then this program may write to the queue and talk to the scheduler."""
    cluster: ClusterView | None = None
    """The last successful poll; None until there was one. Its `read_s` tells its age."""
    problem: str = ""
    """One line: why the last poll or submission failed; empty if it did not."""
    boundary_s: float = 0.0
    """The end of the round that agents are submitted for now."""
    governing: Governing = field(default_factory=Governing)
    """How the owners' partitions stand, if they are governed."""
    slurm_shares: Mapping[str, float] | None = None
    """Per cent by account, if `[groups] from_slurm` asks for them and Slurm has answered."""
    tally: Tally = field(default_factory=Tally)
    """Unlike the rest, it is changed in place, by the threads that answer agents."""
    stored: Stored = field(default_factory=Stored)
    """So is this, by those that answer agents and users."""
    quotas: QuotaRules = field(init=False)
    """What each group and user may have, by the settings."""
    clock: Callable[[], float] = time.time
    """Seconds since the epoch; tests put their own here."""
    steady_clock: Callable[[], float] = seconds_since_boot
    """A clock that nobody sets; tests put their own here too."""

    def __post_init__(self) -> None:
        self.quotas = self.settings.quotas.rules

    @property
    def share_rules(self) -> ShareRules:
        """What each group is entitled to, by the settings or by Slurm's accounts."""
        rules = self.settings.groups.rules
        return rules if self.slurm_shares is None else replace(rules, entitled=self.slurm_shares)

    def allowed(self, db: Connection, groups: Collection[str]) -> Allowance:
        """What these groups and their users may still start."""
        return allowance(db, self.quotas, groups, lambda: self.stored.bytes_by_owner(db))

    @property
    def is_leader(self) -> bool:
        """Whether this program leads now. It stops to believe so by itself, also while a call to the database hangs."""
        return self.steady_clock() < self.leads_until_s
