"""The process that uses PySlurm. Its argument is a partition, and it prints the nodes and our jobs there as JSON.

This is the only file that imports PySlurm, which is under the GPL. It is run by its path and never imported, and it
imports only Python's standard library. On a failure, it prints one line to stderr and exits with status 1.
"""

import importlib
import json
import os
import sys
from typing import Any


def check(pyslurm: Any) -> None:
    """Exit if PySlurm was not built for the cluster's Slurm.

    Slurm's structures change between releases whose versions differ in the first two numbers.
    """
    built = "{}.{:02}.{}".format(*pyslurm.slurm_api_version())
    cluster = pyslurm.slurmctld.Config.load().version
    if built.split(".")[:2] != cluster.split(".")[:2]:
        sys.exit(
            f"PySlurm {pyslurm.__version__} was built for Slurm {built}, and the cluster has {cluster}; build it for"
            ' that one, or set [cluster] backend = "slurm"'
        )


def look(pyslurm: Any, partition: str) -> str:
    """Return the partition's nodes and this user's jobs in it, as JSON. The fields have the names of `parse`."""
    nodes = [node for node in pyslurm.Nodes.load().values() if partition in node.partitions]
    jobs = [job for job in pyslurm.Jobs.load().values() if job.user_id == os.getuid() and job.partition == partition]
    states = {each.name: each.state.lower() for each in pyslurm.Partitions.load().values()}
    return json.dumps(
        {
            "nodes": [
                {
                    "NodeList": node.name,
                    "StateComplete": node.state.lower(),
                    "CPUsState": f"0/0/0/{node.total_cpus}",
                    "Memory": node.real_memory or 0,
                    "Available": states.get(partition, "up"),
                    "PartitionName": partition,
                }
                for node in nodes
            ],
            "jobs": [
                {
                    "JobArrayID": job.id,
                    "Name": _name(job),
                    "State": job.state,
                    "Partition": partition,
                    "Reason": job.state_reason or "",
                    "NodeList": job.allocated_nodes or "",
                    "SubmitTime": job.submit_time,
                    "StartTime": job.start_time,
                    "EndTime": job.end_time,
                }
                for job in jobs
            ],
        }
    )


def _name(job: Any) -> str:
    """Return a job's name, or "" if it is not valid UTF-8, which PySlurm cannot represent and agents never use."""
    try:
        return job.name or ""
    except UnicodeDecodeError:
        return ""


def main() -> None:
    """Print the answer."""
    # Slurm's library might print messages. They go to stderr, so that they are never taken for the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        # Initialize Slurm's library here and not during the import, so that a failure can be reported.
        os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
        pyslurm: Any = importlib.import_module("pyslurm")
        del os.environ["PYSLURM_DISABLE_AUTO_INIT"]
        pyslurm.slurm_init()
        check(pyslurm)
        answer = look(pyslurm, sys.argv[1])
    except ImportError as error:
        sys.exit(f"{error}; install it there")
    except Exception as error:  # the caller reports every error
        sys.exit(f"{error}" or type(error).__name__)
    print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
