"""The child process in which PySlurm is used: a request is a line of JSON on stdin, an answer one on stdout.

This is the only file that imports PySlurm, which is under the GPL. This file is run by its path and never imported, and
it imports nothing else but Python's own library. The process ends when its stdin is closed. PySlurm has a process of
its own, since a call of PySlurm holds the whole interpreter, and since Slurm's library ends the process where the
library does not like slurm.conf.
"""

import importlib
import json
import os
import sys
from typing import Any

_ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)


class _Slurm:
    """The questions that may be asked. A request has the name of a public method, and its arguments by name."""

    def __init__(self) -> None:
        # Slurm's library is started where a failure can be answered, and not at the import.
        os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
        self._pyslurm: Any = importlib.import_module("pyslurm")
        del os.environ["PYSLURM_DISABLE_AUTO_INIT"]
        self._pyslurm.slurm_init()

    def versions(self) -> dict[str, object]:
        """Return PySlurm's version, that of the Slurm that it was built for, and that of the cluster's controller."""
        built = "{}.{:02}.{}".format(*self._pyslurm.slurm_api_version())
        cluster = self._pyslurm.slurmctld.Config.load().version
        return {"pyslurm": self._pyslurm.__version__, "built": built, "cluster": cluster}

    def look(self, partition: str) -> dict[str, object]:
        """Return the partition's nodes, and this user's jobs in it that have not ended."""
        nodes = self._pyslurm.Nodes.load().values()
        jobs = self._jobs()
        return {
            "nodes": [
                {"name": node.name, "cpus": node.total_cpus, "memory_mib": node.real_memory or 0, "state": node.state}
                for node in nodes
                if partition in node.partitions
            ],
            "jobs": [_told(job) for job in jobs if job.partition == partition and job.state not in _ENDED],
        }

    def find(self, name: str) -> list[int]:
        """Return the agents' jobs of that name, those that have ended a short while ago included."""
        return [job.id for job in self._jobs() if _name(job) == name]

    def submit(self, **facts: object) -> int:
        """Submit a batch job, and return its id. The facts have PySlurm's own names."""
        return int(self._pyslurm.JobSubmitDescription(**facts).submit())

    def withdraw(self, ids: list[int]) -> list[int]:
        """End these jobs. Return those that would not end.

        PySlurm looks at the last error here, which may be that of another call, and not at the answer. So the jobs
        themselves are looked at.
        """
        for id_ in ids:
            try:
                self._pyslurm.Job(id_).cancel()
            except self._pyslurm.RPCError:
                continue
        living = {job.id for job in self._jobs() if job.state not in _ENDED and job.state != "COMPLETING"}
        return [id_ for id_ in ids if id_ in living]

    def _jobs(self) -> list[Any]:
        return [job for job in self._pyslurm.Jobs.load().values() if job.user_id == os.getuid()]


def _name(job: Any) -> str | None:
    """Return a job's name; None if it is no UTF-8: then PySlurm cannot tell it, and it is no agent's."""
    try:
        name: str | None = job.name
    except UnicodeDecodeError:
        return None
    return name


def _told(job: Any) -> dict[str, object]:
    return {
        "id": job.id,
        "name": _name(job),
        "state": job.state,
        "node": job.allocated_nodes,
        "submitted_s": job.submit_time,
        "start_s": job.start_time,
        "end_s": job.end_time,
    }


def main() -> None:
    """Answer until stdin ends."""
    # Slurm's library may print. Its lines go to stderr, so that they are never taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    slurm: _Slurm | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            slurm = slurm or _Slurm()
            answer: dict[str, object] = {"said": getattr(slurm, request.pop("ask"))(**request)}
        except Exception as error:  # the parent reports any error
            answer = {"failed": f"{error}" or type(error).__name__, "is_absent": isinstance(error, ImportError)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
