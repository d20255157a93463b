"""Slurm's programs, but a poll reads the nodes and our agents through PySlurm.

PySlurm is under the GPL, and never imported here: each poll runs a process of its own that prints what PySlurm tells.
A call of PySlurm holds its interpreter, and Slurm's library ends its process where the library does not like
slurm.conf. The process gets the PATH and SLURM_CONF of this program, and nothing else of its environment.
"""

import sys
from pathlib import Path
from typing import Any, cast

from gleaner.control.slurm import commands, parse_json, run
from gleaner.control.slurm.interface import AGENT_PREFIX, ClusterUnavailable
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot

_CHILD = Path(__file__).with_name("pyslurm_child.py")


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
        partition = self._settings.partition
        return parse_look(self._ask_child("look", partition), partition, read_s=now_s)

    def _ask_child(self, *words: str) -> str:
        python = str(self._settings.pyslurm_python or sys.executable)
        command, timeout_s = (python, "-I", str(_CHILD), *words), self._settings.timeout_s
        done = run.result(command, commands.SUBMIT_ENVIRONMENT, timeout_s=timeout_s)
        if done.status != 0:
            raise ClusterUnavailable(f"PySlurm does not answer: {python} says {run.complaint(done.stderr)!r}")
        return done.stdout


def parse_look(answer: str, partition: str, *, read_s: float) -> Snapshot:
    """Return the partition's nodes and our agents there, from what `pyslurm_child` prints."""
    nodes, gaps = parse_json.read_each(
        parse_json.listed(answer, "nodes", "PySlurm"), lambda one: _node(one, partition), _name
    )
    jobs, job_gaps = parse_json.read_each(
        parse_json.listed(answer, "jobs", "PySlurm"), lambda one: _job(one, partition), _name, is_needed=_is_agent
    )
    there = tuple(job for job in jobs if not job.has_ended)
    partitions, _ = parse_json.read_each(
        parse_json.listed(answer, "partitions", "PySlurm"),
        lambda one: (parse_json.text(one["name"]), parse_json.text(one["state"]).lower()),
        _name,
    )
    return Snapshot(
        read_s,
        {node.name: node for node in nodes},
        there,
        "; ".join(line for line in (gaps, job_gaps) if line),
        {name: state for name, state in partitions if state != "up"},
    )


def _name(one: object) -> str:
    return f"{one!r:.80}"


def _is_agent(one: object) -> bool:
    return isinstance(one, dict) and str(cast("dict[str, object]", one).get("name")).startswith(AGENT_PREFIX)


def _node(one: dict[str, Any], partition: str) -> SlurmNode:
    state = parse_json.text(one["state"])
    return SlurmNode(
        name=parse_json.text(one["name"]),
        partitions=frozenset({partition}),
        states=frozenset(state.split("+")),
        state=state.lower(),
        cpus=parse_json.needed(one["cpus"]),
        memory_mib=parse_json.needed(one["memory_mib"]),
    )


def _job(one: dict[str, Any], partition: str) -> SlurmJob:
    node = parse_json.text(one["node"])
    return SlurmJob(
        id=str(parse_json.needed(one["id"])),
        name=parse_json.text(one["name"]),
        is_own=True,
        partitions=(partition,),
        states=frozenset({parse_json.text(one["state"])}),
        reason=parse_json.text(one.get("reason")),
        nodes=(node,) if node else (),
        submitted_s=parse_json.needed(one["submitted_s"]),
        start_s=parse_json.number(one["start_s"]),
        end_s=parse_json.number(one["end_s"]),
    )
