"""What the agent reads from `scontrol show job`."""

import time
from datetime import datetime

from gleaner.agent.slurm import parse_end_s, parse_memory_mib

SHOWN = (
    "JobId=11 JobName=gleaner-1795235343-f0152e23 JobState=RUNNING TimeLimit=00:02:00 StartTime=2026-11-21T04:27:35 "
    "EndTime=2026-11-21T04:29:03 Deadline=2026-11-21T04:30:03 Partition=gleaner NumNodes=1 NumCPUs=6 "
    "ReqTRES=cpu=1,mem=4000M,node=1,billing=1 AllocTRES=cpu=6,mem=4000M,node=1,billing=6 MinMemoryNode=0"
)


def test_the_end_is_read_in_this_machines_time_zone() -> None:
    found = parse_end_s(SHOWN)
    assert found == time.mktime(datetime(2026, 11, 21, 4, 29, 3).timetuple())


def test_the_end_is_not_mistaken_for_another_time() -> None:
    assert parse_end_s("SuspendTime=2026-01-01T00:00:00 MyEndTime=2026-01-01T00:00:00") is None


def test_the_memory_is_that_of_the_allocation() -> None:
    assert parse_memory_mib(SHOWN) == 4000
    assert parse_memory_mib("AllocTRES=cpu=6,node=1") is None
