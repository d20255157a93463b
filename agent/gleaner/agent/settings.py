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
    """The agents' door of each control program, with the name that stands in its certificate. The first that answers
    and leads is used."""
    ca_file: Path | None = None
    """The certificate authority of control's certificate, if it is not one that the system trusts."""
    storage: Path = Path("/var/lib/gleaner/storage")
    """The folder that all nodes share."""
    work: Path = Path("/var/lib/gleaner/work")
    """A folder on the node's own disk, for the jobs' folders."""
    runtime: Kind = "auto"
    """The runtime of containers. `auto`: Docker if its engine answers and has our runtime, else the helper (`criu`)."""
    images: Path | None = None
    """With the node helper: the folder with image files (`runtime.images`) from which a node loads missing images."""
    images_allowed: tuple[str, ...] = ("gleaner/*",)
    """The names of images that jobs may run (`registry.site/physics/*`); no other is pulled or started. `*`: all."""
    images_pull: bool = True
    """True: an image that the node lacks is pulled from its registry. False where no registry can be reached: then a
    job whose image is on no node is refused when it is submitted."""
    images_pushed: bool = True
    """True: a job may also run an image that its own group has pushed. False where only the images of
    `images_allowed` may run."""
    images_keep_days: float = Field(default=30, ge=0)
    """An image that an agent has pulled is removed after this many days without use, or when the disk is full."""
    images_limit_gib: float = Field(default=200, gt=0)
    """The most that all images that agents have brought to the node take together. When one more needs room, the one
    that was not used for the longest time is removed first. An image that a container uses stays."""
    disk_mib_per_job: int = Field(default=20_480, ge=1)
    """The most that a job may have on the node's disk: its folder and all other files that it writes. A job with more
    ends as failed. Larger for jobs that write much."""
    inodes_per_job: int = Field(default=500_000, ge=1, le=MOST_INODES)
    """The most files and folders that a job may have on the node's disk."""
    disk_reserve_mib: int = Field(default=1024, ge=0)
    """With less free space on the disk, no job starts, and the job that uses most is saved; with less than half of it,
    that job is ended. Larger where other services share `/var`."""
    docker_url: str = "unix:///var/run/docker.sock"
    """The socket of Docker Engine."""
    cpus: int | None = Field(default=None, ge=1)
    """The cores that jobs may use. By default all cores of the allocation."""
    memory_mib: int | None = Field(default=None, ge=1)
    """The memory for jobs and, of that, 64 MiB for their restores. By default all memory of the allocation."""
    save_bandwidth_mib_s: float | None = Field(default=None, gt=0)
    """The rate at which a node saves memory to the storage, all jobs together. It counts until the node has measured
    its own. By default a usual rate for the node's runtime (`save_cost.ASSUMED_MIB_S`). Lower where storage is
    slow."""
    margin_s: float = Field(default=10, ge=0)
    """The time between the estimated end of all saves and the end of the agent. In its last three seconds
    (`deadlines.SHUTDOWN_GRACE_S`, also the least) the agent gives up what hangs. Larger where the speed of the storage
    varies."""
    kill_wait_s: float | None = Field(default=None, ge=0)
    """The agent plans to end this long before the end of its Slurm job. Only a late save uses this time. By default
    Slurm's KillWait; 0 without Slurm. 0 only where no storage ever hangs."""
    saves_at_once: int | None = Field(default=None, ge=1)
    """The most saves at the same time; more would slow each other. By default it follows from the number of cores
    (`limiter.default_saves_at_once`). 1 where storage slows down with several writers."""
    periodic_saves: Literal["auto"] | bool = "auto"
    """Save jobs also while they run, at the best interval. `auto`: only if control knows how often nodes are lost.
    true: always."""
    early_saves: bool = True
    """Save all jobs early in the slice on a node that has not measured enough saves. False only where a lost first
    slice does not matter."""
    shortest_period_s: float = Field(default=60, gt=0)
    """The least time between two saves of a running job."""
    shortest_slice_s: float = Field(default=300, ge=0)
    """No job starts when less time than this is left before the save at the end."""
    request_timeout_s: float = Field(default=15, gt=0, le=3600)
    """The longest that one request to control may take."""
    idle_s: float = Field(default=60, ge=0)
    """An agent that has had no job for this long ends."""
