"""The cluster through PySlurm, in a child process.

PySlurm asks the controller without starting a program for each question. It is never imported here: PySlurm holds the
interpreter for as long as a call takes, and it is under the GPL. The child gets the PATH and SLURM_CONF of this program
and nothing else of its environment. A child that does not answer in time is killed, and the next question starts
another.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm import commands, pyslurm_parse, run
from gleaner.control.slurm.child_process import Child
from gleaner.control.slurm.interface import AgentRequest, Cluster, ClusterRefused, ClusterUnavailable, SchedulerId
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.snapshot import SlurmJob, Snapshot
from gleaner.control.slurm.submissions import Submissions, known_only

IDS_A_CALL = 50
"""The most ids in one question to the child. Each is a call of the controller, and all together have the time of one
call."""

_CHILD = Path(__file__).with_name("pyslurm_child.py")


class PySlurmCluster:
    """Slurm, asked as the user of this program. `owners`: the owners' partitions, if entitlements are on.

    PySlurm does not tell all that is needed of everybody's jobs. So with owners' partitions, Slurm's programs are asked
    for these jobs, and at once for our own.
    """

    def __init__(self, settings: ClusterSettings, logs: Path, owners: Sequence[str] = ()) -> None:
        self._settings = settings
        self._owners = tuple(owners)
        self._programs = SlurmCluster(settings, logs, owners)
        self._logs = logs
        self._submissions = Submissions(
            self._look_up, submits_per_s=settings.submits_per_s, asked=commands.asked(settings)
        )
        self._child: Child | None = None

    def check(self) -> pyslurm_parse.Versions:
        """Start a child, and return the versions that it tells.

        Raises `ClusterUnavailable` if this PySlurm cannot be used for this cluster.
        """
        self.close()
        python = str(self._settings.pyslurm_python or sys.executable)
        environment = {**run.passed_on(), **commands.SUBMIT_ENVIRONMENT}
        self._child = Child("PySlurm", (python, "-I", str(_CHILD)), environment)
        versions = pyslurm_parse.parse_versions(self._answer("versions"))
        if not versions.match:
            self.close()
            raise ClusterUnavailable(
                f"PySlurm {versions.pyslurm} was built for Slurm {versions.built}, and the cluster has "
                f'{versions.cluster}; build it for that one, or set [cluster] backend = "slurm"'
            )
        return versions

    def read(self, now_s: float) -> Snapshot:
        """See `Cluster.read`. Asks the child one question, or runs two programs where owners' jobs are read."""
        began = self._submissions.count
        snapshot = self._programs.read(now_s) if self._owners else self._look(now_s)
        self._submissions.looked((job for job in snapshot.jobs if job.is_own), since=began)
        return snapshot

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        """See `Cluster.read_nodes`."""
        return self._programs.read_nodes(nodes, now_s)

    def read_job(self, job: str) -> SlurmJob | None:
        """See `Cluster.read_job`."""
        return self._programs.read_job(job)

    def check_owners(self, owners: Sequence[str]) -> None:
        """See `Cluster.check_owners`."""
        self._programs.check_owners(owners)

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Cluster.submit`. Waits, if needed, to keep to `submits_per_s`."""

        def send(avoid: tuple[str, ...]) -> SchedulerId:
            facts = pyslurm_parse.submit(self._settings, self._logs, replace(request, avoid=avoid), now_s)
            (id_,) = pyslurm_parse.parse_ids([self._ask("submit", **facts)])
            self._complete(id_)
            return id_

        return self._submissions.submit(request.name, lambda: known_only(send, request.avoid, self._node_names))

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Cluster.withdraw`."""
        for first in range(0, len(ids), IDS_A_CALL):
            wanted = [int(id_) for id_ in ids[first : first + IDS_A_CALL]]
            if left := pyslurm_parse.parse_ids(self._ask("withdraw", ids=wanted)):
                raise ClusterRefused(f"Slurm refuses: job {', '.join(left)} did not end when PySlurm cancelled it")

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `Cluster.vacate`."""
        self._programs.vacate(agents, gone_s=gone_s)

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _look(self, now_s: float) -> Snapshot:
        partition = self._settings.partition
        return pyslurm_parse.parse_snapshot(self._ask("look", partition=partition), partition=partition, read_s=now_s)

    def _node_names(self) -> frozenset[str]:
        return frozenset(self._look(0).nodes)

    def _complete(self, id_: SchedulerId) -> None:
        """Complete a submission, see `pyslurm_parse.complete`. Withdraw the agent again if Slurm refuses that."""
        try:
            run.run(pyslurm_parse.complete(id_), commands.SUBMIT_ENVIRONMENT, timeout_s=self._settings.timeout_s)
        except ClusterRefused:  # without an answer the name is looked up: the agent is there, and starts a bit later
            self.withdraw([id_])
            raise

    def _look_up(self, name: str) -> SchedulerId | None:
        ids = pyslurm_parse.parse_ids(self._ask("find", name=name))
        return ids[0] if ids else None

    def _ask(self, ask: str, **facts: object) -> object:
        if self._child is None:
            self.check()
        return self._answer(ask, **facts)

    def _answer(self, ask: str, **facts: object) -> object:
        """Return the child's answer. End a child that gives none, so that the next child reads slurm.conf anew."""
        assert self._child is not None  # noqa: S101 - `check` has started it
        try:
            answer = self._child.ask({"ask": ask, **facts}, timeout_s=self._settings.timeout_s)
        except ClusterUnavailable:
            self.close()
            raise
        if "failed" not in answer:
            return answer["said"]
        said = str(answer["failed"])
        if answer.get("is_absent"):
            self.close()
            python = self._settings.pyslurm_python or sys.executable
            raise ClusterUnavailable(f"PySlurm cannot be used: {python} says {said!r}; install it there")
        if run.is_no_answer(said):
            self.close()
            raise ClusterUnavailable(f"Slurm does not answer: PySlurm says {said!r}")
        raise ClusterRefused(f"Slurm refuses: PySlurm says {said!r}")


if TYPE_CHECKING:
    _: type[Cluster] = PySlurmCluster
