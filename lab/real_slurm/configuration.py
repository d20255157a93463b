"""The configuration with which the real Slurm works like our replay: whole nodes, in order of submission, EASY."""

import math
from dataclasses import dataclass

from gleaner.control.simulation.model import Seconds, Workload

HOST = "lab"
"""The name of the container, and of the user in the image `images/slurm-lab`."""
_PORT = 20_000
CGROUP_CONF = "CgroupPlugin=disabled\n"


@dataclass(frozen=True, slots=True)
class SlurmSettings:
    """Slurm's settings that can affect a replay."""

    nodes: int
    interval_s: int = 30
    """bf_interval, the time between two passes of backfilling. This is Slurm's default."""
    resolution_s: int = 60
    """bf_resolution, the unit to which Slurm rounds the times of its plan. This is Slurm's default."""
    longest_s: float = 86400
    """The longest limit of any job. Slurm must plan further ahead than that."""
    most_waiting: int = 1000


def slurm_conf(settings: SlurmSettings) -> str:
    """Return the text of slurm.conf. The driver replaces `@FOLDER@` with the name of its folder.

    Only the first waiting job is given a reservation (bf_job_part_count_reserve=1), which is EASY. Timeouts are long,
    because they are in seconds of a faster clock. No job is killed at its limit, because launching a job takes many of
    these seconds.
    """
    nodes = f"n[1-{settings.nodes}]" if settings.nodes > 1 else "n1"
    ports = f"[{_PORT + 1}-{_PORT + settings.nodes}]" if settings.nodes > 1 else str(_PORT + 1)
    window = math.ceil(settings.longest_s / 60) * 2 + 60
    lines = (
        "ClusterName=lab",
        f"SlurmctldHost={HOST}(127.0.0.1)",
        f"SlurmctldPort={_PORT}",
        f"SlurmUser={HOST}",
        f"SlurmdUser={HOST}",
        "AuthType=auth/munge",
        "AuthInfo=socket=@FOLDER@/munge.socket",
        "StateSaveLocation=@FOLDER@/state",
        "SlurmdSpoolDir=@FOLDER@/spool-%n",
        "SlurmctldPidFile=@FOLDER@/slurmctld.pid",
        "SlurmdPidFile=@FOLDER@/slurmd-%n.pid",
        "SlurmctldLogFile=@FOLDER@/slurmctld.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=error",
        "JobCompType=jobcomp/filetxt",
        "JobCompLoc=@FOLDER@/jobs",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        # Without this, no daemon answers if only the loopback device has an address.
        "CommunicationParameters=EnableIPv6",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "PriorityType=priority/basic",
        "SchedulerType=sched/backfill",
        "SchedulerParameters="
        f"bf_interval={settings.interval_s},bf_resolution={settings.resolution_s},bf_window={window},"
        f"bf_job_part_count_reserve=1,bf_continue,bf_max_job_test={settings.most_waiting},"
        f"default_queue_depth={settings.most_waiting}",
        "OverTimeLimit=UNLIMITED",
        "InactiveLimit=0",
        "SlurmdTimeout=65000",
        "MessageTimeout=100",
        "TCPTimeout=100",
        "BatchStartTimeout=3600",
        "UnkillableStepTimeout=3600",
        "ReturnToService=2",
        "TreeWidth=64",
        "SlurmdParameters=config_overrides",
        f"NodeName={nodes} NodeHostname={HOST} NodeAddr=127.0.0.1 Port={ports} CPUs=1 State=UNKNOWN",
        f"PartitionName=all Nodes={nodes} Default=YES MaxTime=UNLIMITED OverSubscribe=EXCLUSIVE State=UP",
    )
    return "\n".join(lines) + "\n"


def limits_s(workload: Workload) -> Seconds:
    """Return the limits as Slurm stores them, in whole minutes, rounded up, at least one (sbatch(1), --time)."""
    return workload.limit_s.clip(1) // -60 * -60
