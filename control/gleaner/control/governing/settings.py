"""`[governing]`: who is entitled to what of which partitions, and how it is given back."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class GoverningSettings(BaseModel):
    """`[governing]`. See deploy/INSTALL.md for the steps: off, dry-run for a week, one partition, all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "dry-run", "on"] = "off"
    """`dry-run`: everything is decided and logged, nothing is done."""
    partitions: tuple[str, ...] = ()
    """The partitions whose jobs wait for our word. Not the agents' own."""
    entitled: dict[str, float] = {}
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
    def _at_most_all(self) -> Self:
        if any(share < 0 for share in self.entitled.values()) or sum(self.entitled.values()) > 100 + 1e-9:
            total = sum(self.entitled.values())
            raise ValueError(f"entitled adds up to {total:g} %; each share is at least 0, all together at most 100")
        if self.mode != "off" and not self.partitions:
            raise ValueError(f"mode is {self.mode!r}, but no partitions are named that are to be governed")
        return self
