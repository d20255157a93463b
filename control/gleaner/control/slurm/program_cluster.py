"""The cluster by Slurm's command-line programs: sinfo, squeue, sbatch, scancel, scontrol, sacctmgr.

This module runs programs; `commands` makes what is submitted, and `parse` has the questions for nodes and jobs and
reads the answers. The programs get the PATH and SLURM_CONF of this program, and nothing else of its environment.

No agent's name is submitted twice, also if an answer of Slurm's was lost.
"""

import os
import threading
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
    AGENT_PREFIX,
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
_NO_SUCH_NODE = "invalid node name"


class SlurmCluster:
    """Slurm, asked as the user of this program. `owners`: the owners' partitions, if entitlements are on."""

    def __init__(self, settings: ClusterSettings, logs: Path, owners: Sequence[str] = ()) -> None:
        self._settings = settings
        self._logs = logs
        self._owners = tuple(owners)
        self._lock = threading.Lock()
        """The lock for the fields that `read` writes: a look may be in another thread than a submission."""
        self._count = 0
        """The number of names that have been submitted."""
        self._known: dict[str, SchedulerId] | None = None
        """The names that are taken, by the last look and the submissions since; None before the first look."""
        self._since: dict[str, int] = {}
        """The names that may have been submitted since the last look began, each with the `_count` of then."""
        self._doubtful: set[str] = set()
        """Names whose submission was not answered."""
        self._next_submit_s = 0.0

    def read(self, now_s: float) -> Snapshot:
        """See `Cluster.read`."""
        began = self._count
        snapshot = self._poll(now_s)
        agents = (job for job in snapshot.jobs if job.is_own and job.name.startswith(AGENT_PREFIX))
        seen = {agent.name: SchedulerId(agent.id) for agent in agents}
        with self._lock:
            self._since = {name: at for name, at in self._since.items() if at > began}
            self._known = {name: (self._known or {})[name] for name in self._since} | seen
            self._doubtful -= seen.keys()
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
        """See `Cluster.submit`. Waits, if needed, to keep to `submits_per_s`.

        A name without an answer is looked up once more. Agents that have just ended count, too.
        """
        name = request.name
        if (known := self._id_of(name)) is not None:
            return known
        self._pace()
        self._doubtful.add(name)
        try:
            id_ = self._send(request, now_s)
        except ClusterRefused as error:
            self._doubtful.discard(name)
            raise ClusterRefused(f"{error} ({commands.asked(self._settings)})") from error
        except ClusterError:  # no answer, or none that we can read: Slurm may have accepted it
            found = self._look_up(name)
            if found is None:
                raise
            id_ = found
        return self._remember(name, id_)

    def _send(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """Submit the agent. Try again without the nodes to be excluded that Slurm no longer knows.

        If one name is unknown, Slurm refuses the whole submission. A refusal that stays names the nodes.
        """
        words = commands.submit(self._settings, request, now_s)
        script = commands.script(self._settings, self._logs, request)
        try:
            return parse.parse_submitted(self._run(words, given=script, submits=True))
        except ClusterRefused as error:
            if not request.exclude or _NO_SUCH_NODE not in str(error).lower():
                raise
            there = self._node_names()
            left = tuple(name for name in request.exclude if name in there)
            if left == request.exclude:
                raise ClusterRefused(f"{error}, of the nodes to be excluded: {', '.join(left)}") from error
            return self._send(replace(request, exclude=left), now_s)

    def _id_of(self, name: str) -> SchedulerId | None:
        if self._known is not None and name in self._known:
            return self._known[name]
        if self._known is None or name in self._doubtful:
            found = self._look_up(name)
            return self._remember(name, found) if found is not None else None
        return None

    def _remember(self, name: str, found: SchedulerId) -> SchedulerId:
        with self._lock:
            self._doubtful.discard(name)
            if self._known is not None:
                self._count += 1
                self._known[name] = found
                self._since[name] = self._count
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
        if agents:  # the warning of an end, see `commands.script`
            self._run(["scancel", "--batch", "--signal=USR1", *agents])

    def _node_names(self) -> frozenset[str]:
        """Return the names of the nodes that agents may run on, as Slurm knows them now."""
        word = parse.new_word()
        nodes = self._run(parse.ask_nodes_in(word, [self._settings.partition]))
        return frozenset(parse.parse_tables(nodes, "", word).nodes)

    def _look_up(self, name: str) -> SchedulerId | None:
        """Return the id of our job of this name, also if it ended minutes ago (MinJobAge)."""
        words = ["squeue", "--me", "--noheader", f"--name={name}", "--states=all", "--format=%i"]
        ids = parse.parse_ids(self._run(words))
        return ids[0] if ids else None

    def _run(self, words: Sequence[str], *, given: str = "", submits: bool = False) -> str:
        return run.run(words, timeout_s=self._settings.timeout_s, given=given, submits=submits)


if TYPE_CHECKING:
    _: type[Cluster] = SlurmCluster
