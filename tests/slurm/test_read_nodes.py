"""The jobs and states of nodes, read from Slurm's answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.slurm_harness import FakedSlurm
from tests.slurm_admin.facts import shown

from gleaner.control.daemon.drains import is_ours, occupant
from gleaner.control.policy.draining import Kind
from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.parse_json import parse_jobs_on, parse_nodes
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode

NONE = {"set": False, "infinite": False, "number": 0}
JOB: dict[str, Any] = shown(
    job_id=12, user_name="alice", comment="gleaner:preemptible", nodes="n[1-2]", job_state=["RUNNING"],
    end_time={"set": True, "infinite": False, "number": 9000},
)  # fmt: skip
NODE: dict[str, Any] = {"name": "n1", "partitions": ["shared"], "state": ["IDLE"], "reason": ""}


def jobs(*listed: dict[str, Any]) -> tuple[SlurmJob, ...]:
    found, gaps = parse_jobs_on(json.dumps({"jobs": listed}), ["n1"])
    assert gaps == ""
    return found


def test_a_job_is_what_slurm_says_of_it() -> None:
    (job,) = jobs(JOB)
    assert (job.id, job.user, job.nodes, job.end_s) == ("12", "alice", ("n1", "n2"), 9000.0)
    assert (job.partitions, job.comment, job.is_completing) == (("shared",), "gleaner:preemptible", False)


def test_a_task_of_an_array_has_the_name_that_the_slurm_admin_knows() -> None:
    task = {"array_job_id": {"set": True, "number": 7}, "array_task_id": {"set": True, "number": 0}}
    assert jobs(JOB | task)[0].id == "7_0"


def test_what_waits_or_is_elsewhere_is_not_there() -> None:
    assert jobs(JOB | {"job_state": ["PENDING"]}, JOB | {"nodes": "n2"}, JOB | {"nodes": ""}) == ()
    for state in (["RUNNING", "COMPLETING"], ["PENDING", "COMPLETING"]):
        assert jobs(JOB | {"job_state": state})[0].is_completing, "a requeued job is there until its processes are gone"


@pytest.mark.parametrize("end", [{"infinite": True}, {"set": False}, {"number": 0}], ids=["endless", "unset", "zero"])
def test_an_end_that_nobody_knows_is_none(end: dict[str, Any]) -> None:
    assert jobs(JOB | {"end_time": JOB["end_time"] | end})[0].end_s is None


@pytest.mark.parametrize(("batch", "requeue"), [(False, True), (True, False), (True, True)])
def test_what_is_interactive_or_says_no_cannot_be_requeued(*, batch: bool, requeue: bool) -> None:
    (job,) = jobs(JOB | {"batch_flag": batch, "requeue": requeue})
    found = occupant(job, {}, owners_in={"shared"}, agents_in="gleaner")
    assert (found.kind, found.cannot == "") == (Kind.PREEMPTIBLE, batch and requeue)


def test_a_node_is_ours_by_our_mark_and_used_by_what_slurm_says() -> None:
    def node(**facts: Any) -> SlurmNode:
        return parse_nodes(json.dumps({"nodes": [NODE | facts]}))[0]["n1"]

    found = node(state=["IDLE", "DRAIN"], reason="gleaner: drained by root")
    assert (found.is_drained, is_ours(found), found.is_used) == (True, True, False)
    found = node(state=["MIXED", "DRAIN"], reason="new memory")
    assert (found.is_drained, is_ours(found), found.is_used) == (True, False, True)
    found = node(state=["IDLE"], reason="gleaner: drained by root")
    assert (found.is_drained, is_ours(found)) == (False, False), "a reason outlives its drain"


@pytest.fixture
def slurm(faked: FakedSlurm, tmp_path: Path) -> SlurmCluster:
    shows(faked, [NODE, NODE | {"name": "n2"}], [JOB])
    return SlurmCluster(ClusterSettings(timeout_s=5), tmp_path)


def shows(faked: FakedSlurm, nodes: list[dict[str, Any]], jobs: list[dict[str, Any]]) -> None:
    faked.switch("nodes.json", json.dumps({"nodes": nodes}))
    text = json.dumps({"jobs": jobs}, ensure_ascii=False)
    (faked.folder / "on-nodes.json").write_bytes(text.encode("latin-1"))


@pytest.mark.parametrize("is_strict", [True, False], ids=["refuses", "passes over"])
def test_a_node_that_slurm_does_not_know_keeps_nobody_from_looking_at_the_others(
    slurm: SlurmCluster, faked: FakedSlurm, *, is_strict: bool
) -> None:
    """Some versions of scontrol refuse the name; the others pass over the name, and squeue refuses it."""
    if is_strict:
        faked.switch("strict", "nodeX")
    found = slurm.read_nodes(["n1", "nodeX"], 1.0)
    assert (set(found.nodes), [job.id for job in found.jobs]) == ({"n1"}, ["12"])
    before = len(faked.calls("squeue"))
    found = slurm.read_nodes(["nodeX"], 1.0)
    assert (dict(found.nodes), found.jobs) == ({}, ())
    assert len(faked.calls("squeue")) == before, "without a name it would answer for all nodes"


def test_a_comment_that_is_no_utf8_and_a_record_that_cannot_be_read_cost_no_other_job_anything(
    slurm: SlurmCluster, faked: FakedSlurm
) -> None:
    odd = JOB | {"job_id": 13, "comment": "caf\xe9", "user_name": "bob"}
    wrong = JOB | {"job_id": 14, "nodes": ["n1"]}
    shows(faked, [NODE, {"name": "n2", "partitions": 7}], [JOB, odd, wrong])
    found = slurm.read_nodes(["n1"], 1.0)
    assert [(job.id, job.user, job.comment) for job in found.jobs] == [
        ("12", "alice", "gleaner:preemptible"),
        ("13", "bob", "caf\N{REPLACEMENT CHARACTER}"),
    ]
    assert found.gaps == (
        "Slurm said of node 'n2' what cannot be read: 7 is no text;"
        " Slurm said of job 14 what cannot be read: ['n1'] is no text"
    )


@pytest.mark.parametrize("name", ["munge1", "authentication"])
def test_a_name_that_reads_like_a_slurm_that_is_away_is_refused_all_the_same(
    slurm: SlurmCluster, faked: FakedSlurm, name: str
) -> None:
    """Else a drain of it would wait for ever for a Slurm that has answered."""
    faked.switch("strict", name)
    found = slurm.read_nodes([name], 1.0)
    assert (dict(found.nodes), found.jobs) == ({}, ())


def test_what_is_no_answer_is_an_error_in_one_line() -> None:
    with pytest.raises(ClusterError, match="squeue said 'slurm_load_jobs"):
        parse_jobs_on("slurm_load_jobs error", ["n1"])
