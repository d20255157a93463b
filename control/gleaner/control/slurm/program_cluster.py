"""The cluster by Slurm's command-line programs: sinfo, squeue, sbatch, scancel, scontrol, sacctmgr.

This module runs programs; `commands` makes their command lines, and `parse` reads their answers. The programs get the
PATH and SLURM_CONF of this program, and nothing else of its environment.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm import commands, parse, run
from gleaner.control.slurm.accounting import check_accounting
from gleaner.control.slurm.interface import (
    AgentRequest,
    Cluster,
    ClusterError,
    ClusterRefused,
    ClusterUnavailable,
    SchedulerId,
)
from gleaner.control.slurm.snapshot import SlurmJob, Snapshot
from gleaner.control.slurm.submissions import Submissions, known_only

IDS_A_CALL = 500
_FORGOTTEN = "Invalid job id"
"""Slurm's words for a job that it does not know, or has forgotten."""


class SlurmCluster:
    """Slurm, asked as the user of this program. `owners`: the owners' partitions, if entitlements are on."""

    def __init__(self, settings: ClusterSettings, logs: Path, owners: Sequence[str] = ()) -> None:
        self._settings = settings
        self._logs = logs
        self._owners = tuple(owners)
        self._submissions = Submissions(
            self._look_up, submits_per_s=settings.submits_per_s, asked=commands.asked(settings)
        )

    def read(self, now_s: float) -> Snapshot:
        """See `Cluster.read`."""
        began = self._submissions.count
        snapshot = self._poll(now_s)
        self._submissions.looked((job for job in snapshot.jobs if job.is_own), since=began)
        return snapshot

    def _poll(self, now_s: float) -> Snapshot:
        """Run two programs, whoever's jobs are read."""
        word, partitions = parse.new_word(), [*self._owners, self._settings.partition]
        nodes = self._run(parse.ask_nodes_in(word, partitions))
        whose = [] if self._owners else ["--me"]  # Slurm has a list of one user's jobs at hand
        jobs = self._run(parse.ask_jobs(word, *whose, f"--partition={','.join(partitions)}"))
        return parse.parse_tables(nodes, jobs, word, own=os.getuid() if self._owners else None, read_s=now_s)

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        """See `Cluster.read_nodes`."""
        word = parse.new_word()
        answer = self._run(parse.ask_nodes(word, nodes))
        there = parse.parse_tables(answer, "", word, read_s=now_s)
        for name in () if there.gaps else {*nodes} - {*there.nodes}:
            self._must_be_unknown(name, word)
        if not there.nodes:  # without a name squeue would answer for every node, and for an unknown name it refuses all
            return there
        found = self._run(parse.ask_jobs(word, f"--nodelist={','.join(there.nodes)}"))
        view = parse.parse_tables(answer, found, word, own=os.getuid(), read_s=now_s)
        return replace(view, jobs=tuple(job for job in view.jobs if not job.is_pending))

    def _must_be_unknown(self, name: str, word: str) -> None:
        """Ask for the jobs of a node that sinfo does not show. Raises `ClusterUnavailable` if Slurm knows the node."""
        with suppress(ClusterRefused):
            self._run(parse.ask_jobs(word, f"--nodelist={name}"))
            raise ClusterUnavailable(f"{name} is in no partition, so sinfo does not show it: put it into one again")

    def read_job(self, job: str) -> SlurmJob | None:
        """See `Cluster.read_job`."""
        word = parse.new_word()
        try:
            return parse.parse_job(self._run(parse.ask_job(word, job)), word, job)
        except ClusterRefused as error:
            if _FORGOTTEN not in str(error):
                raise
            return None

    def read_recent(self, nodes: Sequence[str]) -> tuple[SlurmJob, ...]:
        """See `Cluster.read_recent`."""
        word, found = parse.new_word(), dict[tuple[str, float | None], SlurmJob]()
        for first in range(0, len(nodes), IDS_A_CALL):
            among = f"--nodelist={','.join(nodes[first : first + IDS_A_CALL])}"
            answer = self._run(parse.ask_jobs(word, "--states=all", among))
            jobs = parse.parse_tables("", answer, word, own=os.getuid()).jobs
            found |= {(job.id, job.start_s): job for job in jobs}
        return tuple(found.values())

    def check_owners(self, owners: Sequence[str]) -> None:
        """See `Cluster.check_owners`."""
        check_accounting(timeout_s=self._settings.timeout_s)
        there = self._run(commands.ask_partitions(self._owners)).split()
        for partition in self._owners:
            if partition not in there:
                raise ClusterError(f"[entitlements] partitions names {partition}, which is no partition of Slurm's")
        accounts = self._run(commands.ask_accounts()).split()
        for owner in owners:
            if owner not in accounts:
                known = ", ".join(sorted(accounts))
                raise ClusterError(
                    f"[entitlements] entitled names {owner}, which is no account of Slurm's; there are {known}"
                )

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Cluster.submit`. Waits, if needed, to keep to `submits_per_s`."""
        script = commands.script(self._settings, self._logs, request)

        def send(exclude: tuple[str, ...]) -> SchedulerId:
            words = commands.submit(self._settings, replace(request, exclude=exclude), now_s)
            return parse.parse_submitted(self._run(words, given=script, submits=True))

        return self._submissions.submit(request.name, lambda: known_only(send, request.exclude, self._node_names))

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Cluster.withdraw`."""
        for first in range(0, len(ids), IDS_A_CALL):
            try:
                self._run(commands.withdraw(ids[first : first + IDS_A_CALL]))
            except ClusterRefused as error:
                if "completed" not in str(error) and _FORGOTTEN not in str(error):
                    raise

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `Cluster.vacate`."""
        for agent in agents:
            self._run(commands.end_by(agent, gone_s))
        if agents:
            self._run(commands.warn(agents))

    def _node_names(self) -> frozenset[str]:
        """Return the names of the nodes that agents may run on, as Slurm knows them now."""
        word = parse.new_word()
        nodes = self._run(parse.ask_nodes_in(word, [self._settings.partition]))
        return frozenset(parse.parse_tables(nodes, "", word).nodes)

    def _look_up(self, name: str) -> SchedulerId | None:
        ids = parse.parse_ids(self._run(commands.ask_name(name)))
        return ids[0] if ids else None

    def _run(self, words: Sequence[str], *, given: str = "", submits: bool = False) -> str:
        return run.run(words, timeout_s=self._settings.timeout_s, given=given, submits=submits)


if TYPE_CHECKING:
    _: type[Cluster] = SlurmCluster
