"""What one control program knows, shared by its loops and the API.

Each field has one writer (the rounds, the keeper, the governor, the reader of Slurm's shares); the API only reads. A
field is replaced as a whole, never changed in place, so a reader in another thread sees the old value or the new one.
"""

import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from sqlalchemy import ColumnElement, Connection, Engine

from gleaner.agent.storage.protocol import Storage
from gleaner.control.cluster.gateway import ClusterView
from gleaner.control.policy.governing_view import Governing
from gleaner.control.policy.quotas import Allowance, QuotaRules
from gleaner.control.policy.shares import ShareRules
from gleaner.control.queue import leader
from gleaner.control.queue.engine import snapshot, transaction
from gleaner.control.queue.errors import NotLeading
from gleaner.control.queue.leader import Term
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
    """On `steady_clock`: until then this program may write to the queue and talk to the scheduler. Whoever finds in the
    database that another one leads sets it to 0, too."""
    term: Term | None = None
    """By which it leads or led last. None, and it leads: there is no other program that could, as in tests."""
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
    database_clock: Callable[[], ColumnElement[float]] = lambda: leader.NOW
    """What the database is asked for its time; tests put their own here too."""

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

    def foreseen(self, db: Connection, groups: Collection[str]) -> Allowance:
        """The same for who plans, and starts nothing: nobody waits for it."""
        return allowance(db, self.quotas, groups, lambda: self.stored.bytes_by_owner(db), locks=False)

    @property
    def is_leader(self) -> bool:
        """Whether this program leads now. It stops to believe so by itself, also while a call to the database hangs."""
        return self.steady_clock() < self.leads_until_s

    @property
    def epoch(self) -> int | None:
        """What requests to the steward carry."""
        return None if self.term is None else self.term.epoch

    @contextmanager
    def writing(self) -> Generator[Connection]:
        """One transaction of the leader's: nobody else begins to lead before it has ended. Raises `NotLeading`."""
        term = self._term()
        with transaction(self.engine) as db:
            self._look_up(db, term, locks=True)
            yield db

    def check_leads(self) -> None:
        """Ask the database once more, before something is done that no transaction can undo. Raises `NotLeading`."""
        term = self._term()
        if term is not None:
            with snapshot(self.engine) as db:
                self._look_up(db, term, locks=False)

    def _term(self) -> Term | None:
        term = self.term
        if not self.is_leader:
            with snapshot(self.engine) as db:
                raise self._refusal(db)
        return term

    def _look_up(self, db: Connection, term: Term | None, *, locks: bool) -> None:
        if term is None or leader.holds(db, term, now=self.database_clock(), locks=locks):
            return
        if self.term == term:  # else the keeper has asked since
            self.leads_until_s = 0.0
        raise self._refusal(db)

    def _refusal(self, db: Connection) -> NotLeading:
        holder = leader.leader(db, now=self.database_clock())
        who = f"{holder} leads" if holder else "none leads yet"
        return NotLeading(f"this control program only serves reads: {who}")
