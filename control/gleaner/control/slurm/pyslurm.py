"""The backend that reads nodes and our agents through PySlurm, and otherwise uses Slurm's programs.

PySlurm is under the GPL and never imported here. Each poll runs a separate process that prints PySlurm's data. This is
necessary because a call of PySlurm blocks the interpreter, and because Slurm's library ends the whole process if it
rejects slurm.conf. From this program's environment, the process receives only PATH and SLURM_CONF.
"""

import sys
from dataclasses import replace
from pathlib import Path

from gleaner.agent.system import untrusted
from gleaner.control.slurm import parse, run
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.snapshot import Snapshot

_CHILD = Path(__file__).with_name("pyslurm_child.py")
_COUNTS = ("NumCPUs", "NumTasks", "PriorityLong", "Nice", "restartcnt")
_NODE = dict.fromkeys(parse.NODE_FIELDS, "") | {"AllocMem": "0"}
_JOB = dict.fromkeys(parse.JOB_FIELDS, "") | dict.fromkeys(_COUNTS, "0")
"""The values of the fields that are not read through PySlurm."""


class PySlurmCluster(SlurmCluster):
    """Slurm, queried as the user of this program.

    PySlurm does not show everything that is needed about other users' jobs. Therefore Slurm's programs are used for all
    queries if owners' jobs are read. They submit and end agents in any case, because PySlurm cannot request all of a
    node's memory.
    """

    def read(self, now_s: float) -> Snapshot:
        """See `Cluster.read`."""
        if self._owners:
            return super().read(now_s)
        python = str(self._settings.pyslurm_python or sys.executable)
        command, timeout_s = (python, "-I", str(_CHILD), self._settings.partition), self._settings.timeout_s
        done = run.result(command, run.SUBMIT_ENVIRONMENT, timeout_s=timeout_s)
        if done.status != 0:
            raise ClusterUnavailable(f"PySlurm does not answer: {python} says {run.complaint(done.stderr)!r}")
        return parse_look(done.stdout, read_s=now_s)


def parse_look(answer: str, *, read_s: float) -> Snapshot:
    """Return the partition's nodes and our agents there, from the output of `pyslurm_child`."""
    try:
        look = untrusted.json_of(answer, for_display=True)
        nodes = [_NODE | _texts(one) for one in look["nodes"]]
        jobs = [_JOB | _texts(one) for one in look["jobs"]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ClusterError(f"PySlurm said {answer[:80]!r}: {error}") from error
    snapshot = parse.snapshot_of(nodes, jobs, own=None, read_s=read_s)
    return replace(snapshot, jobs=tuple(job for job in snapshot.jobs if not job.has_ended))


def _texts(one: dict[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in one.items()}
