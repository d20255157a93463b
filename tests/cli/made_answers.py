"""Answers of control, one of each kind, as tests of the command line make them."""

from typing import Any

STATUS = dict.fromkeys(("new", "running", "saved", "succeeded", "failed", "cancelled", "held"), 1) | {"campaign": None}
JOB = {
    "id": 7, "name": "pi", "group": "atlas", "campaign": 1, "index": 3, "state": "New", "outcome": None,
    "exit_code": None, "held": False, "priority": 0, "cpus": 1, "memory_mib": 512, "attempt": 2, "node": "n1",
    "submitted_s": 1.5e9, "ended_s": None, "submitter": "alice",
}  # fmt: skip
ATTEMPT = {
    "attempt": 1, "agent": "a", "node": "n1", "claimed_s": 1.5e9, "ended_s": 1.6e9, "ending": "lost", "detail": "why",
    "started_s": 1.5e9, "from_attempt": 1, "from_number": 1, "restore_s": 0.5, "compute_s": 5.0,
    "save_s": 1.0,
}  # fmt: skip
SPEC: dict[str, Any] = {
    "name": "pi", "image": "a/b", "command": ["x"], "environment": {"A": "b"}, "retries": 1, "needs_at_least_s": 60,
    "compute_limit_s": 60,
}  # fmt: skip
DETAIL: dict[str, Any] = {
    "job": JOB, "spec": SPEC, "failures": 0, "waits_because": "no node is free", "attempts": [ATTEMPT],
    "output_bytes": 5, "events": [{"at_s": 1.5e9, "what": "claim", "detail": "d"}],
    "checkpoints": [{"attempt": 1, "number": 1, "size_bytes": 5, "published_s": 1.5e9}],
}  # fmt: skip
DRAIN: dict[str, Any] = {
    "id": 1, "task": "dry run", "phase": "looked", "nodes": ["n1"], "by": "root", "asked_s": 1.5e9, "ended_s": 1.6e9,
    "said": "why",
    "jobs": [
        {
            "job": "7", "user": "alice", "deed": "vacate", "nodes": ["n1"], "until_s": 1.7e9,
            "at_first": 1, "left": 1, "told_s": None, "gone_s": None,
        }
    ],
}  # fmt: skip
NODES: dict[str, Any] = {
    "read_s": 1.5e9, "stale": False, "problem": "why", "boundary_s": 1.6e9,
    "nodes": [
        {
            "name": "n1", "cpus": 6, "memory_mib": 4000, "state": "idle", "idle": True, "regular": False, "agent": "a",
            "failures": 1, "excluded_until_s": 1.9e9, "distrusted": "why", "drained": "by root",
        }
    ],
}  # fmt: skip
AGENT = {
    "name": "a", "node": "n1", "phase": "live", "scheduler_id": "7", "end_s": 1.5e9, "submitted_s": 1.5e9,
    "registered_s": 1.5e9, "ended_s": None, "jobs": [7], "reason": "",
}  # fmt: skip
OWNERS = {
    "mode": "on", "read_s": 1.5e9, "problem": "why", "cpus": 6, "idle_cpus": 1,
    "owners": [
        {"owner": "o", "entitled_cpus": 6, "used_cpus": 1, "leaving_cpus": 0, "waiting_jobs": 1, "waiting_cpus": 2}
    ],
    "waiting": [
        {
            "job": "7", "owner": "o", "job_class": "preemptible", "cpus": 1, "released": False, "verdict": "hold",
            "victims": ["8"], "why": "w",
        }
    ],
}  # fmt: skip
TOKEN = {
    "id": "t", "role": "user", "name": "alice", "group": "atlas", "manager": False, "issued_s": 1.5e9,
    "expires_s": 1.9e9, "revoked_s": None,
}  # fmt: skip
IMAGE = {
    "name": "pi:1", "group": "atlas", "image_id": "sha256:" + "0" * 64, "architecture": "amd64", "size_bytes": 5,
    "jobs": 1, "pushed_s": 1.5e9, "pusher": "alice",
}  # fmt: skip
