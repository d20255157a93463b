"""The agent's settings: a TOML file on the node, then the environment (`GLEANER_AGENT_...`) on top."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gleaner.agent.common.settings_sources import Addresses, FileSettings
from gleaner.agent.privileged.common.disk_usage import MOST_INODES
from gleaner.agent.runtime.factory import Kind


class SiteAgentSettings(FileSettings):
    """The settings of a site's agents."""

    model_config = SettingsConfigDict(env_prefix="GLEANER_AGENT_")

    file_variable: ClassVar[str] = "GLEANER_AGENT_SETTINGS"
    default_file: ClassVar[Path] = Path("/etc/gleaner/agent.toml")

    control_url: Addresses = ("http://127.0.0.1:8643",)
    """The agents' port of each control program, with the name in its certificate. Agents use the first that responds
    and leads."""
    ca_file: Path | None = None
    """The certificate authority of control's certificate, if the system does not trust it."""
    storage: Path = Path("/var/lib/gleaner/storage")
    """The folder that all nodes share."""
    work: Path = Path("/var/lib/gleaner/work")
    """A folder on the node's own disk, for the jobs' folders."""
    runtime: Kind = "auto"
    """The runtime of containers. `auto` means Docker if the engine responds and has our runtime, and otherwise the
    node helper (`criu`)."""
    images: Path | None = None
    """The folder with image files (`runtime.images`) from which a node with the node helper loads missing images."""
    images_allowed: tuple[str, ...] = ("gleaner/*",)
    """The names of images that jobs can run (`registry.site/physics/*`). No other image is pulled or started. `*`
    allows all."""
    images_pull: bool = True
    """With true, an image that the node lacks is pulled from its registry. Choose false [if no registry can be
    reached](nodes.md#which-images-may-run)."""
    images_pushed: bool = True
    """With true, a job can also run an image that its group has pushed."""
    images_keep_days: float = Field(default=30, ge=0)
    """An image that an agent has pulled is removed after this many days without use, or when the disk is full."""
    images_limit_gib: float = Field(default=200, gt=0)
    """The maximum total size of the images that agents have loaded on the node. The least recently used image is
    removed first."""
    disk_mib_per_job: int = Field(default=20_480, ge=1)
    """The maximum size of a job's folder and all other files that it writes on the node. A job that exceeds it
    fails."""
    inodes_per_job: int = Field(default=500_000, ge=1, le=MOST_INODES)
    """The maximum number of files and folders that a job can have on the node's disk."""
    disk_reserve_mib: int = Field(default=1024, ge=0)
    """The space that must stay free on the disk ([the consequences](nodes.md#when-a-disk-gets-full)). Choose more if
    other services share `/var`."""
    docker_url: str = "unix:///var/run/docker.sock"
    """The socket of Docker Engine."""
    cpus: int | None = Field(default=None, ge=1)
    """The number of cores that jobs can use. The default is all cores of the allocation."""
    memory_mib: int | None = Field(default=None, ge=1)
    """The memory for jobs, including 64 MiB for their restores. The default is all memory of the allocation."""
    save_bandwidth_mib_s: float | None = Field(default=None, gt=0)
    """The assumed rate at which a node saves its jobs' memory to the storage, until it has measured the rate. The
    default is typical for the node's runtime (`save_cost.ASSUMED_MIB_S`)."""
    margin_s: float = Field(default=10, ge=0)
    """The time between the estimated end of all saves and the end of the agent. In the last three seconds of this
    time (`deadlines.SHUTDOWN_GRACE_S`, also the minimum), the agent gives up operations that hang. Choose a longer
    time if the speed of the storage varies."""
    kill_wait_s: float | None = Field(default=None, ge=0)
    """The agent plans to end this long before the end of its Slurm job, and only a late save uses this time. The
    default is Slurm's KillWait, or 0 without Slurm. Set 0 only if the storage never hangs."""
    saves_at_once: int | None = Field(default=None, ge=1)
    """The maximum number of simultaneous saves. The default depends on the number of cores
    (`limiter.default_saves_at_once`). Choose 1 if several writers slow down the storage."""
    periodic_saves: Literal["auto"] | bool = "auto"
    """With `true`, jobs are also saved while they run, at the best interval. With `auto`, this happens only if
    control knows how often nodes are lost."""
    lazy_restore: Literal["auto", "never"] = "auto"
    """With `auto`, restored jobs run before all their memory is loaded, on nodes that support it (Linux 5.15)."""
    early_saves: bool = True
    """With true, all jobs are saved early in the slice on a node that has not measured enough saves. Choose false
    only if a lost first slice does not matter."""
    shortest_period_s: float = Field(default=60, gt=0)
    """The minimum time between two saves of a running job."""
    shortest_slice_s: float = Field(default=300, ge=0)
    """No job starts if less time than this is left before the save at the agent's end."""
    request_timeout_s: float = Field(default=15, gt=0, le=3600)
    """The time limit for one request to control."""
    idle_s: float = Field(default=60, ge=0)
    """An agent without a job ends after this time."""
