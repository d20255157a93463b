"""Jobs, nodes and settings as the tests of the Slurm admin service want them."""

from pathlib import Path
from typing import Any

from gleaner.control.slurm.snapshot import DRAINED_BY, WAITS_FOR_ITS_TURN, SlurmJob, SlurmNode
from gleaner.control.slurm_admin.settings import SlurmAdminSettings

ACCOUNT = "gleaner-slurm-admin"


def admin_settings(folder: Path = Path("/run/gleaner")) -> SlurmAdminSettings:
    """One partition with entitlements, and one more whose nodes may be drained."""
    every = frozenset({"non-preemptible", "preemptible", "checkpointable"})
    return SlurmAdminSettings(
        control="gleaner",
        socket=folder / "slurm-admin.sock",
        heartbeat=folder / "alive",
        partitions={"shared": every},
        drained=frozenset({"regular"}),
    )


def job(**facts: Any) -> SlurmJob:
    """A job that waits for its turn, but for what is said otherwise."""
    waiting: dict[str, Any] = {
        "id": "7", "user": "alice", "partitions": ("shared",), "states": frozenset({"PENDING"}), "priority": 0,
        "reason": "JobHeldUser", "comment": "", "admin_comment": WAITS_FOR_ITS_TURN, "nice": 0, "restarts": 0,
        "can_requeue": True, "is_batch": True, "submitted_s": 500,
    }  # fmt: skip
    return SlurmJob(**(waiting | facts))


def running(declared: str, **facts: Any) -> SlurmJob:
    """A job of this class that runs."""
    return job(
        comment=f"gleaner:{declared}", states=frozenset({"RUNNING"}), priority=4000, reason="None",
        **({"admin_comment": "gleaner: released"} | facts),
    )  # fmt: skip


def node(*states: str, name: str = "n1", reason: str = "", by: str = "", partition: str = "shared") -> SlurmNode:
    """A node in these states."""
    return SlurmNode(
        name=name, partitions=frozenset({partition}), states=frozenset(states), reason=reason, reason_by=by
    )


def drained_by_us(name: str = "n1") -> SlurmNode:
    """A node that the Slurm admin service has drained."""
    return node("IDLE", "DRAIN", name=name, reason=DRAINED_BY + "alice", by=ACCOUNT)
