"""Examples of request bodies for the OpenAPI document. A test sends each of them."""

from typing import Annotated, Any

from fastapi import Body, Path

from gleaner.agent.job_spec import MAX_ID

_DIGEST = f"sha256:{'0123456789abcdef' * 4}"


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
A_RERUN = _shown({"memory_mib": 2048})
A_DRAIN = _shown({"nodes": ["node[1-2]", "node7"], "dry_run": True})
A_RESUME = _shown({"nodes": ["node[1-2]"]})
A_MIGRATION = _shown({"to": "n17"})
AN_IMAGE_PUSH = _shown({"name": "pythia:8.3", "image_id": _DIGEST, "size_bytes": 268_435_456})
A_SECRET = _shown({"name": "ceph", "url": "s3://s3.example.org/atlas/", "value": "ACCESS_KEY:SECRET_KEY"})
A_TOKEN_REQUEST = _shown({"role": "user", "name": "alice", "group": "atlas"})


def an_id(what: str, *, most: int) -> Any:
    """Return the type annotation for a number in a path, which is at least 1."""
    return Path(ge=1, le=most, description=what, examples=[1])


JobPath = Annotated[int, an_id("The job's id", most=MAX_ID)]
