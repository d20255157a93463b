"""What is on given nodes as Slurm tells of it: `scontrol` and `squeue`, in JSON, since a comment may hold anything."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gleaner.control.cluster import programs, slurm_records
from gleaner.control.cluster.gateway import GatewayError, GatewayRefused
from gleaner.control.cluster.hosts import expanded
from gleaner.control.cluster.on_nodes import JobFound, NodeFound, NodesCluster, OnNodes
from gleaner.control.cluster.slurm_owners import SlurmOwners, job_class
from gleaner.control.cluster.slurm_words import ASK_ENVIRONMENT, WAITING_STATES
from gleaner.control.steward.marks import DRAINED_BY

_USED = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
_DRAIN = "DRAIN"
_NO_JOBS = '{"jobs": []}'


class SlurmNodes:
    """Nodes of a Slurm cluster, by its command-line tools."""

    def __init__(self, owners: SlurmOwners, *, timeout_s: float) -> None:
        self._owners = owners
        self._timeout_s = timeout_s

    def look(self, nodes: Sequence[str]) -> OnNodes:
        """See `NodesCluster.look`."""
        there = self._known(nodes)
        names = [name for name in nodes if name in there]
        # For one unknown name squeue refuses them all, and without any it would answer for every node.
        on_them = self._run(["squeue", "--json", f"--nodelist={','.join(names)}"]) if names else _NO_JOBS
        return parse(there, on_them, names)

    def waits_held(self, job: str) -> bool | None:
        """See `NodesCluster.waits_held`."""
        try:
            found = slurm_records.job(self._run(list(slurm_records.ask_job(job))), job)
        except GatewayRefused:  # Slurm has forgotten it
            return None
        return found.priority == 0 if found is not None and found.is_pending else None

    def send_home(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `NodesCluster.send_home`."""
        self._owners.send_home(agents, gone_s=gone_s)

    def _known(self, nodes: Sequence[str]) -> dict[str, slurm_records.NodeRecord]:
        """Those of these nodes that Slurm knows. Not every version answers if it does not know one of them."""
        try:
            answer = self._run(list(slurm_records.ask_nodes(nodes)))
        except GatewayRefused:
            answer = self._run(list(slurm_records.ask_all_nodes()))
        return {name: record for name, record in slurm_records.nodes(answer).items() if name in nodes}

    def _run(self, words: list[str]) -> str:
        return programs.run(words, ASK_ENVIRONMENT, timeout_s=self._timeout_s)


def parse(nodes: Mapping[str, slurm_records.NodeRecord], jobs: str, wanted: Sequence[str]) -> OnNodes:
    """These nodes, and the jobs there in the answer of `squeue --json`."""
    found = {name: _node(record) for name, record in nodes.items()}
    try:
        listed: list[dict[str, Any]] = json.loads(jobs)["jobs"]
        there = tuple(_job(one) for one in listed if not set(one["job_state"]) & WAITING_STATES)
    except (ValueError, KeyError, TypeError) as error:
        raise GatewayError(f"squeue said {jobs[:80]!r} where JSON with jobs was expected") from error
    return OnNodes(found, tuple(job for job in there if set(job.nodes) & set(wanted)))


def _node(record: slurm_records.NodeRecord) -> NodeFound:
    return NodeFound(
        name=record.name,
        reason=record.reason,
        is_drained=_DRAIN in record.states,
        is_ours=_DRAIN in record.states and record.reason.startswith(DRAINED_BY),
        is_used=bool(record.states & _USED),
    )


def _job(one: Mapping[str, Any]) -> JobFound:
    array, task, end = one["array_job_id"], one["array_task_id"], one["end_time"]
    is_task = bool(array["number"]) and task["set"]
    return JobFound(
        id=f"{array['number']}_{task['number']}" if is_task else str(one["job_id"]),
        user=one["user_name"],
        partition=one["partition"],
        job_class=job_class(one["comment"] or ""),
        nodes=tuple(expanded(one["nodes"] or "")),
        is_ending="COMPLETING" in one["job_state"],
        until_s=float(end["number"]) if end["set"] and not end["infinite"] and end["number"] else None,
        can_requeue=bool(one["requeue"]) and bool(one["batch_flag"]),
        submitted_s=_instant(one.get("submit_time")),
    )


def _instant(given: Mapping[str, Any] | None) -> float | None:
    return float(given["number"]) if given is not None and given["set"] else None


if TYPE_CHECKING:
    _: type[NodesCluster] = SlurmNodes
