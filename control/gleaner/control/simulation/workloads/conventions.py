"""Where those who simulate a log differ in what they take a job of it to be. The defaults are the usual choices."""

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

Size: TypeAlias = Literal["requested", "allocated"]


class Conventions(BaseModel):
    """`[workload.conventions]`: what an answer that another simulator gave may need to be met."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Size | None = None
    """Which of two numbers of processors is the job's; where the log does not say that one, the other stands in. By
    default what was requested in the Standard Workload Format, and what was allocated in Slurm's accounting."""
    past_limit: Literal["ends", "raised"] = "ends"
    """A job that ran past its limit ends there, or has its limit raised to its run time."""
    zero_run_time: Literal["kept", "second", "left-out"] = "kept"
    """A job that ran for 0 s is kept, takes a second, or is left out."""
    too_large: Literal["left-out", "shrunk"] = "left-out"
    """A job larger than the machine is left out, or becomes as large as the machine."""
    ties: Literal["number", "file"] = "number"
    """Jobs that were submitted at one instant are in the order of their numbers, or of the lines of the file."""


USUAL = Conventions()
