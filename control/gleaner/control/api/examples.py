"""Examples for the OpenAPI document, in a module of their own so that the routes stay readable. A test sends each."""

from typing import Any

from fastapi import Body, Path

_DIGEST = f"sha256:{'0123456789abcdef' * 4}"
_RESTORED = {"stored_bytes": 268_435_456, "took_s": 0.9, "at_once": 1, "way": "shim"}
_SLICE = {"started_s": 1_800_000_000.0, "restore_s": 2.5, "compute_s": 1740.0, "save_s": 12.0, "restored": _RESTORED}
_CHECKPOINT = {"attempt": 1, "number": 1, "digest": _DIGEST, "size_bytes": 268_435_456, "log_lines": 1200}
_MEASURED = {
    "memory_bytes": 1_073_741_824,
    "stored_bytes": 268_435_456,
    "took_s": 1.4,
    "expected_s": 1.6,
    "at_once": 4,
    "way": "shim",
}


def _shown(example: dict[str, Any]) -> Any:
    return Body(examples=[example])


A_SUBMISSION = _shown(
    {
        "job": {
            "name": "zmumu",
            "image": "pythia",
            "command": ["--seed", "{index}", "--events", "2000", "--process", "zmumu", "--out", "."],
            "cpus": 1,
            "memory_mib": 512,
        },
        "indices": [1, 2, 3],
    }
)
AN_INPUT_LIST = _shown({"contents": [_DIGEST]})
AN_INPUT = _shown({"content": _DIGEST, "size_bytes": 2048})
A_CHANGE = _shown({"priority": 10})
A_DRAIN = _shown({"nodes": ["node[1-2]", "node7"], "dry_run": True})
A_RESUME = _shown({"nodes": ["node[1-2]"]})
A_MIGRATION = _shown({"to": "n17"})
AN_IMAGE_PUSH = _shown({"name": "pythia:8.3", "image_id": _DIGEST, "size_bytes": 268_435_456})
A_SECRET = _shown({"name": "ceph", "url": "s3://s3.example.org/atlas/", "value": "ACCESS_KEY:SECRET_KEY"})
A_TOKEN_REQUEST = _shown({"role": "user", "name": "alice", "group": "atlas"})
A_REGISTRATION = _shown(
    {
        "facts": {
            "node": "n17",
            "cpus": 16,
            "memory_mib": 65536,
            "runtime": "docker 26.1.5",
            "criu": "4.1.1",
            "kernel": "6.12.0",
            "architecture": "x86_64",
            "cpu_features": ["avx2", "sse4_2"],
        },
        "end_s": 1_800_003_600.0,
        "slurm_job": "4711",
    }
)
A_CLAIM_REQUEST = _shown({"cpus": 16, "memory_mib": 65536, "most": 16})
A_HEARTBEAT = _shown({"attempts": [{"job": 1, "attempt": 1}]})
A_DEREGISTRATION = _shown({"ended_s": 1_800_003_598.5, "reason": "the shared end"})
A_SAVE = _shown({"checkpoint": _CHECKPOINT, "slice": _SLICE, "measured": _MEASURED})
A_CHECKPOINT = _shown({"checkpoint": _CHECKPOINT | {"number": 2}, "slice": _SLICE, "measured": _MEASURED})
A_COMPLETION = _shown({"exit_code": 0, "output": {"digest": _DIGEST, "size_bytes": 10240}, "slice": _SLICE})
A_RETURN = _shown({"why": "unstarted", "detail": "there was no time left"})
A_DELIVERY = _shown({"job": 1, "number": 1, "files": 12, "size_bytes": 10240})
A_FETCHED_INPUT = _shown({"name": "events.lhe", "content": _DIGEST, "size_bytes": 10240})
SOME_LINES = _shown({"first": 0, "lines": ["event 1", "event 2"]})


def an_id(what: str, *, most: int) -> Any:
    """Return the type annotation of a number in a path, counted from 1."""
    return Path(ge=1, le=most, description=what, examples=[1])
