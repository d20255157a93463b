"""Settings of the services and of the command line: a TOML file, then the environment on top.

The file is the one named by `GLEANER_SETTINGS`, else `/etc/gleaner/gleaner.toml` if it is there. A variable
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
"""The longest time for which a call is waited for: the system's own waits end at 24 days."""
LARGEST_GIB = 10**9
"""The largest size in GiB: its bytes are a number that every database can hold."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""The hosts that only this machine reaches."""
GroupName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    _usable = field_validator("*")(usable)


class QueueSettings(_Table):
    """`[queue]`: the place of the queue, its time limits, and what is kept."""

    url: str = "sqlite:////var/lib/gleaner/queue.db"
    """The database, as a URL of SQLAlchemy; `postgresql+psycopg://...` for PostgreSQL."""
    secret_key_file: Path = Path("/var/lib/gleaner/secrets.key")
    """The key that encrypts groups' secrets in the database: a file of the service account, mode 0600, on each machine
    that runs control and on no node. `glean control prepare` makes it. A new key goes into a new first line."""
    lease_s: float = Field(default=180, gt=0)
    """The time for which a silent agent keeps its jobs. Longer where the network has long gaps."""
    heartbeat_s: float = Field(default=20, gt=0)
    """An agent tells control this often that it is there."""
    retries: int = Field(default=2, ge=0, le=100)
    """The number of times that a job is started over after its own failure, unless the job says otherwise."""
    losses_until_held: int = Field(default=3, ge=1)
    """A job that is lost together with its agent this often in a row, on different nodes, is held."""
    keep_days: int = Field(default=90, ge=1)
    """Lines that jobs have printed, and events, are removed this long after the jobs' end. Results stay. Agents that
    never got a job are also removed. Shorter where the database grows too large."""
    keep_decisions: int = Field(default=200_000, ge=1)
    """The number of stored decisions that are kept. The oldest of more are removed, once an hour. Decisions older than
    `keep_days` are always removed."""
    keep_decisions_mib: int = Field(default=2000, ge=1)
    """The size of all stored decisions together, compressed as they are stored. The oldest of more are removed, too.
    Larger where `glean why` is to reach back further."""
    log_lines_per_job: int = Field(default=1_000_000, ge=1)
    """The number of lines of a job's log that are kept. The oldest lines of a longer log are removed, once an hour."""
    log_mib_per_job: int = Field(default=64, ge=1)
    """The size of a job's log that is kept. The oldest lines of a larger log are removed at once. Smaller where many
    jobs print much: all of them may reach it."""

    @property
    def log_bytes_per_job(self) -> int:
        """The size of a job's log that is kept, in bytes."""
        return self.log_mib_per_job * 2**20

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> Self:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError("lease_s must be at least twice heartbeat_s, or one lost heartbeat loses the jobs")
        return self


class RoundSettings(_Table):
    """`[rounds]`: the instants at which agents end, and the number of agents."""

    length_s: float = Field(default=3600, ge=SHORTEST_ROUND_S)
    """All agents end at multiples of this time since `origin_s`. Shorter where preemption is off and wide jobs wait;
    longer where saving is slow."""
    origin_s: float = 0
    """The rounds are counted from this time, in seconds since the epoch."""
    synchronised: bool = True
    """False gives every agent the full length from its own start (for comparison; regular jobs suffer)."""
    shortest_slice_s: float = Field(default=600, ge=5)
    """The shortest time for which an agent is submitted. Unless it is set, it is half a round at most. Choose at
    least ten times a save and a restore together."""
    agent_needs_s: float = Field(default=55, ge=0)
    """The time that an agent needs to begin any job. No agent is submitted for less, either. It is the sum of the
    agent's start (5 s), Slurm's KillWait (30 s), and two of the agents' own settings: `margin_s` (10 s; an agent sends
    its last reports in it) and `shortest_slice_s`, of which 10 s are counted here. Unless it is set, it is half a
    round at most."""
    poll_s: float = Field(default=20, ge=1)
    """One `sinfo` and one `squeue` this often. Not below 10 on a busy controller."""
    pending_limit_s: float = Field(default=300, gt=0)
    """Agents that Slurm has not started after this long are withdrawn, but for one. Then none is submitted for a while,
    twice as long each time and 10 minutes at most, until Slurm starts an agent."""
    agents_at_most: int = Field(default=1000, ge=0)
    """The most agents at one time. Begin with a few."""
    failures_until_excluded: int = Field(default=3, ge=1)
    """A node on which agents fail this often in a row is excluded for an hour, twice as long each time, at most for a
    day. Where agents end before anybody sees them at so
    many looks in a row, wherever they begin, none is submitted for a while, of 10 minutes at most."""

    @model_validator(mode="before")
    @classmethod
    def _half_a_round_at_most(cls, given: object) -> object:
        """Return the settings, with those that are not set fitted to the rounds' length.

        An admin who sets short rounds need not know of the other settings.
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
        """The longest time that a job can count on having on one agent; that may start a tenth of a round late."""
        return 0.9 * self.length_s - self.agent_needs_s

    @property
    def least_slice_s(self) -> float:
        """The shortest time for which an agent is submitted. With less, it would begin no job, or none worth it."""
        return max(self.shortest_slice_s, self.agent_needs_s)


class RateSettings(_Table):
    """`[rates]`: what control learns from agents that were lost."""

    half_life_days: float = Field(default=60, gt=0)
    """An agent that was lost, or that lasted, counts half after so many days."""
    assumed_mtbf_days: float = Field(default=30, gt=0)
    """The assumed mean time for which a node's agents last without being lost. It counts while little was seen. Shorter
    where nodes die often: it sets how often long rounds save."""

    @property
    def rules(self) -> RateRules:
        """The settings as a decision takes them."""
        return RateRules(self.half_life_days * DAY_S, self.assumed_mtbf_days * DAY_S)


class HistorySettings(_Table):
    """`[history]`: the history of node time, from which the page and `glean report` are made."""

    keep_days: int = Field(default=1100, ge=40)
    """Hours of node time are kept this long. Ten minutes are kept for 16 days, minutes for two."""
    watts_per_core: float | None = Field(default=None, gt=0, le=MOST)
    """The power that a core takes while it computes, over what it takes while it is idle. With it, the report estimates
    the energy that jobs have taken."""


PerCent = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Factor = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]


def _at_most_all(entitled: Mapping[str, float], or_else: str) -> None:
    """Raise `ValueError` if the parts are more than 100 % together, with an allowance for rounding.

    `or_else` is the end of the error's line.
    """
    given = math.fsum(entitled.values())
    if given > 100 + 1e-9:
        raise ValueError(f"entitled adds up to {given:g} {or_else}")


class GroupSettings(_Table):
    """`[groups]`: the part of the cores of all live agents that each group is entitled to."""

    entitled: dict[str, PerCent] = {}
    """Per cent by group. A group that holds less than its part goes before groups that hold theirs."""
    multiplier: dict[str, Factor] = {}
    """A group's target is its part times this factor; 1 for a group that is not named."""
    others: Literal["equal", "none"] = "equal"
    """The part that is not given to named groups. `equal`: the other groups that have jobs share it equally. `none`:
    the other groups get only what no group below its target asks for."""
    from_slurm: bool = False
    """Take the groups' parts from the shares of Slurm's accounts of the same names. Of use where groups are
    Slurm's accounts."""

    @model_validator(mode="after")
    def _no_more_than_all(self) -> Self:
        _at_most_all(self.entitled, "per cent; the groups together can have 100 at most")
        if self.from_slurm and self.entitled:
            raise ValueError("entitled and from_slurm contradict each other: the parts come from here or from Slurm")
        return self

    @property
    def rules(self) -> ShareRules:
        """The settings as a decision takes them."""
        return ShareRules(self.entitled, self.multiplier, self.others == "equal")


class MigrationSettings(_Table):
    """`[migration]`: migrations of jobs from one agent to another in the background, and the time for any migration."""

    policy: Literal["none", "compaction", "priorities"] = "none"
    """`compaction`: empty the partly used agents, so that their nodes are free again before the boundary.
    `priorities`: migrate jobs to the preferred nodes."""
    prefer: tuple[str, ...] = ()
    """Nodes, as in `node[1-8]`, the most preferred first; all others come last."""
    every_s: float = Field(default=30, ge=1)
    """The background migrates at most one job in this time, and none while any job waits."""
    patience_s: float = Field(default=120, ge=10)
    """The time that a migration may take. A job that is not saved by then stays where it is. A job that was saved for a
    certain node, and that no agent there has claimed by then, may go on anywhere. Longer where saving is slow."""
    assumed_s: float = Field(default=60, gt=0)
    """The assumed time to save and restore a job, where nothing was measured."""

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
    """`[entitlements]`: the owners' entitlements in their partitions, and how owners get them back.

    See docs/admin/entitlements.md for the steps: off, dry-run for a week, one partition, all.
    """

    mode: Literal["off", "dry-run", "on"] = "off"
    """`dry-run`: everything is decided and logged, and nothing is done."""
    partitions: tuple[str, ...] = ()
    """The owners' partitions: their jobs are held until control releases them. The agents' is none of them."""
    entitled: dict[str, PerCent] = {}
    """Per cent of the partitions' CPUs, by Slurm account. The jobs of other accounts run on what is idle."""
    quantum_s: float = Field(default=1800, ge=0)
    """The time that a job runs before it is among the first to be preempted."""
    quantum_protects: bool = False
    """True: a job is not preempted at all before that. There are fewer saves, and an owner may wait for a quantum."""
    grace_s: float = Field(default=120, ge=5)
    """The time that a preempted job has to be gone. A job that is not gone by then is left alone for `retry_s`."""
    retry_s: float = Field(default=3600, gt=0)
    """The time after which a job that did not go may be told again."""
    saves_per_hour_at_most: int = Field(default=60, ge=0)
    """The most of the owners' jobs that are preempted in an hour. Agents do not count."""
    settle_s: float = Field(default=20, gt=0)
    """A job that was released for what is idle, and has not started after this long, is taken to need a single node."""
    poll_s: float = Field(default=5, ge=1)
    """Control looks at the owners' jobs this often."""
    slurm_admin_socket: Path = Path("/run/gleaner/slurm-admin.sock")
    """The socket of the Slurm admin service."""
    slurm_admin_timeout_s: float = Field(default=30, gt=0, le=LONGEST_CALL_S)
    """The time for one request to the Slurm admin service."""

    @model_validator(mode="after")
    def _has_partitions(self) -> Self:
        _at_most_all(self.entitled, "%; each share is at least 0, all together at most 100")
        if self.mode != "off" and not self.partitions:
            raise ValueError(f"mode is {self.mode!r}, but no partitions are named that have entitlements")
        return self


class ClusterSettings(_Table):
    """`[cluster]`: the scheduler, and how agents are submitted to it."""

    backend: Literal["slurm", "pyslurm", "auto", "local"] = "local"
    """`slurm`: by Slurm's programs. `pyslurm`: through PySlurm. `auto`: through PySlurm if it can be used when control
    starts, else by Slurm's programs. `local`: agents are processes of this machine."""
    pyslurm_python: Path | None = None
    """The Python that PySlurm is installed for; this program's own Python by default."""
    partition: str = "gleaner"
    """The agents' partition."""
    account: str | None = None
    """The agents' account; Slurm's default by default."""
    qos: str | None = None
    """The agents' QOS; Slurm's default by default."""
    timeout_s: float = Field(default=30, gt=0, le=LONGEST_CALL_S)
    """The time for one call of a Slurm program, or of PySlurm."""
    submits_per_s: float = Field(default=2, gt=0)
    """The most submissions in a second."""
    agent_command: tuple[str, ...] = Field(default=("glean-agent",), min_length=1)
    """The agent program, as a node finds it."""
    agent_settings: Path = Path("/etc/gleaner/agent.toml")
    """The agent's settings file on the node."""
    agent_logs: Path = Path("/var/lib/gleaner/work")
    """A folder on the nodes' own disks for what agents print. When an agent ends, its file goes to `agents` in the
    storage. Slurm's own processes hold the file open: if the file were on a storage that hangs, these processes would
    never end, and Slurm would drain the node."""
    local_agents: int = Field(default=1, ge=0)
    """The `local` backend's number of pretended nodes on this machine."""


class ApiSettings(_Table):
    """`[api]`: the addresses at which control listens, and the limits on connections."""

    host: str = "127.0.0.1"
    """The address at which control listens. Any but this machine's own needs TLS."""
    port: int = Field(default=8642, ge=0, le=65535)
    """The people's door: the port for users, admins and the page."""
    agents_port: int = Field(default=8643, ge=0, le=65535)
    """The agents' door: the port for agents, in a process that people cannot slow down."""
    proxies: tuple[str, ...] = ()
    """The addresses of proxies in front of control. What they say of a caller's address is believed, and nobody
    else's word."""
    certificate: Path | None = None
    """The certificate for TLS, with the chain to its authority (PEM)."""
    key: Path | None = None
    """The certificate's key (PEM), mode 0600."""
    connections_at_most: int = Field(default=2000, ge=10)
    """The most connections to each door at one time. For a further one, the one that is idle longest is closed."""

    @model_validator(mode="after")
    def _no_plain_text_off_this_machine(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        if self.certificate is None and self.host not in LOOPBACK:
            raise ValueError(
                f"host {self.host} is reachable from elsewhere: set certificate and key (TLS), or 127.0.0.1"
            )
        return self


class AuditSettings(_Table):
    """`[audit]`: one line of JSON for each write that was asked for, refused ones included."""

    file: Path | None = None
    """The file for the lines. None: they go to control's own log."""
    largest_mib: int = Field(default=64, ge=1)
    """A file that is larger is renamed to `FILE.1`, `FILE.1` to `FILE.2`, and so on."""
    keep: int = Field(default=8, ge=1, le=1000)
    """The most renamed files that are kept."""
    agents: bool = False
    """If True, agents' requests have lines too: claims, heartbeats and reports. Jobs' events tell what came of them."""


class LogSettings(_Table):
    """`[log]`: control's own log, on its error output."""

    format: Literal["text", "json"] = "text"
    """`text` is for people; `json` is an object a line, for programs that collect logs."""


class Quota(_Table):
    """The most that a group or a user may have. None: as much as there is."""

    jobs: int | None = Field(default=None, ge=0, le=MOST)
    """Jobs that have not ended."""
    cores: int | None = Field(default=None, ge=0, le=MOST)
    """Cores of running jobs. At the quota, running jobs go on, and no further job is started."""
    stored_gib: float | None = Field(default=None, ge=0, le=LARGEST_GIB)
    """The size of checkpoints and outputs. Above the quota, no new job is submitted or started. Jobs that have begun
    are saved and go on."""

    def limits(self, *, is_of_user: bool = False) -> tuple[Limit, ...]:
        """Return the quota as a decision takes it."""
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
    """Different sizes (cores and memory) of jobs that have not ended. Each claim looks at every size that waits."""
    user: UserQuota = UserQuota()

    @property
    def all_limits(self) -> tuple[Limit, ...]:
        """The quota as a decision takes it."""
        sizes = () if self.sizes is None else (Limit(Quantity.SIZES, self.sizes),)
        return (*self.limits(), *self.user.limits(is_of_user=True), *sizes)


class QuotaSettings(_Table):
    """`[quotas]`: the most that groups and their users may have at once."""

    default: GroupQuota = GroupQuota()
    group: dict[GroupName, GroupQuota] = {}
    """The quota of a group by its name. It replaces the default as a whole."""

    @property
    def rules(self) -> QuotaRules:
        """The quotas as a decision takes them."""
        groups = {name: quota.all_limits for name, quota in self.group.items()}
        return QuotaRules(self.default.all_limits, groups)


class _StoreSettings(_Table):
    largest_gib: float
    group_gib: float

    @property
    def largest_bytes(self) -> int:
        """The size of one thing, in bytes."""
        return int(self.largest_gib * GIB)

    @property
    def group_bytes(self) -> int:
        """The size of all things of a group, in bytes."""
        return int(self.group_gib * GIB)


class ImageSettings(_StoreSettings):
    """`[images]`: the container images that groups push by themselves."""

    push: bool = True
    """False: nobody may push an image. Those that are there stay."""
    registries: tuple[str, ...] = ()
    """Patterns like those of the agents' `images_allowed`: which images `glean image push NAME docker://...` fetches
    from registries. This tells users where images should come from; who fetches an image with other tools can still
    push the file."""
    largest_gib: float = Field(default=20, gt=0, le=195)
    """The size of one image, all its layers uncompressed."""
    group_gib: float = Field(default=100, ge=0, le=LARGEST_GIB)
    """The size of all images of a group together, with those that only its unended jobs need and those that are being
    sent. What two names mean counts once."""


class InputSettings(_StoreSettings):
    """`[inputs]`: the files and folders that jobs read."""

    largest_gib: float = Field(default=20, gt=0, le=195)
    """The size of one file or folder."""
    group_gib: float = Field(default=100, ge=0, le=LARGEST_GIB)
    """The size of all inputs of a group together, with those that are being sent. What has the same content counts
    once. 0: there are none."""
    keep_days: float = Field(default=7, ge=0, le=MOST)
    """An input that no unended job needs is removed this long after its last use."""
    mounts: tuple[str, ...] = ()
    """The folders of the nodes that jobs may mount, read-only, each at its own path: a software tree, calibration data.
    Each node has its own list, too (`mounts` in `/etc/gleaner/privileged.json`)."""

    @field_validator("mounts")
    @classmethod
    def _can_be_mounted(cls, folders: tuple[str, ...]) -> tuple[str, ...]:
        for folder in folders:
            if why := mount_folders.fault(folder):
                raise ValueError(f"{folder!r} {why}")
        return folders

    urls: tuple[str, ...] = ()
    """The beginnings of URLs from which agents may fetch inputs, like `https://data.example.org/pub/`,
    `https://*.example.org/`, `s3://bucket/` of Amazon's, `s3://s3.example.org/bucket/`,
    `root://eos.example.org//eos/atlas/` of XRootD, `roots://...` of XRootD over TLS, or `file:///data/public/`.
    Empty: no URL is an input. [Who checks redirects](storage.md#who-enforces-which-rule)."""
    fetch_s: float = Field(default=3600, gt=0, le=LONGEST_CALL_S)
    """The longest time to fetch one URL."""
    silent_s: float = Field(default=60, gt=0, le=LONGEST_CALL_S)
    """A server that sends nothing for so long is given up; the job waits, and is tried again."""

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            allowed_urls.location(url)
        return urls

    @property
    def fetch_rules(self) -> FetchRules:
        """The settings as an agent takes them."""
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
    """The beginnings of the targets that jobs may name, like `file:///data/results/{group}/`,
    `https://dav.example.org/{group}/` or `s3://s3.example.org/results/{group}/`. Each has `{group}`
    once, as the whole name of a folder: the name of the job's group. So no group overwrites what another one has. A
    folder is there on all nodes, and belongs to the agents' user alone. Empty: nothing is delivered."""
    deliver_s: float = Field(default=3600, gt=0, le=LONGEST_CALL_S)
    """The longest time to deliver one result."""
    silent_s: float = Field(default=60, gt=0, le=LONGEST_CALL_S)
    """A target that takes nothing for so long is given up for a while."""
    tries: int = Field(default=20, ge=1, le=1000)
    """After so many failures a delivery is given up. The pause between two tries grows up to ten minutes."""

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
    """The rules; the first that fits counts. Without a rule everybody needs a token."""
    socket: Path | None = None
    """The socket of munged, if it is not where munge looks for it."""
    timeout_s: float = Field(default=5, gt=0, le=3600)
    """The time for one call of a munge program."""


class StorageSettings(_Table):
    """`[storage]`: the folder that control and all nodes share."""

    folder: Path = Path("/var/lib/gleaner/storage")
    """The folder, at the same path everywhere. It belongs to the service account alone."""


class ClientSettings(_Table):
    """`[client]`: control's address for the command line, and the proof of who asks."""

    url: Addresses = ("http://127.0.0.1:8642",)
    """The addresses of control, one for each control program. When one does not answer, the next is asked."""
    token_file: Path = Path("~/.config/gleaner/token")
    """The file with the token, mode 0600."""
    ca_file: Path | None = None
    """The certificate authority of control's certificate, if the system does not trust it."""
    timeout_s: float = Field(default=30, gt=0, le=LONGEST_CALL_S)
    """The time for one request."""
    proof: Literal["auto", "token", "munge"] = "auto"
    """The proof of who asks, for `glean`. `auto`: the token if its file is there, else munge if munge runs here."""
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
        if why := mount_folders.conflict(self.inputs.mounts, targets):  # jobs and agents are one account
            raise ValueError(f"[inputs] mounts: {why}, which has the results of other groups")
        return self
