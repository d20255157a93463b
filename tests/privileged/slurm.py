"""Slurm as the node helper asks it: its answer about one job, and a program that gives it."""

import json
from pathlib import Path
from typing import Any

NODE = "node3"


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def job(**changes: Any) -> dict[str, Any]:
    """A job of uid 1 that runs here with two CPUs and 1000 MiB, in the words of Slurm 24.11."""
    parts = changes.pop("parts", [(NODE, 2, 1000)])
    allocation = [
        {"index": at, "name": name, "cpus": {"count": cpus, "used": 0}, "memory": {"used": 0, "allocated": memory}}
        for at, (name, cpus, memory) in enumerate(parts)
    ]
    return {
        "job_id": 66,
        "user_id": 1,
        "job_state": ["RUNNING"],
        "end_time": number(2_000_000_000),
        "preempt_time": number(0),
        "job_resources": {"nodes": {"count": len(parts), "allocation": allocation}} if parts else None,
        "admin_comment": "",
        "restart_cnt": 0,
        "requeue": True,
        "batch_flag": True,
        "name": "sbatch",
    } | changes


def answering(place: Path, *jobs: dict[str, Any]) -> str:
    """A `scontrol` that knows these jobs; further ones can be written beside it."""
    for one in jobs:
        (place / f"{one['job_id']}.json").write_text(json.dumps({"jobs": [one], "errors": []}))
    program = place / "scontrol"
    program.write_text(
        f'#!/bin/sh\ncd {place}\n[ "$1 $2 $4" = "show job --json" ] || exit 9\n'
        '[ -e silent ] && { echo "Unable to contact slurm controller" >&2; exit 1; }\n'
        'cat "$3.json" 2>/dev/null && exit\necho "slurm_load_jobs error: Invalid job id specified" >&2\nexit 1\n'
    )
    program.chmod(0o755)
    return str(program)
