"""Jobs, nodes and settings as the tests of the steward want them."""

import json
from pathlib import Path
from typing import Any

from gleaner.control.cluster.slurm_records import JobRecord, NodeRecord
from gleaner.control.steward.conf import Governed
from gleaner.control.steward.marks import DRAINED_BY, WAITS_FOR_ITS_TURN

ACCOUNT = "gleaner-steward"


def governed(folder: Path = Path("/run/gleaner")) -> Governed:
    """One governed partition, and one more whose nodes may be drained."""
    every = frozenset({"non-preemptible", "preemptible", "checkpointable"})
    return Governed(
        control="gleaner",
        socket=folder / "steward.sock",
        heartbeat=folder / "alive",
        partitions={"shared": every},
        drained=frozenset({"regular"}),
    )


def job(**facts: Any) -> JobRecord:
    """A job that waits for its turn, but for what is said otherwise."""
    waiting: dict[str, Any] = {
        "name": "7", "partitions": ("shared",), "states": frozenset({"PENDING"}), "priority": 0,
        "reason": "JobHeldUser", "comment": "", "admin_comment": WAITS_FOR_ITS_TURN, "nice": 0, "restarts": 0,
        "can_requeue": True, "is_batch": True,
    }  # fmt: skip
    return JobRecord(**(waiting | facts))


def running(declared: str, **facts: Any) -> JobRecord:
    """A job of this class that runs."""
    return job(
        comment=f"gleaner:{declared}", states=frozenset({"RUNNING"}), priority=4000, reason="None",
        **({"admin_comment": "gleaner: released"} | facts),
    )  # fmt: skip


def node(*states: str, name: str = "n1", reason: str = "", by: str = "", partition: str = "shared") -> NodeRecord:
    """A node in these states."""
    return NodeRecord(name, frozenset({partition}), frozenset(states), reason, by)


def drained_by_us(name: str = "n1") -> NodeRecord:
    """A node that the steward has drained."""
    return node("IDLE", "DRAIN", name=name, reason=DRAINED_BY + "alice", by=ACCOUNT)


def shown(**facts: Any) -> dict[str, Any]:
    """A job as `scontrol show job --json` of Slurm 24.11 shows it, as far as it is read."""
    some: dict[str, Any] = {
        "job_id": 7, "partition": "shared", "job_state": ["PENDING"], "state_reason": "JobHeldUser",
        "priority": {"set": True, "infinite": False, "number": 0}, "comment": "", "admin_comment": WAITS_FOR_ITS_TURN,
        "nice": 0, "restart_cnt": 0, "requeue": True, "batch_flag": True, "array_task_string": "",
        "array_job_id": {"set": True, "infinite": False, "number": 0},
        "array_task_id": {"set": False, "infinite": False, "number": 0},
    }  # fmt: skip
    return some | facts


def answer(*jobs: dict[str, Any]) -> str:
    """What `scontrol show job --json` prints of these."""
    return json.dumps({"jobs": jobs})
