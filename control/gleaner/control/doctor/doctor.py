"""`glean doctor`: all checks, and the detection of a machine's role."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from gleaner.agent.privileged.common import config
from gleaner.control.doctor import control_checks, machine_checks, node_checks, slurm_checks
from gleaner.control.doctor.check import CHECKS, examine
from gleaner.control.doctor.finding import MachineRole

__all__ = ("CHECKS", "MODULES", "age_of_this_program_s", "examine", "find_role")
MODULES = (control_checks, machine_checks, node_checks, slurm_checks)
"""The modules of checks. Loading them fills `check.CHECKS`, in the order in which people read the checks."""
_OF_CONTROL = ("/etc/systemd/system/gleaner-control.service", "/var/lib/gleaner/queue.db", "/etc/gleaner/tls/key.pem")


def find_role(exists: Callable[[str], bool]) -> MachineRole:
    """Return the probable role of a machine, from the files on it.

    >>> find_role(lambda path: path == "/etc/gleaner/privileged.json")
    <MachineRole.NODE: 'node'>
    >>> find_role(lambda path: False)
    <MachineRole.CLIENT: 'client'>
    """
    if exists(config.CONFIG_FILE):
        return MachineRole.NODE
    return MachineRole.CONTROL if any(map(exists, _OF_CONTROL)) else MachineRole.CLIENT


def age_of_this_program_s() -> float:
    """Return the time since this program was started. The kernel counts it in hundredths of a second."""
    started = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK"))
