"""What is on nodes, from what Slurm answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from gleaner.control.cluster.gateway import GatewayError
from gleaner.control.cluster.on_nodes import OnNodes
from gleaner.control.cluster.slurm_on_nodes import SlurmNodes, parse
from gleaner.control.cluster.slurm_owners import SlurmOwners
from gleaner.control.cluster.slurm_records import nodes
from gleaner.control.policy.job_class import JobClass

NONE = {"set": False, "infinite": False, "number": 0}
JOB: dict[str, Any] = {
    "job_id": 12, "array_job_id": {"set": True, "infinite": False, "number": 0}, "array_task_id": NONE,
    "user_name": "alice", "partition": "shared", "comment": "gleaner:preemptible", "nodes": "n[1-2]",
    "job_state": ["RUNNING"], "end_time": {"set": True, "infinite": False, "number": 9000},
    "requeue": True, "batch_flag": True,
}  # fmt: skip
NODE: dict[str, Any] = {"name": "n1", "partitions": ["shared"], "state": ["IDLE"], "reason": ""}


def look(*jobs: dict[str, Any], **node: Any) -> OnNodes:
    return parse(nodes(json.dumps({"nodes": [NODE | node]})), json.dumps({"jobs": jobs}), ["n1"])


def test_a_job_is_what_slurm_says_of_it() -> None:
    (job,) = look(JOB).jobs
    assert (job.id, job.nodes, job.job_class, job.until_s) == ("12", ("n1", "n2"), JobClass.PREEMPTIBLE, 9000.0)
    assert (job.can_requeue, job.is_ending) == (True, False)


def test_a_task_of_an_array_has_the_name_that_the_steward_knows() -> None:
    task = {"array_job_id": {"set": True, "number": 7}, "array_task_id": {"set": True, "number": 0}}
    assert look(JOB | task).jobs[0].id == "7_0"


def test_what_waits_or_is_elsewhere_is_not_there() -> None:
    assert look(JOB | {"job_state": ["PENDING"]}, JOB | {"nodes": "n2"}, JOB | {"nodes": ""}).jobs == ()
    assert look(JOB | {"job_state": ["COMPLETING"]}).jobs[0].is_ending


@pytest.mark.parametrize("end", [{"infinite": True}, {"set": False}, {"number": 0}], ids=["endless", "unset", "zero"])
def test_an_end_that_nobody_knows_is_none(end: dict[str, Any]) -> None:
    assert look(JOB | {"end_time": JOB["end_time"] | end}).jobs[0].until_s is None


@pytest.mark.parametrize(("batch", "requeue"), [(False, True), (True, False)])
def test_what_is_interactive_or_says_no_cannot_be_requeued(*, batch: bool, requeue: bool) -> None:
    assert not look(JOB | {"batch_flag": batch, "requeue": requeue}).jobs[0].can_requeue


def test_a_node_is_ours_by_our_mark_and_used_by_what_slurm_says() -> None:
    node = look(state=["IDLE", "DRAIN"], reason="gleaner: drained by root").nodes["n1"]
    assert (node.is_drained, node.is_ours, node.is_used) == (True, True, False)
    node = look(state=["MIXED", "DRAIN"], reason="new memory").nodes["n1"]
    assert (node.is_drained, node.is_ours, node.is_used) == (True, False, True)
    node = look(state=["IDLE"], reason="gleaner: drained by root").nodes["n1"]
    assert (node.is_drained, node.is_ours) == (False, False), "a reason outlives its drain"


SCONTROL = """#!/bin/sh
echo "$@" >>{folder}/told
case "$*" in *nodeX*) echo "Node nodeX not found" >&2; exit 1;; esac
cat {folder}/nodes.json
"""
"""As an older Slurm does it; a newer one passes over the name, and squeue refuses it."""
SQUEUE = """#!/bin/sh
echo "squeue $@" >>{folder}/told
case "$*" in *nodeX*) echo "squeue: error: Invalid node name nodeX" >&2; exit 1;; esac
cat {folder}/jobs.json
"""


@pytest.mark.parametrize(
    "scontrol", [SCONTROL, SCONTROL.replace("nodeX*)", "neverX*)")], ids=["refuses", "passes over"]
)
def test_a_node_that_slurm_does_not_know_keeps_nobody_from_looking_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scontrol: str
) -> None:
    (tmp_path / "nodes.json").write_text(json.dumps({"nodes": [NODE, NODE | {"name": "n2"}]}))
    (tmp_path / "jobs.json").write_text(json.dumps({"jobs": [JOB]}))
    for name, text in (("scontrol", scontrol), ("squeue", SQUEUE)):
        (tmp_path / name).write_text(text.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    there = SlurmNodes(SlurmOwners(("shared",), agents="gleaner", timeout_s=5), timeout_s=5)
    found = there.look(["n1", "nodeX"])
    assert (set(found.nodes), [job.id for job in found.jobs]) == ({"n1"}, ["12"])
    (tmp_path / "told").unlink()
    found = there.look(["nodeX"])
    assert (dict(found.nodes), found.jobs) == ({}, ())
    assert "squeue" not in (tmp_path / "told").read_text(), "without a name it would answer for all nodes"


@pytest.mark.parametrize("name", ["munge1", "authentication"])
def test_a_name_that_reads_like_a_slurm_that_is_away_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else a drain of it would wait for ever for a Slurm that has answered."""
    (tmp_path / "nodes.json").write_text(json.dumps({"nodes": [NODE]}))
    (tmp_path / "scontrol").write_text(SCONTROL.replace("nodeX", name).format(folder=tmp_path))
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = SlurmNodes(SlurmOwners(("shared",), agents="gleaner", timeout_s=5), timeout_s=5).look([name])
    assert (dict(found.nodes), found.jobs) == ({}, ())


def test_what_is_no_answer_is_an_error_in_one_line() -> None:
    with pytest.raises(GatewayError, match="squeue said 'slurm_load_jobs"):
        parse({}, "slurm_load_jobs error", ["n1"])
