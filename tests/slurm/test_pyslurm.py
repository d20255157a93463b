"""The PySlurm backend when PySlurm or Slurm misbehaves, and what it tells. PySlurm is faked."""

import json
import sys
from pathlib import Path

import pytest
from tests.slurm import slurm_harness
from tests.slurm.slurm_harness import FakedSlurm, Place

from gleaner.control.settings import ClusterSettings
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm.pyslurm import PySlurmCluster, parse_look

pytestmark = pytest.mark.slow


@pytest.fixture
def python(faked: FakedSlurm) -> Path:
    """A Python that has a faked PySlurm. Told to be isolated, it would not look into the folder."""
    (faked.folder / "pyslurm.py").write_text((Path(__file__).parent / "fake_pyslurm.py").read_text())
    run = "import runpy, sys; sys.path.insert(0, sys.argv[1]); sys.argv = sys.argv[3:]; "
    run += "runpy.run_path(sys.argv[0], run_name='__main__')"
    program = faked.folder / "pyslurm-python"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{run}" {faked.folder} "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def slurm(python: Path, tmp_path: Path) -> Place:
    return slurm_harness.pyslurm(tmp_path, python=python, logs=tmp_path)


def test_a_call_that_hangs_costs_the_time_out_and_the_next_one_is_answered(
    python: Path, faked: FakedSlurm, tmp_path: Path
) -> None:
    impatient = slurm_harness.pyslurm(tmp_path, python=python, logs=tmp_path, timeout_s=5)
    impatient.look()
    faked.switch("hangs")
    with pytest.raises(ClusterUnavailable, match=r"^Slurm does not answer: .*python took more than 5 s$"):
        impatient.look()
    faked.heal("hangs")
    assert len(impatient.look().nodes) == 3


def test_a_slurm_that_is_away_is_unavailable_in_one_line(slurm: Place, faked: FakedSlurm) -> None:
    assert [(agent.id, agent.name, agent.is_pending) for agent in slurm.look().jobs] == [("7", "gleaner-a", True)]
    faked.switch("away")
    with pytest.raises(ClusterUnavailable, match=r"^PySlurm does not answer: .* says 'Unable to contact slurm"):
        slurm.look()
    faked.heal("away")
    assert len(slurm.look().nodes) == 3


def test_a_library_that_ends_the_process_is_unavailable_with_its_last_words(slurm: Place, faked: FakedSlurm) -> None:
    faked.switch("broken")
    with pytest.raises(ClusterUnavailable, match=r"^PySlurm does not answer: .*Unable to process configuration"):
        slurm.look()


def test_a_pyslurm_that_was_built_for_another_slurm_is_not_used(slurm: Place, faked: FakedSlurm) -> None:
    faked.switch("built", "24.11.5")
    with pytest.raises(ClusterUnavailable, match=r"built for Slurm 24.11.5, and the cluster has 25.11.4; .*backend ="):
        slurm.look()


def test_its_process_gets_nothing_of_the_servers_environment(
    slurm: Place, python: Path, faked: FakedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    python.write_text(f"{python.read_text().replace('exec ', f'env >{faked.folder}/told; exec ')}")
    slurm.look()
    told = {line.partition("=")[0] for line in (faked.folder / "told").read_text().splitlines()}
    assert told - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LC_ALL", "TZ"}


def test_where_owners_jobs_are_read_the_programs_are_asked(python: Path, faked: FakedSlurm, tmp_path: Path) -> None:
    faked.switch("broken")
    settings = ClusterSettings(pyslurm_python=python)
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
