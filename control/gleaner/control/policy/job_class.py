"""The class of a regular job, as its owner declares it (OMFS, section II)."""

from enum import IntEnum


class JobClass(IntEnum):
    """The class of a job. The numbers are those of traces and of the simulator."""

    NON_PREEMPTIBLE = 0
    """The job runs to its end."""
    PREEMPTIBLE = 1
    """The job can be killed, and then starts from the beginning."""
    CHECKPOINTABLE = 2
    """The job can be saved, and then continues from its checkpoint."""
