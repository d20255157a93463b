"""The PySlurm backend when PySlurm or Slurm misbehaves, what it tells, and when it is chosen. PySlurm is faked."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.slurm import slurm_harness
from tests.slurm.slurm_harness import FakedSlurm, Place

from gleaner.control.settings import ClusterSettings, Settings, StorageSettings
from gleaner.control.slurm import factory
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.pyslurm import PySlurmCluster, parse_look

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(faked_pyslurm: FakedSlurm, tmp_path: Path) -> Place:
    return slurm_harness.pyslurm(tmp_path, python=faked_pyslurm.pyslurm_python, logs=tmp_path)


@pytest.fixture
def impatient(faked_pyslurm: FakedSlurm, tmp_path: Path) -> Place:
    """The same, for a call that does hang."""
    return slurm_harness.pyslurm(tmp_path, python=faked_pyslurm.pyslurm_python, logs=tmp_path, timeout_s=5)


def settings(folder: Path, python: Path) -> Settings:
    cluster = ClusterSettings(backend="auto", pyslurm_python=python)
    return Settings(cluster=cluster, storage=StorageSettings(folder=folder))


def test_a_call_that_hangs_costs_the_time_out_and_the_next_one_is_answered(
    impatient: Place, faked_pyslurm: FakedSlurm
) -> None:
    impatient.look()
    faked_pyslurm.switch("hangs")
    with pytest.raises(ClusterUnavailable, match=r"^Slurm does not answer: .*python took more than 5 s$"):
        impatient.look()
    faked_pyslurm.heal("hangs")
    assert len(impatient.look().nodes) == 3


def test_auto_takes_pyslurm_where_it_fits_the_cluster_and_says_so(faked_pyslurm: FakedSlurm, tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert isinstance(factory.cluster(settings(tmp_path, faked_pyslurm.pyslurm_python)), PySlurmCluster)
    said = ("Slurm is asked through PySlurm", "PySlurm 25.11.2, Slurm 25.11.4")
    assert [(log["event"], log["versions"]) for log in logs] == [said]


@pytest.mark.parametrize(
    ("switch", "text", "why"),
    [
        ("built", "24.11.5", "built for Slurm 24.11.5"),
        ("away", "", "Unable to contact slurm controller"),
        ("broken", "", "Unable to process configuration"),
    ],
)
def test_auto_takes_slurms_programs_where_pyslurm_does_not_fit_and_says_why(
    faked_pyslurm: FakedSlurm, tmp_path: Path, switch: str, text: str, why: str
) -> None:
    faked_pyslurm.switch(switch, text)
    with capture_logs() as logs:
        assert isinstance(factory.cluster(settings(tmp_path, faked_pyslurm.pyslurm_python)), SlurmCluster)
    assert [(log["event"], why in log["why"]) for log in logs] == [("Slurm is asked by its programs", True)]


def test_its_process_gets_nothing_of_the_servers_environment(
    slurm: Place, faked_pyslurm: FakedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    python = faked_pyslurm.pyslurm_python
    python.write_text(f"{python.read_text().replace('exec ', f'env >{faked_pyslurm.folder}/told; exec ')}")
    slurm.look()
    told = {line.partition("=")[0] for line in (faked_pyslurm.folder / "told").read_text().splitlines()}
    assert told - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LC_ALL", "TZ"}


def test_where_owners_jobs_are_read_the_programs_are_asked(faked_pyslurm: FakedSlurm, tmp_path: Path) -> None:
    faked_pyslurm.switch("broken")
    settings = ClusterSettings(pyslurm_python=faked_pyslurm.pyslurm_python)
    assert set(PySlurmCluster(settings, tmp_path, ("shared",)).read(1.0).nodes) == {"n1", "n2", "n3"}


def test_a_record_that_cannot_be_read_is_left_out_alone_unless_it_is_an_agents() -> None:
    job: dict[str, object] = {
        "JobArrayID": 7, "Name": "", "State": "RUNNING", "Partition": "gleaner", "NodeList": "n1", "SubmitTime": 1,
        "StartTime": 2, "EndTime": None,
    }  # fmt: skip
    node = {"NodeList": "n1", "CPUsState": "0/0/0/6", "Memory": 4000, "StateComplete": "idle+drain", "Available": "up"}
    nodes = [node | {"PartitionName": "gleaner"}, {"NodeList": "n2", "CPUsState": "six", "Available": "up"}]
    answer = {"nodes": nodes, "jobs": [job, job | {"NodeList": "n["}, job | {"JobArrayID": 8, "State": "CANCELLED"}]}
    found = parse_look(json.dumps(answer), read_s=1.0)
    assert (set(found.nodes), [job.id for job in found.jobs]) == ({"n1"}, ["7"])
    assert (found.nodes["n1"].is_drained, found.gaps.count("what cannot be read")) == (True, 2)
    with pytest.raises(ClusterError, match="what cannot be read"):
        parse_look(json.dumps({"nodes": [], "jobs": [job | {"NodeList": "n[", "Name": "gleaner-a"}]}), read_s=1.0)
