"""Slurm's programs, but a poll reads the nodes and our agents through PySlurm.

PySlurm is under the GPL, and never imported here: each poll runs a process of its own that prints what PySlurm tells.
A call of PySlurm holds its interpreter, and Slurm's library ends its process where the library does not like
slurm.conf. The process gets the PATH and SLURM_CONF of this program, and nothing else of its environment.
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
"""The fields that PySlurm is not asked for."""


class PySlurmCluster(SlurmCluster):
    """Slurm, asked as the user of this program.

    PySlurm does not tell all that is needed of everybody's jobs. So where owners' jobs are read, the programs are asked
    for all. They submit and end agents in any case: PySlurm cannot ask for all of a node's memory.
    """

    _is_checked = False

    def check(self) -> str:
        """Return the versions of PySlurm and of Slurm, in a few words.

        Raises `ClusterUnavailable` if this PySlurm cannot be used for this cluster.
        """
        versions = self._ask_child("check").strip()
        self._is_checked = True
        return versions

    def _poll(self, now_s: float) -> Snapshot:
        if self._owners:
            return super()._poll(now_s)
        if not self._is_checked:
            self.check()
        return parse_look(self._ask_child("look", self._settings.partition), read_s=now_s)

    def _ask_child(self, *words: str) -> str:
        python = str(self._settings.pyslurm_python or sys.executable)
        command, timeout_s = (python, "-I", str(_CHILD), *words), self._settings.timeout_s
        done = run.result(command, run.SUBMIT_ENVIRONMENT, timeout_s=timeout_s)
        if done.status != 0:
            raise ClusterUnavailable(f"PySlurm does not answer: {python} says {run.complaint(done.stderr)!r}")
        return done.stdout


def parse_look(answer: str, *, read_s: float) -> Snapshot:
    """Return the partition's nodes and our agents there, from what `pyslurm_child` prints."""
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
