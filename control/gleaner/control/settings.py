"""Settings of the services and of the command line, from a TOML file and from the environment, which overrides the
file.

The file is the one that `GLEANER_SETTINGS` names, or otherwise `/etc/gleaner/gleaner.toml` if it exists. A variable
`GLEANER_ROUNDS__LENGTH_S=600` sets `length_s` in the table `[rounds]`. An unknown key is an error.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from gleaner.agent.common import allowed_urls
from gleaner.agent.common.settings_sources import MOST, Addresses, FileSettings, usable
from gleaner.agent.messages import FetchRules
from gleaner.agent.privileged.common import mount_folders
from gleaner.control.hostlist import chosen
from gleaner.control.policy.fair_share import ShareRules
from gleaner.control.policy.quotas import GIB, Limit, Quantity, QuotaRules
from gleaner.control.policy.rate_estimates import RateRules

DAY_S = 24 * 3600.0
SHORTEST_ROUND_S = 30
LONGEST_CALL_S = DAY_S
"""The longest time limit for a call. The system's own limit is 24 days."""
LARGEST_GIB = 10**9
"""The largest size in GiB. Every database can store its number of bytes."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""The hosts that only this machine can reach."""
GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    _usable = field_validator("*")(usable)


class QueueSettings(_Table):
    """`[queue]`: the location of the queue, its time limits, and the limits on its records."""

    url: str = "sqlite:////var/lib/gleaner/queue.db"
    """The database, as an SQLAlchemy URL (`postgresql+psycopg://...` for PostgreSQL)."""
    secret_key_file: Path = Path("/var/lib/gleaner/secrets.key")
    """The file with the key that encrypts groups' secrets in the database. It belongs to the service account (mode
    0600) on each machine that runs control. `glean control prepare` creates it. Add a new key as the first line."""
    lease_s: float = Field(default=180, gt=0)
    """The time for which a silent agent keeps its jobs. Choose a longer time if the network is often interrupted."""
    heartbeat_s: float = Field(default=20, gt=0)
    """The interval between an agent's heartbeats."""
    retries: int = Field(default=2, ge=0, le=100)
    """The number of retries after a job's own failures, unless the job sets another number."""
    losses_until_held: int = Field(default=3, ge=1)
    """A job that is lost together with its agent this many times in a row, on different nodes, is held."""
    keep_days: int = Field(default=90, ge=1)
    """Log lines and events of a job are removed this long after its end, as are records of agents that never
    received a job. Choose a shorter time if the database grows too large. `[outputs] keep_days` applies to
    results."""
    keep_decisions_mib: int = Field(default=2000, ge=1)
    """The maximum compressed size of all stored decisions, which `glean why` uses. Once an hour the oldest decisions
    beyond this size, and those older than `keep_days` days, are removed."""
    log_mib_per_job: int = Field(default=64, ge=1)
    """The maximum size of a job's log. Older lines are removed immediately."""

    @property
    def log_bytes_per_job(self) -> int:
        """Return the size of a job's log that is kept, in bytes."""
        return self.log_mib_per_job * 2**20

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> Self:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError("lease_s must be at least twice heartbeat_s, or one lost heartbeat loses the jobs")
        return self


class RoundSettings(_Table):
    """`[rounds]`: the times at which agents end, and the number of agents."""

    length_s: float = Field(default=3600, ge=SHORTEST_ROUND_S)
    """All agents end at multiples of this time since `origin_s`. Choose a shorter time if preemption is off and wide
    jobs wait, and a longer one if saving is slow."""
    origin_s: float = 0
    """The origin of the rounds, in seconds since the epoch."""
    synchronised: bool = True
    """With false, every agent runs for the full length from its own start. Regular jobs then suffer, so use it only
    for comparisons."""
    shortest_slice_s: float = Field(default=600, ge=5)
    """The minimum time for which an agent is submitted. The default is at most half a round. Choose at least ten
    times the duration of a save and a restore."""
    agent_needs_s: float = Field(default=55, ge=0)
    """The time that an agent needs to begin any job. No agent is submitted for a shorter time. It includes the
    agent's start (5 s), Slurm's KillWait (30 s), and the agents' `margin_s` (10 s) and `shortest_slice_s` (10 s of
    it). The default is at most half a round."""
    poll_s: float = Field(default=20, ge=1)
    """The interval between control's polls, each of which runs `sinfo` and `squeue` once. If slurmctld is busy,
    choose at least 10."""
    pending_limit_s: float = Field(default=300, gt=0)
    """Agents that Slurm has not started after this time are withdrawn, except one. Further submissions pause until
    Slurm starts an agent, for at most 10 minutes."""
    agents_at_most: int = Field(default=1000, ge=0)
    """The maximum number of agents."""
    failures_until_excluded: int = Field(default=3, ge=1)
    """A node on which agents fail this many times in a row is [excluded](operate.md#nodes-that-are-excluded). If
    agents end before they register in this many polls in a row, submissions pause for up to 10 minutes."""

    @model_validator(mode="before")
    @classmethod
    def _half_a_round_at_most(cls, given: object) -> object:
        """Return the settings with the missing ones adapted to the length of the rounds.

        An admin who sets short rounds does not need to know the other settings.
        """
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
    def longest_s(self) -> float:
        """Return the longest time that a job can be sure to have on one agent, which might start a tenth of a round
        late."""
        return 0.9 * self.length_s - self.agent_needs_s

    @property
    def least_slice_s(self) -> float:
        """Return the shortest time for which an agent is submitted. With less time, it could not begin a useful job."""
        return max(self.shortest_slice_s, self.agent_needs_s)


class RateSettings(_Table):
    """`[rates]`: estimates of how often agents are lost."""

    half_life_days: float = Field(default=60, gt=0)
    """The time after which the record of an agent, lost or not, counts half as much."""
    assumed_mtbf_days: float = Field(default=30, gt=0)
    """The assumed mean time between losses of a node's agents while there are few observations. It determines how
    often jobs are saved in long rounds."""

    @property
    def rules(self) -> RateRules:
        """Return the settings in the form that a decision needs."""
        return RateRules(self.half_life_days * DAY_S, self.assumed_mtbf_days * DAY_S)


class HistorySettings(_Table):
    """`[history]`: the history of node time, which the web page and `glean report` show."""

    keep_days: int = Field(default=1100, ge=40)
    """Hourly records of node time are kept this long, ten-minute records for 16 days, and one-minute records for two
    days."""
    watts_per_core: float | None = Field(default=None, gt=0, le=MOST)
    """The additional power that a core draws while it computes. If it is set, the report estimates the energy used
    by jobs."""


PerCent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]


def _at_most_all(entitled: Mapping[str, float], or_else: str) -> None:
    """Raise `ValueError` if the parts together exceed 100 %, with an allowance for rounding.

    `or_else` is the end of the error message.
    """
    given = math.fsum(entitled.values())
    if given > 100 + 1e-9:
        raise ValueError(f"entitled adds up to {given:g} {or_else}")


class GroupSettings(_Table):
    """`[groups]`: the part of all live agents' cores to which each group is entitled."""

    entitled: dict[str, PerCent] = {}
    """Each group's percentage. A group that holds less than its part comes before groups that hold all of theirs."""
    multiplier: dict[str, Factor] = {}
    """A group's target is its part times this factor, by default 1."""
    others: Literal["equal", "none"] = "equal"
    """The use of the part that is not assigned to named groups. With `equal`, the other groups that have jobs share
    it equally. With `none`, they receive only cores that no group below its target requests."""
    from_slurm: bool = False
    """With true, the groups' parts are the shares of the Slurm accounts with the same names."""

    @model_validator(mode="after")
    def _no_more_than_all(self) -> Self:
        _at_most_all(self.entitled, "per cent; the groups together can have 100 at most")
        if self.from_slurm and self.entitled:
            raise ValueError("entitled and from_slurm contradict each other: the parts come from here or from Slurm")
        return self

    @property
    def rules(self) -> ShareRules:
        """Return the settings in the form that a decision needs."""
        return ShareRules(self.entitled, self.multiplier, self.others == "equal")


class MigrationSettings(_Table):
    """`[migration]`: background migrations of jobs between agents, and the time limit for any migration."""

    policy: Literal["none", "compaction", "priorities"] = "none"
    """With `compaction`, partly used agents are emptied, so that their nodes become free before the boundary. With
    `priorities`, jobs migrate to the preferred nodes."""
    prefer: tuple[str, ...] = ()
    """The preferred nodes (for example `node[1-8]`), the most preferred first."""
    every_s: float = Field(default=30, ge=1)
    """At most one job is migrated in the background in each period of this length, and none while other jobs wait."""
    patience_s: float = Field(default=120, ge=10)
    """The time limit for one migration. A job that is not saved by then stays, and one that was saved but not
    claimed in time can continue anywhere."""
    assumed_s: float = Field(default=60, gt=0)
    """The assumed duration of a save and a restore of a job that has not been measured."""

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


class EntitlementSettings(_Table):
    """`[entitlements]`: the owners' entitlements in their partitions, and the rules by which owners reclaim them.

    See docs/admin/entitlements.md for the steps: off, dry-run for a week, one partition, all.
    """

    mode: Literal["off", "dry-run", "on"] = "off"
    """With `dry-run`, everything is decided and logged, but not carried out."""
    partitions: tuple[str, ...] = ()
    """The owners' partitions, whose jobs are held until control releases them. They do not include the agents'
    partition."""
    entitled: dict[str, PerCent] = {}
    """Each Slurm account's percentage of the partitions' CPUs. Jobs of other accounts run only on idle CPUs."""
    quantum_s: float = Field(default=1800, ge=0)
    """The time that a job must have run before it is among the first to be preempted."""
    quantum_protects: bool = False
    """With true, a job is not preempted at all before it has run for `quantum_s` seconds. This causes fewer saves,
    but an owner might wait for a quantum."""
    grace_s: float = Field(default=120, ge=5)
    """The time within which a preempted job must leave. A job that stays longer is left alone for `retry_s`
    seconds."""
    retry_s: float = Field(default=3600, gt=0)
    """The time after which a job that did not leave is asked again."""
    saves_per_hour_at_most: int = Field(default=60, ge=0)
    """The maximum number of owners' jobs, not agents, that are preempted in an hour."""
    settle_s: float = Field(default=20, gt=0)
    """A job that was released onto idle CPUs and has not started after this time is assumed to need a single node."""
    poll_s: float = Field(default=5, ge=1)
    """The interval at which control reads the owners' jobs from Slurm."""
    slurm_admin_socket: Path = Path("/run/gleaner/slurm-admin.sock")
    """The socket of the Slurm admin service."""
    slurm_admin_timeout_s: float = Field(default=30, gt=0, le=LONGEST_CALL_S)
    """The time limit for one request to the Slurm admin service."""

    @model_validator(mode="after")
    def _has_partitions(self) -> Self:
        _at_most_all(self.entitled, "%; each share is at least 0, all together at most 100")
        if self.mode != "off" and not self.partitions:
            raise ValueError(f"mode is {self.mode!r}, but no partitions are named that have entitlements")
        return self


class ClusterSettings(_Table):
    """`[cluster]`: the scheduler, and the submission of agents."""

    backend: Literal["slurm", "pyslurm"] = "slurm"
    """With `slurm`, control uses Slurm's commands. With `pyslurm`, it reads nodes and agents through PySlurm."""
    pyslurm_python: Path | None = None
    """The Python for which PySlurm is installed. The default is this program's own Python."""
    partition: str = "gleaner"
    """The agents' partition."""
    account: str | None = None
    """The agents' account. The default is Slurm's default."""
    qos: str | None = None
    """The agents' QOS. The default is Slurm's default."""
    timeout_s: float = Field(default=30, gt=0, le=LONGEST_CALL_S)
    """The time limit for one call to a Slurm command or to PySlurm."""
    submits_per_s: float = Field(default=2, gt=0)
    """The maximum number of submissions per second."""
    agent_command: tuple[str, ...] = Field(default=("glean-agent",), min_length=1)
    """The agent program's path on a node."""
    agent_settings: Path = Path("/etc/gleaner/agent.toml")
    """The agent's settings file on the node."""
    agent_logs: Path = Path("/var/lib/gleaner/work")
    """A folder on each node's own disk for the output of agents, which is copied to `agents` in the storage at their
    end. If the folder were on storage that hangs, Slurm would drain the node."""


class ApiSettings(_Table):
    """`[api]`: the addresses on which control listens, and the limits on connections."""

    host: str = "127.0.0.1"
    """The address on which control listens. Any address other than loopback needs TLS."""
    port: int = Field(default=8642, ge=0, le=65535)
    """The people's port, for users, admins and the page."""
    agents_port: int = Field(default=8643, ge=0, le=65535)
    """The agents' port, served by a process that people cannot slow down."""
    proxies: tuple[str, ...] = ()
    """The addresses of proxies in front of control. Only these proxies are trusted to name a caller's address."""
    certificate: Path | None = None
    """The TLS certificate with its chain (PEM)."""
    key: Path | None = None
    """The certificate's key (PEM), mode 0600."""
    connections_at_most: int = Field(default=2000, ge=10)
    """The maximum number of connections to each port. Above it, a new connection replaces the one that has been idle
    longest."""

    @model_validator(mode="after")
    def _no_plain_text_off_this_machine(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        if self.certificate is None and self.host not in LOOPBACK:
            raise ValueError(
                f"host {self.host} is reachable from elsewhere: set certificate and key (TLS), or 127.0.0.1"
            )
        return self


class SiteSettings(_Table):
    """`[site]`: the site's name and documentation on the web page."""

    name: str = Field(default="", max_length=60)
    """The name of the site or its cluster, shown at the top of each page."""
    documentation: str = Field(default="", pattern="^(https?://[^ ]+/)?$")
    """The URL of a folder with the pages of `docs/`, to which the web page links. It must end with a slash."""


class AuditSettings(_Table):
    """`[audit]`: the audit log, one line of JSON for each write request, including refused ones."""

    file: Path | None = None
    """The file of the audit log. Without it, the lines go to control's own log."""
    largest_mib: int = Field(default=64, ge=1)
    """The size at which the file is renamed to `FILE.1`, `FILE.1` to `FILE.2`, and so on."""
    keep: int = Field(default=8, ge=1, le=1000)
    """The maximum number of renamed files that are kept."""
    agents: bool = False
    """With true, agents' requests (claims, heartbeats and reports) are also logged."""


class LogSettings(_Table):
    """`[log]`: control's own log, on standard error."""

    format: Literal["text", "json"] = "text"
    """`text` is for people. `json` writes one object per line, for programs that collect logs."""


class Quota(_Table):
    """The limits of a group or a user. None means that there is no limit."""

    jobs: int | None = Field(default=None, ge=0, le=MOST)
    """Jobs that have not ended."""
    cores: int | None = Field(default=None, ge=0, le=MOST)
    """Cores of running jobs. At the quota, running jobs continue, but no further job starts."""
    stored_gib: float | None = Field(default=None, ge=0, le=LARGEST_GIB)
    """The size of checkpoints and outputs, [above which no new job begins](people.md#quotas)."""

    def limits(self, *, is_of_user: bool = False) -> tuple[Limit, ...]:
        """Return the quota in the form that a decision needs."""
        stored_bytes = None if self.stored_gib is None else int(self.stored_gib * GIB)
        most = {Quantity.JOBS: self.jobs, Quantity.CORES: self.cores, Quantity.STORED: stored_bytes}
        return tuple(Limit(of, limit, is_of_user) for of, limit in most.items() if limit is not None)


class UserQuota(Quota):
    """The quota of each user."""

    jobs: int | None = Field(default=200_000, ge=0, le=MOST)


class GroupQuota(Quota):
    """The quota of one group, and that of each of its users."""

    jobs: int | None = Field(default=1_000_000, ge=0, le=MOST)
    sizes: int | None = Field(default=256, ge=1, le=MOST)
    """Different sizes (cores and memory) of unended jobs."""
    user: UserQuota = UserQuota()

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """Return the quotas in the form that a decision needs."""
        sizes = () if self.sizes is None else (Limit(Quantity.SIZES, self.sizes),)
        return (*self.limits(), *self.user.limits(is_of_user=True), *sizes)


class QuotaSettings(_Table):
    """`[quotas]`: the limits of groups and their users."""

    default: GroupQuota = GroupQuota()
    group: dict[GroupName, GroupQuota] = {}
    """The quota of each named group."""

    @property
    def rules(self) -> QuotaRules:
        """Return the quotas in the form that a decision needs."""
        groups = {name: quota.all_limits for name, quota in self.group.items()}
        return QuotaRules(self.default.all_limits, groups)


class _StoreSettings(_Table):
    largest_gib: float
    group_gib: float

    @property
    def largest_bytes(self) -> int:
        """Return the largest size of one image or input, in bytes."""
        return int(self.largest_gib * GIB)

    @property
    def group_bytes(self) -> int:
        """Return the largest size of all images or inputs of a group, in bytes."""
        return int(self.group_gib * GIB)


class ImageSettings(_StoreSettings):
    """`[images]`: the container images that groups push themselves."""

    push: bool = True
    """With false, no image can be pushed, but images pushed earlier stay."""
    registries: tuple[str, ...] = ()
    """Patterns like those of the agents' `images_allowed`, for the images that `glean image push NAME docker://...`
    can fetch from registries. A user who fetches an image with other tools can still push the file."""
    largest_gib: float = Field(default=20, gt=0, le=195)
    """The maximum size of one image, with all its layers uncompressed."""
    group_gib: float = Field(default=100, ge=0, le=LARGEST_GIB)
    """The maximum total size of a group's images, including those that only its unended jobs need and those that
    are being uploaded."""


class InputSettings(_StoreSettings):
    """`[inputs]`: the files and folders that jobs read."""

    largest_gib: float = Field(default=20, gt=0, le=195)
    """The maximum size of one file or folder."""
    group_gib: float = Field(default=100, ge=0, le=LARGEST_GIB)
    """The maximum total size of a group's inputs, including those that are being uploaded. Equal contents count
    once. With 0, the site stores no inputs."""
    keep_days: float = Field(default=7, ge=0, le=MOST)
    """An input that no unended job needs is removed this long after its last use."""
    mounts: tuple[str, ...] = ()
    """The folders on nodes that jobs can mount read-only, each at its own path. Each node also has its own list
    (`mounts` in `/etc/gleaner/privileged.json`)."""

    @field_validator("mounts")
    @classmethod
    def _can_be_mounted(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if why := mount_folders.fault(folder):
                raise ValueError(f"{folder!r} {why}")
        return folders

    urls: tuple[str, ...] = ()
    """The beginnings of the URLs from which agents can fetch inputs, for example `https://data.example.org/pub/`,
    `https://*.example.org/`, `s3://bucket/` (Amazon), `s3://s3.example.org/bucket/`,
    `root://eos.example.org//eos/atlas/` (XRootD), `roots://...` (XRootD over TLS), or `file:///data/public/`. See
    also [who checks redirects](storage.md#who-enforces-which-rule)."""
    fetch_s: float = Field(default=3600, gt=0, le=LONGEST_CALL_S)
    """The time limit for fetching one URL."""
    silent_s: float = Field(default=60, gt=0, le=LONGEST_CALL_S)
    """If the server does not respond for this long, the job waits and the fetch is tried again."""

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            allowed_urls.location(url)
        return urls

    @property
    def fetch_rules(self) -> FetchRules:
        """Return the settings in the form that an agent needs."""
        return FetchRules(
            allowed=self.urls, largest_bytes=self.largest_bytes, total_s=self.fetch_s, silent_s=self.silent_s
        )


def _above_groups(entry: str) -> allowed_urls.Location:
    """Return the folder in which a target has one folder for each group. Raises `ValueError`."""
    where = allowed_urls.location(entry)
    if entry.count("{group}") != 1 or "{group}" not in where.folders or "?" in entry:
        raise ValueError(f"{entry} needs {{group}} once, as the whole name of a folder: so each group has its own")
    if where.scheme not in allowed_urls.TARGET_SCHEMES or "*" in where.host:
        raise ValueError(f"{entry} is not on one host of {' or '.join(allowed_urls.TARGET_SCHEMES)}")
    return dataclasses.replace(where, folders=where.folders[: where.folders.index("{group}")])


class OutputSettings(_Table):
    """`[outputs]`: the targets to which agents deliver results."""

    urls: tuple[str, ...] = ()
    """The beginnings of the targets that jobs can name, such as `file:///data/results/{group}/`,
    `https://dav.example.org/{group}/` or `s3://s3.example.org/results/{group}/`. See also [the rules for
    them](storage.md#results-that-are-delivered)."""
    deliver_s: float = Field(default=3600, gt=0, le=LONGEST_CALL_S)
    """The time limit for delivering one result."""
    silent_s: float = Field(default=60, gt=0, le=LONGEST_CALL_S)
    """A delivery that makes no progress for this long is stopped and tried again later."""
    tries: int = Field(default=20, ge=1, le=1000)
    """A delivery is given up after this many failures. The pause between two tries grows to at most ten minutes."""
    keep_days: float | None = Field(default=None, gt=0, le=MOST)
    """Results are removed from the storage this long after the jobs' end. By default they stay until users remove
    them with `glean rm`."""

    @property
    def keep_s(self) -> float | None:
        return None if self.keep_days is None else self.keep_days * DAY_S

    @field_validator("urls")
    @classmethod
    def _are_targets(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        above = {url: _above_groups(url) for url in urls}
        for inner, outer in itertools.permutations(above, 2):
            if above[inner] != above[outer] and above[inner].is_within(above[outer]):
                raise ValueError(f"{inner} is in the folder in which {outer} has those of groups: use another folder")
        return urls


UnixName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,62}$")]


class MungeRule(_Table):
    """`[[munge.allow]]`: the role of a Unix user, or of each member of a Unix group."""

    user: UnixName | None = None
    unix_group: UnixName | None = None
    role: Literal["user", "manager", "admin", "metrics"] = "user"
    """`manager`: a user who is allowed to change all jobs of the group."""
    group: GroupName | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if (self.user is None) == (self.unix_group is None):
            raise ValueError("a rule of [[munge.allow]] names either a user or a unix_group")
        if self.role in {"user", "manager"} and self.group is None:
            raise ValueError(f"role {self.role!r} needs the group whose jobs it is for")
        return self


class MungeSettings(_Table):
    """`[munge]`: users of the cluster who need no token, because munge identifies them.

    The root user of any node with the cluster's munge key can act as any user. Admit admins here only if that is
    acceptable.
    """

    allow: tuple[MungeRule, ...] = ()
    """The rules, of which the first that matches a user applies. Without rules, every user needs a token."""
    socket: Path | None = None
    """The socket of munged, if it is not at the default path."""
    timeout_s: float = Field(default=5, gt=0, le=3600)
    """The time limit for one call to a munge command."""


class StorageSettings(_Table):
    """`[storage]`: the folder that control and all nodes share."""

    folder: Path = Path("/var/lib/gleaner/storage")
    """The folder, at the same path everywhere. It belongs to the service account."""


class ClientSettings(_Table):
    """`[client]`: control's address for the command line, and the user's proof of identity."""

    url: Addresses = ("http://127.0.0.1:8642",)
    """The addresses of control, one for each control program. If one does not answer, the next is tried."""
    token_file: Path = Path("~/.config/gleaner/token")
    """The file with the token, mode 0600."""
    ca_file: Path | None = None
    """The certificate authority of control's certificate, if the system does not trust it."""
    timeout_s: float = Field(default=30, gt=0, le=LONGEST_CALL_S)
    """The time limit for one request."""
    proof: Literal["auto", "token", "munge"] = "auto"
    """`auto` uses the token if its file exists, and otherwise munge if it runs on this machine."""
    munge_socket: Path = Path("/run/munge/munge.socket.2")
    """The socket of munged."""


class Settings(FileSettings):
    """All settings of the control program and the command line."""

    model_config = SettingsConfigDict(env_prefix="GLEANER_", env_nested_delimiter="__")

    file_variable: ClassVar[str] = "GLEANER_SETTINGS"
    default_file: ClassVar[Path] = Path("/etc/gleaner/gleaner.toml")

    queue: QueueSettings = QueueSettings()
    rounds: RoundSettings = RoundSettings()
    rates: RateSettings = RateSettings()
    history: HistorySettings = HistorySettings()
    groups: GroupSettings = GroupSettings()
    entitlements: EntitlementSettings = EntitlementSettings()
    migration: MigrationSettings = MigrationSettings()
    cluster: ClusterSettings = ClusterSettings()
    api: ApiSettings = ApiSettings()
    site: SiteSettings = SiteSettings()
    audit: AuditSettings = AuditSettings()
    log: LogSettings = LogSettings()
    quotas: QuotaSettings = QuotaSettings()
    images: ImageSettings = ImageSettings()
    inputs: InputSettings = InputSettings()
    outputs: OutputSettings = OutputSettings()
    munge: MungeSettings = MungeSettings()
    storage: StorageSettings = StorageSettings()
    client: ClientSettings = ClientSettings()

    @model_validator(mode="after")
    def _nothing_of_ours_is_mounted(self) -> Self:
        targets = [f"/{'/'.join(one.folders)}" for one in map(_above_groups, self.outputs.urls) if one.scheme == "file"]
        for setting, folders in {"[inputs] mounts": self.inputs.mounts, "[outputs] urls": targets}.items():
            if why := mount_folders.conflict(folders, [str(self.storage.folder), str(self.cluster.agent_logs)]):
                raise ValueError(f"{setting}: {why}")
        if why := mount_folders.conflict(self.inputs.mounts, targets):  # jobs and agents use one account
            raise ValueError(f"[inputs] mounts: {why}, which has the results of other groups")
        return self
