"""The state of one control program, shared by its loops and the API.

Each field has one writer, a loop of `daemon` (provisioning, leader, entitlements, shares), and the API only reads. A
field is replaced as a whole and never changed in place, so a reader in another thread sees either the old value or the
new one. The exceptions are marked at the fields.
"""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from anyio import CapacityLimiter
from sqlalchemy import ColumnElement, Connection, Engine

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.storage_root import StorageNumber
from gleaner.control.policy.entitlements_view import EntitlementsStatus
from gleaner.control.policy.fair_share import ShareRules
from gleaner.control.policy.lossy_nodes import SliceCounts
from gleaner.control.policy.provisioning import ProvisioningRules, round_end
from gleaner.control.policy.quotas import Allowance, QuotaRules
from gleaner.control.queue import leader
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.queue.errors import NotLeading
from gleaner.control.queue.leader import Term
from gleaner.control.queue.quota_checks import Stored, allowance
from gleaner.control.queue.small_cache import SmallCache
from gleaner.control.queue.usage_cache import UsageCache
from gleaner.control.settings import RoundSettings, Settings
from gleaner.control.slurm.accounted_month import AccountedMonth
from gleaner.control.slurm.snapshot import Snapshot

WEB_STEP = "web "
"""The prefix for the names of the steps of the process that serves the people's port."""
LATE_S = {"database": 8.0, "storage": 15.0}
"""A check that takes longer than this counts as failed."""
STORAGE_THREADS = 16
MONTHS = 24
"""The number of months of Slurm's accounting that are cached."""


def seconds_since_boot() -> float:
    """Return the seconds since the machine's boot, including those in which it slept.

    `time.monotonic` does not count the time in which the machine sleeps, and another program might lead during that
    time.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def provisioning_rules(rounds: RoundSettings) -> ProvisioningRules:
    """Return the settings in the form that the policy expects."""
    return ProvisioningRules(
        length_s=rounds.length_s,
        origin_s=rounds.origin_s,
        synchronised=rounds.synchronised,
        shortest_slice_s=rounds.least_slice_s,
        pending_limit_s=rounds.pending_limit_s,
        agents_at_most=rounds.agents_at_most,
    )


@dataclass(slots=True)
class LoopFaults:
    """The loops of `daemon` that failed because of a bug. Each loop's thread changes its own entries in place.

    `rounds` counts each loop's failed rounds since control started. `worked_s` contains the instant, on `steady_clock`,
    of the last successful round of each loop, or of its first round if none was successful. A loop that does nothing
    while another program leads is not included.
    """

    rounds: Counter[str] = field(default_factory=Counter[str])
    worked_s: dict[str, float] = field(default_factory=dict[str, float])
    every_s: dict[str, float] = field(default_factory=dict[str, float])
    """The pause between two rounds of each loop in `worked_s`."""
    failing: dict[str, str] = field(default_factory=dict[str, str])
    """For each loop whose last round failed, the reason."""
    troubles: dict[str, str] = field(default_factory=dict[str, str])
    """The failure of the database, Slurm or the storage that each loop encountered in its last round, if any."""

    @property
    def now(self) -> tuple[str, ...]:
        """Return the names of the loops whose last round failed."""
        return tuple(sorted(self.failing.copy()))

    def note(self, step: str, reason: str) -> bool:
        """Record that a round has failed. Return True unless the previous round failed for the same reason."""
        self.rounds[step] += 1
        is_news = self.failing.get(step) != reason
        self.failing[step] = reason
        return is_news

    def forget(self, step: str) -> bool:
        """Record that a round was successful. Return True if the previous round had failed."""
        return self.failing.pop(step, None) is not None


@dataclass(slots=True)
class ControlState:
    """The facts about this control program: its settings and connections, and the answers to its last poll."""

    settings: Settings
    engine: Engine
    storage: FolderStorage
    follows: bool = False
    """True in the process that serves the people's port. This process has no loops, knows only the facts in the
    leader's view (`control_view`), and writes while any program leads."""
    leads_until_s: float = 0.0
    """The instant, on `steady_clock`, until which this program can write to the queue and call the scheduler. Any loop
    that finds in the database that another program leads also sets this field to 0."""
    term: Term | None = None
    """The current or last term of this program, or None if it leads without a competing program, as in tests."""
    has_leader: bool = False
    """True if any control program was the leader at this program's last check of the database (`own_checks`)."""
    cluster: Snapshot | None = None
    """The agents' partition at the last successful poll (see `agents_view`), or None before the first. It contains the
    time of that poll (`read_s`)."""
    problem: str = ""
    """The reason, in one line, why the last poll or submission failed, or "" if neither failed."""
    entitlements: EntitlementsStatus = field(default_factory=EntitlementsStatus)
    """The state of the owners' partitions, if entitlements are on."""
    slurm_shares: Mapping[str, float] | None = None
    """The percentage of each account, if `[groups] from_slurm` is set and Slurm has answered, otherwise None."""
    faults: LoopFaults = field(default_factory=LoopFaults)
    usage_cache: UsageCache = field(default_factory=UsageCache)
    """A cache that the threads serving agents change in place, unlike the other fields."""
    lost_slices: SmallCache[None, Mapping[str, SliceCounts]] = field(init=False)
    """The slices of the last day on each node. This cache is changed in place by the threads that serve users."""
    wrong_clocks: Mapping[str, float] = field(default_factory=dict[str, float])
    """For each node with a wrong clock, the seconds by which it is ahead of control's. The threads serving agents
    replace the field, and so does provisioning, which removes nodes that are gone. If both do so at the same time, one
    change might be lost until the next heartbeat of that node's agent."""
    stored: Stored = field(default_factory=Stored)
    """A cache that the threads serving agents and users change in place."""
    storage_number: StorageNumber = field(default_factory=StorageNumber)
    """The number of the storage folder, or "" until a loop has read it."""
    storage_threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(STORAGE_THREADS))
    """The threads that use the storage for callers."""
    storing_thread: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(1))
    """The one thread that adds images and inputs to the storage."""
    orphans_since_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """The stored images and inputs without a row, by key, with the time at which `storage_gc` first saw each of
    them."""
    accounted: SmallCache[float, AccountedMonth] = field(init=False)
    """A cache that the threads serving admins change in place."""
    quotas: QuotaRules = field(init=False)
    """The quotas of each group and user, according to the settings."""
    started_s: float = field(init=False)
    """The time at which this program started, according to `clock`. The settings were read just before."""
    began_s: float = field(init=False)
    """The time at which this program started, according to `steady_clock`."""
    clock: Callable[[], float] = time.time
    """The time in seconds since the epoch. Tests replace it."""
    random_bytes: Callable[[int], bytes] = secrets.token_bytes
    """The source of unique names. Tests replace it. It is never used to make tokens."""
    steady_clock: Callable[[], float] = seconds_since_boot
    """A clock that cannot be set, in seconds. Tests replace it."""
    database_clock: Callable[[], ColumnElement[float]] = lambda: leader.NOW
    """The SQL expression for the database's time. Tests replace it."""

    def __post_init__(self) -> None:
        clock = lambda: self.clock()  # noqa: E731, PLW0108  # tests put in their own clock later
        self.lost_slices, self.accounted = SmallCache(clock), SmallCache(clock, at_most=MONTHS)
        self.quotas = self.settings.quotas.rules
        self.started_s = self.clock()
        self.began_s = self.steady_clock()

    @property
    def loop_ages_s(self) -> dict[str, float]:
        """Return, for each loop, the seconds since its last successful round."""
        now_s = self.steady_clock()
        return {name: max(0.0, now_s - at_s) for name, at_s in sorted(self.faults.worked_s.copy().items())}

    def own_step(self, name: str) -> str:
        """Return the name of a step of this program. The people's port shows the leader's steps beside its own."""
        return f"{WEB_STEP}{name}" if self.follows else name

    def trouble(self, name: str) -> str:
        """Return, in one line, the fault that the last check of the database or the storage found, or `ok`."""
        step = self.own_step(name)
        age_s = self.loop_ages_s.get(step, 0.0)
        hangs = f"the {name} has not answered for {age_s:.0f} s" if age_s > LATE_S[name] else "ok"
        return self.faults.troubles.get(step, hangs)

    @property
    def boundary_s(self) -> float:
        """Return the end of the round for which agents are submitted now."""
        return round_end(self.clock(), provisioning_rules(self.settings.rounds))

    @property
    def share_rules(self) -> ShareRules:
        """Return the part that each group is entitled to, from the settings or from the shares of Slurm's accounts."""
        rules = self.settings.groups.rules
        return rules if self.slurm_shares is None else replace(rules, entitled=self.slurm_shares)

    def allowed(self, db: Connection, groups: Collection[str]) -> Allowance:
        """Return the allowance of these groups and their users for a claim.

        Claims of a limited group wait for each other until the transaction ends.
        """
        return allowance(db, self.quotas, groups, lambda: self.stored.bytes_by_owner(db))

    def foreseen(self, db: Connection, groups: Collection[str]) -> Allowance:
        """Return the allowance of these groups and their users for a plan, which does not start any job.

        No row is locked.
        """
        return allowance(db, self.quotas, groups, lambda: self.stored.bytes_by_owner(db), locks=False)

    @property
    def is_leader(self) -> bool:
        """Return True if this program leads now.

        It becomes False on its own after `leads_until_s`, even while a call to the database hangs.
        """
        return self.steady_clock() < self.leads_until_s

    @contextmanager
    def writing(self, *, alone: bool = False) -> Generator[Connection]:
        """Yield a transaction under the leader's term. No other program can begin to lead until the transaction has
        ended.

        With `alone`, the transaction excludes all others that write. Raises `NotLeading`.
        """
        term = self.current_term()
        with transaction(self.engine) as db:
            self._look_up(db, term, locks=True, alone=alone)
            yield db

    def check_leads(self) -> None:
        """Check again, in the database, that this program leads.

        Call it before an action that a transaction cannot undo.

        Raises `NotLeading`.
        """
        term = self.current_term()
        if term is not None or self.follows:
            with snapshot(self.engine) as db:
                self._look_up(db, term, locks=False)

    def current_term(self) -> Term | None:
        """Return the current term. Raises `NotLeading` if the term has ended according to this program's own clock."""
        term = self.term
        if not (self.is_leader or self.follows):
            with snapshot(self.engine) as db:
                raise self._refusal(db)
        return term

    def _look_up(self, db: Connection, term: Term | None, *, locks: bool, alone: bool = False) -> None:
        now = self.database_clock()
        if self.follows:
            may_write = leader.leader(db, now=now, locks=locks) is not None
        else:
            may_write = term is None or leader.holds(db, term, now=now, locks=locks, alone=alone)
        if may_write:
            return
        if self.term == term:  # otherwise the leader's loop has renewed it since
            self.leads_until_s = 0.0
        raise self._refusal(db)

    def _refusal(self, db: Connection) -> NotLeading:
        holder = leader.leader(db, now=self.database_clock())
        who = f"{holder} leads" if holder else "no control program leads now"
        return NotLeading(f"only reads are served here: {who}")
