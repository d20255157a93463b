"""The cluster by Slurm's command-line programs: sinfo, squeue, sbatch, scancel, scontrol, sacctmgr.

This module runs programs; `commands` makes their command lines, and `parse` reads their answers. The programs get the
PATH and SLURM_CONF of this program, and nothing else of its environment.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm import commands, parse, parse_json, run
from gleaner.control.slurm.accounting import check_accounting
from gleaner.control.slurm.interface import AgentRequest, Cluster, ClusterError, ClusterRefused, SchedulerId
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot
from gleaner.control.slurm.submissions import Submissions, known_only

IDS_A_CALL = 500


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
        word = "x" + secrets.token_hex(8)  # a word that began with digits would be taken for a column's width
        partitions = [*self._owners, self._settings.partition]
        nodes = self._ask(commands.ask_nodes(partitions, word))
        jobs = self._ask(commands.ask_jobs(partitions, word, only_own=not self._owners))
        own = os.getuid() if self._owners else None  # Slurm has a list of one user's jobs at hand
        return parse.parse_tables(nodes, jobs, word, own=own, read_s=now_s)

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        """See `Cluster.read_nodes`. Asks in JSON: it tells how a node is drained, and whether a job can be requeued."""
        there, gaps = self._known(nodes)
        names = [name for name in nodes if name in there]
        if not names:  # without a name squeue would answer for every node
            return Snapshot(now_s, there, (), gaps)
        # If one name is unknown, squeue refuses all names.
        jobs, job_gaps = parse_json.parse_jobs_on(self._ask(parse_json.ask_jobs_on(names)), names)
        return Snapshot(now_s, there, jobs, "; ".join(filter(None, (gaps, job_gaps))))

    def read_job(self, job: str) -> SlurmJob | None:
        """See `Cluster.read_job`."""
        try:
            return parse_json.parse_job(self._ask(parse_json.ask_job(job)), job)
        except ClusterRefused:  # Slurm has forgotten it
            return None

    def read_recent(self, nodes: Sequence[str]) -> tuple[SlurmJob, ...]:
        """See `Cluster.read_recent`."""
        word, found = "x" + secrets.token_hex(8), dict[tuple[str, float | None], SlurmJob]()
        for first in range(0, len(nodes), IDS_A_CALL):
            answer = self._ask(commands.ask_recent(nodes[first : first + IDS_A_CALL], word))
            jobs = parse.parse_tables("", answer, word, own=os.getuid(), read_s=0).jobs
            found |= {(job.id, job.start_s): job for job in jobs}
        return tuple(found.values())

    def check_owners(self, owners: Sequence[str]) -> None:
        """See `Cluster.check_owners`."""
        check_accounting(timeout_s=self._settings.timeout_s)
        there = self._ask(commands.ask_partitions(self._owners)).split()
        for partition in self._owners:
            if partition not in there:
                raise ClusterError(f"[entitlements] partitions names {partition}, which is no partition of Slurm's")
        accounts = self._ask(commands.ask_accounts()).split()
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
            return parse.parse_submitted(self._run(words, commands.SUBMIT_ENVIRONMENT, given=script))

        return self._submissions.submit(request.name, lambda: known_only(send, request.exclude, self._node_names))

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Cluster.withdraw`."""
        for first in range(0, len(ids), IDS_A_CALL):
            try:
                self._ask(commands.withdraw(ids[first : first + IDS_A_CALL]))
            except ClusterRefused as error:
                if "completed" not in str(error) and "Invalid job id" not in str(error):
                    raise

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `Cluster.vacate`."""
        for agent in agents:
            self._ask(commands.end_by(agent, gone_s))
        if agents:
            self._ask(commands.warn(agents))

    def _known(self, nodes: Sequence[str]) -> tuple[dict[str, SlurmNode], str]:
        """Return those of these nodes that Slurm knows, and a line about those that cannot be read.

        Some versions do not answer if one of the nodes is unknown.
        """
        try:
            answer = self._ask(parse_json.ask_nodes(nodes))
        except ClusterRefused:
            answer = self._ask(parse_json.ask_all_nodes())
        found, gaps = parse_json.parse_nodes(answer)
        return {name: node for name, node in found.items() if name in nodes}, gaps

    def _node_names(self) -> frozenset[str]:
        """Return the names of the nodes that agents may run on, as Slurm knows them now."""
        word, partition = "x" + secrets.token_hex(8), self._settings.partition
        nodes = self._ask(commands.ask_nodes([partition], word))
        return frozenset(parse.parse_tables(nodes, "", word, own=None, read_s=0).nodes)

    def _look_up(self, name: str) -> SchedulerId | None:
        ids = parse.parse_ids(self._ask(commands.ask_name(name)))
        return ids[0] if ids else None

    def _ask(self, words: Sequence[str]) -> str:
        return self._run(words, commands.ASK_ENVIRONMENT)

    def _run(self, words: Sequence[str], environment: Mapping[str, str], *, given: str = "") -> str:
        return run.run(words, environment, timeout_s=self._settings.timeout_s, given=given)


if TYPE_CHECKING:
    _: type[Cluster] = SlurmCluster
