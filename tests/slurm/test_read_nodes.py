"""The jobs and states of nodes, read from Slurm's answers."""

import json
import os
from pathlib import Path

import pytest
from tests.slurm import records
from tests.slurm.records import NODE, WORD, table
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.control.daemon.drains import is_ours
from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm import parse, run
from gleaner.control.slurm.interface import ClusterRefused, ClusterUnavailable
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.snapshot import SlurmNode

JOB = records.JOB | {
    "JobArrayID": "12", "State": "RUNNING", "NodeList": "n[1-2]", "Comment": "gleaner:preemptible", "EndTime": "9000",
}  # fmt: skip


@pytest.fixture
def slurm(faked: FakedSlurm, tmp_path: Path) -> SlurmCluster:
    shows(faked, [NODE, NODE | {"NodeList": "n2"}], [JOB])
    return SlurmCluster(ClusterSettings(timeout_s=5), tmp_path)


def shows(faked: FakedSlurm, nodes: list[dict[str, str]], jobs: list[dict[str, str]]) -> None:
    faked.switch("nodes.json", json.dumps(nodes))
    faked.switch("on-nodes.json", json.dumps(jobs))


def test_what_waits_is_not_there_and_a_requeued_job_is_until_its_processes_are_gone(
    slurm: SlurmCluster, faked: FakedSlurm
) -> None:
    shows(faked, [NODE], [JOB | {"State": state} for state in ("PENDING", "COMPLETING")])
    assert [job.is_completing for job in slurm.read_nodes(["n1"], 1.0).jobs] == [True]


def test_a_node_is_ours_by_our_mark_and_used_by_what_slurm_says() -> None:
    def node(state: str, reason: str) -> SlurmNode:
        shown = table(NODE | {"StateComplete": state, "Reason": reason})
        return parse.parse_tables(shown, "", WORD).nodes["n1"]

    found = node("idle+drain", "gleaner: drained by root")
    assert (found.is_drained, is_ours(found), found.is_used) == (True, True, False)
    found = node("mixed+drain", "new memory")
    assert (found.is_drained, is_ours(found), found.is_used) == (True, False, True)
    found = node("idle", "gleaner: drained by root")
    assert (found.is_drained, is_ours(found)) == (False, False), "a reason outlives its drain"


def test_a_node_that_slurm_does_not_know_keeps_nobody_from_looking_at_the_others(
    slurm: SlurmCluster, faked: FakedSlurm
) -> None:
    """sinfo passes over the name, and squeue refuses it."""
    found = slurm.read_nodes(["n1", "nodeX"], 1.0)
    assert (set(found.nodes), [job.id for job in found.jobs]) == ({"n1"}, ["12"])
    found = slurm.read_nodes(["nodeX"], 1.0)
    assert (dict(found.nodes), found.jobs) == ({}, ())
    assert all(any("--nodelist=" in word for word in call["words"]) for call in faked.calls("squeue"))


def test_a_node_in_no_partition_is_not_taken_for_unknown(slurm: SlurmCluster, faked: FakedSlurm) -> None:
    """sinfo does not show it, and squeue takes its name."""
    shows(faked, [NODE], [])
    with pytest.raises(ClusterUnavailable, match="n2 is in no partition"):
        slurm.read_nodes(["n1", "n2"], 1.0)


def test_only_a_job_that_slurm_has_forgotten_is_none_and_any_other_refusal_is_an_error(
    slurm: SlurmCluster, faked: FakedSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drained job that was taken for forgotten would never be released."""
    assert slurm.read_job("12") is None
    denied = tmp_path / "denied"
    denied.mkdir()
    (denied / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Access/permission denied' >&2; exit 1\n")
    (denied / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{denied}:{os.environ['PATH']}")
    with pytest.raises(ClusterRefused, match="permission denied"):
        slurm.read_job("12")


@pytest.mark.parametrize("name", ["munge1", "authentication"])
def test_a_name_that_reads_like_a_slurm_that_is_away_is_refused_all_the_same(name: str) -> None:
    """Else a drain of it would wait for ever for a Slurm that has answered."""
    said = f"squeue: error: Invalid node name {name}"
    assert not run.is_no_answer(run.without(said, ["squeue", f"--nodelist=n1,{name}"]))
