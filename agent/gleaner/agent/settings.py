"""The agent's settings: a TOML file on the node, then the environment (`GLEANER_AGENT_...`) on top."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

DEFAULT_FILE = Path("/etc/gleaner/agent.toml")


class AgentSettings(BaseSettings):
    """What an agent is told by its site. An unknown key is an error."""

    model_config = SettingsConfigDict(env_prefix="GLEANER_AGENT_", extra="forbid", frozen=True)

    control_url: str = "http://127.0.0.1:8642"
    ca_file: Path | None = None
    """The certificate authority of control's certificate, if it is not one that the system trusts."""
    storage: Path = Path("/var/lib/gleaner/storage")
    """The folder that all nodes share."""
    work: Path = Path("/var/lib/gleaner/work")
    """A folder on the node's own disk, for the jobs' folders."""
    runtime: Literal["docker"] = "docker"
    docker_url: str = "unix:///var/run/docker.sock"
    cpus: int | None = Field(default=None, ge=1)
    """Cores that jobs may use; by default those that the allocation has."""
    memory_mib: int | None = Field(default=None, ge=1)
    save_bandwidth_mib_s: float = Field(default=20, gt=0)
    """Assumed until this node has measured its own: memory saved and published per second, all jobs together."""
    margin_s: float = Field(default=20, ge=0)
    """Kept free before the end, on top of the estimated time to save."""
    saves_at_once: int = Field(default=4, ge=1)
    """More saves than this wait for their turn, so that they do not slow each other."""
    shortest_slice_s: float = Field(default=300, ge=0)
    """No job is begun when less time than this is left before saving starts."""
    request_timeout_s: float = Field(default=15, gt=0)
    idle_s: float = Field(default=60, ge=0)
    """An agent without work ends after this long."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, settings_file())


def settings_file() -> Path | None:
    """The file that settings are read from, or None when there is none."""
    named = os.environ.get("GLEANER_AGENT_SETTINGS")
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None
