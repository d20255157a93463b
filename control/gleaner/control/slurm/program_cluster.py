"""The cluster's backend that calls Slurm's command-line programs: sinfo, squeue, sbatch, scancel, scontrol, sacctmgr.

This module runs the programs. `commands` builds the submission, and `parse` builds the queries for nodes and jobs and
reads the answers. From this program's environment, the programs receive only PATH and SLURM_CONF.

If a submission is not answered, the agent is looked up by its name, which was never used before.
"""

import os
import time
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

IDS_A_CALL = 500
_FORGOTTEN = "Invalid job id"
"""Slurm's words for a job that it does not know, or has forgotten."""


class SlurmCluster:
    """Slurm, queried as the user of this program. `owners` are the owners' partitions, if entitlements are on."""

    def __init__(self, settings: ClusterSettings, logs: Path, owners: Sequence[str] = ()) -> None:
        self._settings = settings
        self._logs = logs
        self._owners = tuple(owners)
        self._next_submit_s = 0.0

    def read(self, now_s: float) -> Snapshot:
        """See `Cluster.read`. This runs two programs, whether the jobs of one user or of all users are read."""
        word, partitions = parse.new_word(), [*self._owners, self._settings.partition]
        nodes = self._run(parse.ask_nodes_in(word, partitions))
        whose = [] if self._owners else ["--me"]  # Slurm keeps a list of each user's jobs
        jobs = self._run(parse.ask_jobs(word, *whose, f"--partition={','.join(partitions)}"))
        return parse.parse_tables(nodes, jobs, word, own=os.getuid() if self._owners else None, read_s=now_s)

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        """See `Cluster.read_nodes`."""
        word = parse.new_word()
        answer = self._run(parse.ask_nodes(word, nodes))
        there = parse.parse_tables(answer, "", word, read_s=now_s)
        for name in () if there.gaps else {*nodes} - {*there.nodes}:
            self._must_be_unknown(name, word)
        if not there.nodes:  # squeue shows all nodes for an empty list, and refuses one with an unknown name
            return there
        found = self._run(parse.ask_jobs(word, f"--nodelist={','.join(there.nodes)}"))
        view = parse.parse_tables(answer, found, word, own=os.getuid(), read_s=now_s)
        return replace(view, jobs=tuple(job for job in view.jobs if not job.is_pending))

    def _must_be_unknown(self, name: str, word: str) -> None:
        """Raise `ClusterUnavailable` if squeue knows a node that sinfo does not show."""
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
        asked = f"--partition={','.join(self._owners)}"
        there = self._run(["sinfo", "--noheader", asked, "--format=%R"]).split()
        for partition in self._owners:
            if partition not in there:
                raise ClusterError(f"[entitlements] partitions names {partition}, which is no partition of Slurm's")
        accounts = self._run(["sacctmgr", "--parsable2", "--noheader", "list", "account", "format=Account"]).split()
        for owner in owners:
            if owner not in accounts:
                known = ", ".join(sorted(accounts))
                raise ClusterError(
                    f"[entitlements] entitled names {owner}, which is no account of Slurm's; there are {known}"
                )

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """See `Cluster.submit`. This waits if `submits_per_s` would be exceeded."""
        self._pace()
        words = commands.submit(self._settings, request, now_s)
        script = commands.script(self._settings, self._logs, request)
        try:
            return parse.parse_submitted(self._run(words, given=script, submits=True))
        except ClusterRefused as error:
            raise ClusterRefused(f"{error} ({commands.asked(self._settings)})") from error
        except ClusterError:  # the answer is missing or unreadable, but Slurm might have accepted the agent
            found = self._look_up(request.name)
            if found is None:
                raise
            return found

    def _pace(self) -> None:
        wait_s = self._next_submit_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        self._next_submit_s = time.monotonic() + 1 / self._settings.submits_per_s

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """See `Cluster.withdraw`."""
        for first in range(0, len(ids), IDS_A_CALL):
            try:
                self._run(["scancel", *ids[first : first + IDS_A_CALL]])
            except ClusterRefused as error:
                if "completed" not in str(error) and _FORGOTTEN not in str(error):
                    raise

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `Cluster.vacate`."""
        for agent in agents:
            self._run(["scontrol", "update", f"JobId={agent}", f"EndTime={commands.utc(gone_s)}"])
        if agents:  # warns them of the end, see `commands.script`
            self._run(["scancel", "--batch", "--signal=USR1", *agents])

    def _look_up(self, name: str) -> SchedulerId | None:
        """Return the id of our job with this name, even if it ended minutes ago (MinJobAge)."""
        words = ["squeue", "--me", "--noheader", f"--name={name}", "--states=all", "--format=%i"]
        ids = parse.parse_ids(self._run(words))
        return ids[0] if ids else None

    def _run(self, words: Sequence[str], *, given: str = "", submits: bool = False) -> str:
        return run.run(words, timeout_s=self._settings.timeout_s, given=given, submits=submits)


if TYPE_CHECKING:
    _: type[Cluster] = SlurmCluster
