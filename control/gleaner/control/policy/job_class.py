"""What may be done to a regular job that runs: its owner says so (OMFS, section II)."""

from enum import IntEnum


class JobClass(IntEnum):
    """The numbers are those of `policy.omfs`."""

    NON_PREEMPTIBLE = 0
    """It is left alone."""
    PREEMPTIBLE = 1
    """It may be killed, and starts over."""
    CHECKPOINTABLE = 2
    """It may be saved, and goes on."""
