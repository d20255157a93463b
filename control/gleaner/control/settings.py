"""Settings of the services and of the command line: a TOML file, then the environment on top.

The file is the one named by `GLEANER_SETTINGS`, else `/etc/gleaner/gleaner.toml` if it is there. A variable
`GLEANER_ROUNDS__LENGTH_S=600` sets `length_s` in the table `[rounds]`. An unknown key is an error.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from gleaner.agent.settings_file import FileSettings
from gleaner.control.cluster.hosts import chosen
from gleaner.control.policy.quotas import GIB, GroupMost, Most, QuotaRules
from gleaner.control.policy.rates import RateRules
from gleaner.control.policy.shares import ShareRules

DAY_S = 24 * 3600.0
SHORTEST_ROUND_S = 30
MOST = 10**12
"""Of whatever is counted: more than there will be, and what every database holds."""
GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class QueueSettings(_Table):
    """`[queue]`: where the queue lives and how patient it is."""

    url: str = "sqlite:////var/lib/gleaner/queue.db"
    """SQLAlchemy's URL; `postgresql+psycopg://...` for PostgreSQL."""
    lease_s: float = Field(default=180, gt=0)
    """How long a silent agent keeps its jobs."""
    heartbeat_s: float = Field(default=20, gt=0)
    retries: int = Field(default=2, ge=0)
    """How often a job is started over after its own failure, unless the job says otherwise."""
    losses_until_held: int = Field(default=3, ge=1)
    """A job lost together with its agent this often in a row, on different nodes, is held."""
    keep_days: int = Field(default=90, ge=1)
    """What jobs wrote, and their events, are removed this long after their end; so are agents that never got a job."""
    keep_decisions: int = Field(default=200_000, ge=1)
    """Of more stored decisions the oldest are removed, once an hour; those older than `keep_days` always are."""
    keep_decisions_mib: int = Field(default=2000, ge=1)
    """So are the oldest of those that take more than this together, compressed as they are stored."""
    log_lines_per_job: int = Field(default=1_000_000, ge=1)
    """Of a longer log the oldest lines are removed, once an hour."""
    log_mib_per_job: int = Field(default=64, ge=1)
    """Of a log that takes more the oldest lines are removed at once."""

    @property
    def log_bytes_per_job(self) -> int:
        """The same in bytes."""
        return self.log_mib_per_job * 2**20

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> Self:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError("lease_s must be at least twice heartbeat_s, or one lost heartbeat loses the jobs")
        return self


class RoundSettings(_Table):
    """`[rounds]`: when agents end and how many there may be."""

    length_s: float = Field(default=3600, ge=SHORTEST_ROUND_S)
    """All agents end at multiples of this since `origin_s`."""
    origin_s: float = 0
    synchronised: bool = True
    """False gives every agent the full length from its own start (for comparison; regular jobs suffer)."""
    shortest_slice_s: float = Field(default=600, ge=5)
    """No agent is submitted for less. Unless it is set, it is half a round at most."""
    agent_needs_s: float = Field(default=55, ge=0)
    """Nor for less than an agent needs to begin any job: its start (5), Slurm's KillWait (30), and of the agents' own
    settings `margin_s` (10; their last words are in it) and `shortest_slice_s`, of which 10 s are counted here.
    Unless it is set, it is half a round at most."""
    poll_s: float = Field(default=20, ge=1)
    pending_limit_s: float = Field(default=300, gt=0)
    """A pending agent that has not started after this long is withdrawn."""
    agents_at_most: int = Field(default=1000, ge=0)
    failures_until_avoided: int = Field(default=3, ge=1)
    """A node on which agents fail this often in a row is left alone."""
    avoid_s: float = Field(default=3600, gt=0)
    """For how long."""

    @model_validator(mode="before")
    @classmethod
    def _half_a_round_at_most(cls, given: object) -> object:
        """What is not set fits the rounds: whoever sets short ones need not know of the rest."""
        if not isinstance(given, Mapping):
            return given
        settings = {str(key): value for key, value in cast("Mapping[str, Any]", given).items()}
        try:
            half_s = float(settings["length_s"]) / 2
        except (KeyError, TypeError, ValueError):
            return settings
        unset = {name: cls.model_fields[name].default for name in ("shortest_slice_s", "agent_needs_s")}
        return {name: half_s for name, default in unset.items() if SHORTEST_ROUND_S / 2 <= half_s < default} | settings

    @model_validator(mode="after")
    def _a_slice_fits(self) -> Self:
        if self.shortest_slice_s >= self.length_s:
            raise ValueError("shortest_slice_s must be less than length_s, or no agent is ever submitted")
        if self.agent_needs_s >= self.length_s:
            raise ValueError("agent_needs_s must be less than length_s, or no agent ever begins a job")
        return self

    @property
    def least_slice_s(self) -> float:
        """No agent is submitted for less: it would begin no job, or none that is worth it."""
        return max(self.shortest_slice_s, self.agent_needs_s)


class RateSettings(_Table):
    """`[rates]`: how control learns from what saves cost and from agents that were lost."""

    half_life_saves: float = Field(default=20, gt=0)
    """A measured save counts half after so many further ones on its node; restores likewise."""
    half_life_days: float = Field(default=60, gt=0)
    """What was seen of an agent's loss, or of its lasting, counts half after so many days."""
    assumed_mtbf_days: float = Field(default=30, gt=0)
    """How long a node's agents last on average without being lost, as long as little was seen."""

    @property
    def rules(self) -> RateRules:
        """The same as a decision takes it."""
        return RateRules(self.half_life_saves, self.half_life_days * DAY_S, self.assumed_mtbf_days * DAY_S)


PerCent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _at_most_all(entitled: Mapping[str, float], or_else: str) -> None:
    """Raises `ValueError` for more than all, but for what rounding adds; `or_else` ends the line."""
    given = math.fsum(entitled.values())
    if given > 100 + 1e-9:
        raise ValueError(f"entitled adds up to {given:g} {or_else}")


class GroupSettings(_Table):
    """`[groups]`: what each group is entitled to of the cores of all live agents."""

    entitled: dict[str, PerCent] = {}
    """Per cent by group. A group that holds less goes before those that hold their part."""
    multiplier: dict[str, Factor] = {}
    """A group's target is its part times this; 1 if it is not named."""
    others: Literal["equal", "none"] = "equal"
    """What is not given to named groups is shared equally by the other groups that have jobs; `none`: they get what
    nobody below a target asks for."""
    from_slurm: bool = False
    """Take the groups' parts from the shares of Slurm's accounts of the same names."""

    @model_validator(mode="after")
    def _no_more_than_all(self) -> Self:
        _at_most_all(self.entitled, "per cent; the groups together can have 100 at most")
        if self.from_slurm and self.entitled:
            raise ValueError("entitled and from_slurm contradict each other: the parts come from here or from Slurm")
        return self

    @property
    def rules(self) -> ShareRules:
        """The same as a decision takes it."""
        return ShareRules(self.entitled, self.multiplier, self.others == "equal")


class MigrationSettings(_Table):
    """`[migration]`: moving jobs from one agent to another in the background, and how long any move may take."""

    policy: Literal["none", "compaction", "priorities"] = "none"
    """`compaction`: empty the partly used agents, so that their nodes are free again before the boundary;
    `priorities`: move work to the preferred nodes."""
    prefer: tuple[str, ...] = ()
    """Nodes, as in `node[1-8]`, the most preferred first; all others come last."""
    every_s: float = Field(default=30, ge=1)
    """One job is moved in this time, at most, and none while any job waits."""
    patience_s: float = Field(default=120, ge=10)
    """A job that was not saved so long after it was told to move stays; one that was saved for a certain node, and
    that nobody there has taken, may go on anywhere."""
    assumed_s: float = Field(default=60, gt=0)
    """What saving and restoring a job take, where nothing was measured."""

    @field_validator("prefer")
    @classmethod
    def _names_nodes(cls, prefer: tuple[str, ...]) -> tuple[str, ...]:
        chosen(prefer, at_most=100_000)
        return prefer

    @model_validator(mode="after")
    def _prefers_something(self) -> Self:
        if self.policy == "priorities" and not self.prefer:
            raise ValueError("policy is 'priorities', but no nodes are named to prefer")
        return self


class GoverningSettings(_Table):
    """`[governing]`: who is entitled to what of which partitions, and how it is given back.

    See deploy/INSTALL.md for the steps: off, dry-run for a week, one partition, all.
    """

    mode: Literal["off", "dry-run", "on"] = "off"
    """`dry-run`: everything is decided and logged, nothing is done."""
    partitions: tuple[str, ...] = ()
    """The partitions whose jobs wait for our word. Not the agents' own."""
    entitled: dict[str, PerCent] = {}
    """Of the partitions' CPUs, in per cent, by Slurm account. Who is not named runs on what is idle."""
    quantum_s: float = Field(default=1800, ge=0)
    """How long a job runs before it is among the first to give way."""
    quantum_protects: bool = False
    """Whether before that it does not give way at all: fewer saves, and a claim may wait for a quantum."""
    grace_s: float = Field(default=120, ge=5)
    """How long a job that was told to give way has to be gone; one that is not gone then is left alone."""
    retry_s: float = Field(default=3600, gt=0)
    """When one that did not go may be asked again."""
    saves_per_hour_at_most: int = Field(default=60, ge=0)
    """So many of the owners' jobs are vacated in an hour, at most. Agents do not count."""
    settle_s: float = Field(default=20, gt=0)
    """A job that was released for what is idle, and that has not started after this long, needs one node for itself."""
    poll_s: float = Field(default=5, ge=1)
    steward_socket: Path = Path("/run/gleaner/steward.sock")
    steward_timeout_s: float = Field(default=30, gt=0)

    @model_validator(mode="after")
    def _governs_something(self) -> Self:
        _at_most_all(self.entitled, "%; each share is at least 0, all together at most 100")
        if self.mode != "off" and not self.partitions:
            raise ValueError(f"mode is {self.mode!r}, but no partitions are named that are to be governed")
        return self


class ClusterSettings(_Table):
    """`[cluster]`: which scheduler, and how agents are submitted to it."""

    gateway: Literal["slurm", "pyslurm", "auto", "local"] = "local"
    """`slurm`: by Slurm's programs; `pyslurm`: through PySlurm; `auto`: that if it can be used when control starts."""
    pyslurm_python: Path | None = None
    """The Python that PySlurm is installed for; this program's own by default."""
    partition: str = "gleaner"
    account: str | None = None
    qos: str | None = None
    timeout_s: float = Field(default=30, gt=0)
    """For one call of a Slurm program, or of PySlurm."""
    submits_per_s: float = Field(default=2, gt=0)
    agent_command: tuple[str, ...] = ("glean-agent",)
    """The agent program as the node knows it."""
    agent_settings: Path = Path("/etc/gleaner/agent.toml")
    """The agent's settings file on the node."""
    agent_logs: Path = Path("/var/lib/gleaner/work")
    """A folder of the nodes' own disks for what agents print; when they end it goes to `agents` in the storage.
    Slurm's own processes hold that file open: on a storage that hangs they never end, and Slurm drains the node."""
    local_agents: int = Field(default=1, ge=0)
    """The `local` gateway's number of pretended nodes on this machine."""


class ApiSettings(_Table):
    """`[api]`: where control listens."""

    host: str = "127.0.0.1"
    port: int = Field(default=8642, ge=0, le=65535)
    certificate: Path | None = None
    key: Path | None = None
    connections_at_most: int = Field(default=2000, ge=10)
    """Further ones are answered with 503 at once."""
    connections_per_host: int = Field(default=256, ge=1)
    """So many of them from one address, at most; more behind a proxy that all callers come through."""
    request_s: float = Field(default=60, gt=0)
    """Who has not sent a whole request so long after its first byte is hung up on."""

    @model_validator(mode="after")
    def _no_plain_text_off_this_machine(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        if self.certificate is None and self.host not in {"127.0.0.1", "::1", "localhost"}:
            raise ValueError(
                f"host {self.host} is reachable from elsewhere: set certificate and key (TLS), or 127.0.0.1"
            )
        return self


class AuditSettings(_Table):
    """`[audit]`: one line of JSON for each write that was asked for, refused ones included."""

    file: Path | None = None
    """Where the lines go; without it to control's own log."""
    largest_mib: int = Field(default=64, ge=1)
    """A larger file is renamed to `FILE.1`, that to `FILE.2`, and so on."""
    keep: int = Field(default=8, ge=1, le=1000)
    """So many of those, at most."""
    agents: bool = False
    """Also what agents ask for and get (their claims, beats and reports; jobs' events have what came of them)."""


class Quota(_Table):
    """What one may have. None: as much as there is."""

    jobs: int | None = Field(default=None, ge=0, le=MOST)
    """That have not ended."""
    cores: int | None = Field(default=None, ge=0, le=MOST)
    """Of running jobs. What runs goes on; no further job is started."""
    stored_gib: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Checkpoints and outputs. Whoever has more submits and starts nothing new; what was begun is saved and goes on."""

    @property
    def most(self) -> Most:
        """The same as a decision takes it."""
        stored_bytes = None if self.stored_gib is None else int(self.stored_gib * GIB)
        return Most(self.jobs, self.cores, stored_bytes)


class UserQuota(Quota):
    """What each user may have."""

    jobs: int | None = Field(default=200_000, ge=0, le=MOST)


class GroupQuota(Quota):
    """What one group, and each of its users, may have."""

    jobs: int | None = Field(default=1_000_000, ge=0, le=MOST)
    sizes: int | None = Field(default=256, ge=1, le=MOST)
    """Different sizes (cores and memory) of the jobs that have not ended: each claim looks at every size that waits."""
    user: UserQuota = UserQuota()

    @property
    def group_most(self) -> GroupMost:
        """The same as a decision takes it."""
        return GroupMost(self.most, self.user.most, self.sizes)


class QuotaSettings(_Table):
    """`[quotas]`: what groups and their users may have at once."""

    default: GroupQuota = GroupQuota()
    group: dict[GroupName, GroupQuota] = {}
    """For a group of that name, in place of the default as a whole."""

    @property
    def rules(self) -> QuotaRules:
        """The same as a decision takes it."""
        groups = {name: quota.group_most for name, quota in self.group.items()}
        return QuotaRules(self.default.group_most, groups)


UnixName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$")]


class MungeRule(_Table):
    """`[[munge.allow]]`: what a Unix user, or each member of a Unix group, may do."""

    user: UnixName | None = None
    unix_group: UnixName | None = None
    role: Literal["user", "manager", "admin", "metrics"] = "user"
    """`manager`: a user who may change all jobs of the group."""
    group: GroupName | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.user is None) == (self.unix_group is None):
            raise ValueError("a rule of [[munge.allow]] names either a user or a unix_group")
        if self.role in {"user", "manager"} and self.group is None:
            raise ValueError(f"role {self.role!r} needs the group whose jobs it is for")
        return self


class MungeSettings(_Table):
    """`[munge]`: users of the cluster who need no token, because munge says who they are.

    Root of any node that has the cluster's munge key can be any user: admit admins here only if that is acceptable.
    """

    allow: tuple[MungeRule, ...] = ()
    """The first rule that fits counts. None: everybody needs a token."""
    socket: Path | None = None
    """munged's, if it is not where munge looks for it."""
    timeout_s: float = Field(default=5, gt=0, le=3600)
    """For one call of a munge program."""


class StorageSettings(_Table):
    """`[storage]`: the folder that head and nodes share."""

    folder: Path = Path("/var/lib/gleaner/storage")


class ClientSettings(_Table):
    """`[client]`: how the command line reaches control."""

    url: str = "http://127.0.0.1:8642"
    token_file: Path = Path("~/.config/gleaner/token")
    ca_file: Path | None = None
    timeout_s: float = Field(default=30, gt=0)
    proof: Literal["auto", "token", "munge"] = "auto"
    """How `glean` proves who asks; `auto`: by the token if its file is there, else by munge if that runs here."""
    munge_socket: Path = Path("/run/munge/munge.socket.2")


class Settings(FileSettings):
    """Everything that the control program and the command line can be told."""

    model_config = SettingsConfigDict(env_prefix="GLEANER_", env_nested_delimiter="__")

    file_variable: ClassVar[str] = "GLEANER_SETTINGS"
    default_file: ClassVar[Path] = Path("/etc/gleaner/gleaner.toml")

    queue: QueueSettings = QueueSettings()
    rounds: RoundSettings = RoundSettings()
    rates: RateSettings = RateSettings()
    groups: GroupSettings = GroupSettings()
    governing: GoverningSettings = GoverningSettings()
    migration: MigrationSettings = MigrationSettings()
    cluster: ClusterSettings = ClusterSettings()
    api: ApiSettings = ApiSettings()
    audit: AuditSettings = AuditSettings()
    quotas: QuotaSettings = QuotaSettings()
    munge: MungeSettings = MungeSettings()
    storage: StorageSettings = StorageSettings()
    client: ClientSettings = ClientSettings()
