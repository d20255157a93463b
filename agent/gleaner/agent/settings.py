"""The agent's settings: a TOML file on the node, then the environment (`GLEANER_AGENT_...`) on top."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from gleaner.agent.common.settings_sources import FileSettings
from gleaner.agent.privileged.common.disk_usage import MOST_INODES
from gleaner.agent.runtime.factory import Kind


class AgentSettings(FileSettings):
    """The settings of a site's agents."""

    model_config = SettingsConfigDict(env_prefix="GLEANER_AGENT_")

    file_variable: ClassVar[str] = "GLEANER_AGENT_SETTINGS"
    default_file: ClassVar[Path] = Path("/etc/gleaner/agent.toml")

    control_url: str = "http://127.0.0.1:8642"
    """Control's address, with the name that stands in its certificate."""
    ca_file: Path | None = None
    """The certificate authority of control's certificate, if it is not one that the system trusts."""
    storage: Path = Path("/var/lib/gleaner/storage")
    """The folder that all nodes share."""
    work: Path = Path("/var/lib/gleaner/work")
    """A folder on the node's own disk, for the jobs' folders."""
    runtime: Kind = "auto"
    """The runtime of containers. `auto`: Docker if its engine answers and has our runtime, else the helper (`criu`)."""
    images: Path | None = None
    """With the node helper: a folder with images as files (`runtime.images`), for those that a node lacks."""
    images_allowed: tuple[str, ...] = ("gleaner/*",)
    """The images that jobs may run, by name (`registry.site/physics/*`); no other is pulled or started. `*`: all."""
    images_pushed: bool = True
    """Jobs may also run the images that their own groups have pushed, whatever `images_allowed` says. False where only
    listed images may run."""
    images_keep_days: float = Field(default=30, ge=0)
    """An image that agents have pulled is removed when it was not used for so long, or when the disk has no room."""
    images_limit_gib: float = Field(default=200, gt=0)
    """All images that agents have brought to the node take at most this. Of those that no container uses, the one that
    was not used for longest goes first."""
    disk_mib_per_job: int = Field(default=20_480, ge=1)
    """A job may have so much on the node's disk: its folder and what else it writes. A job with more ends as failed.
    Larger for jobs that write much."""
    inodes_per_job: int = Field(default=500_000, ge=1, le=MOST_INODES)
    """The same for files and folders."""
    disk_reserve_mib: int = Field(default=1024, ge=0)
    """If less is free, no job begins, and the job that takes most is saved; below half of it, that job is ended. Larger
    where other services share `/var`."""
    docker_url: str = "unix:///var/run/docker.sock"
    """The socket of Docker Engine."""
    cpus: int | None = Field(default=None, ge=1)
    """Cores that jobs may use; by default those that the allocation has."""
    memory_mib: int | None = Field(default=None, ge=1)
    """Memory that jobs may use; by default that of the allocation."""
    save_bandwidth_mib_s: float | None = Field(default=None, gt=0)
    """Assumed until this node has measured its own: memory saved and published per second, all jobs together. By
    default what is usual for the way in which the node saves (`save_cost.ASSUMED_MIB_S`). Lower where storage is
    slow."""
    margin_s: float = Field(default=10, ge=0)
    """Kept free before the agent has to be gone, on top of the estimated time to save and its safety. The last three
    seconds of it (`deadlines.SHUTDOWN_GRACE_S`, the least that counts) are for leaving behind what hangs. Larger where
    storage is uneven."""
    kill_wait_s: float | None = Field(default=None, ge=0)
    """The agent plans to be gone so long before its end; only a late save uses what is left. By default Slurm's
    KillWait, without Slurm nothing. 0 only where no storage ever hangs."""
    saves_at_once: int | None = Field(default=None, ge=1)
    """More saves than this wait for their turn, so that they do not slow each other. By default by the number of cores
    (`limiter.default_saves_at_once`). 1 where storage slows down with several writers."""
    periodic_saves: Literal["auto"] | bool = "auto"
    """Save jobs while they go on, at the optimal interval. `auto`: if control knows how often nodes are lost; true:
    always."""
    early_saves: bool = True
    """Save all jobs early in the slice on a node of which too little is known of what saves cost. False only where a
    lost first slice does not matter."""
    shortest_period_s: float = Field(default=60, gt=0)
    """A job is not saved more often than this while it goes on."""
    shortest_slice_s: float = Field(default=300, ge=0)
    """No job is begun when less time than this is left before saving starts."""
    request_timeout_s: float = Field(default=15, gt=0, le=3600)
    """The time for one request to control."""
    idle_s: float = Field(default=60, ge=0)
    """An agent without work ends after this long."""
