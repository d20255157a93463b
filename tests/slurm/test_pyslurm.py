"""The PySlurm backend when PySlurm or Slurm misbehaves, what it hands over, and when it is chosen. PySlurm is faked."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.privileged.waiting import wait_until
from tests.slurm import slurm_harness
from tests.slurm.slurm_harness import FakedPySlurm, Place

from gleaner.control.settings import ClusterSettings, Settings, StorageSettings
from gleaner.control.slurm import factory
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm.program_cluster import SlurmCluster
from gleaner.control.slurm.pyslurm import PySlurmCluster

pytestmark = pytest.mark.slow


@pytest.fixture
def slurm(faked_pyslurm: FakedPySlurm, tmp_path: Path) -> Place:
    return slurm_harness.pyslurm(tmp_path, python=faked_pyslurm.python, logs=tmp_path)


@pytest.fixture
def impatient(faked_pyslurm: FakedPySlurm, tmp_path: Path) -> Place:
    """The same, for a call that does hang."""
    return slurm_harness.pyslurm(tmp_path, python=faked_pyslurm.python, logs=tmp_path, timeout_s=5)


def settings(folder: Path, python: Path) -> Settings:
    cluster = ClusterSettings(backend="auto", pyslurm_python=python)
    return Settings(cluster=cluster, storage=StorageSettings(folder=folder))


def test_a_call_that_hangs_costs_the_time_out_and_the_next_one_is_answered(
    impatient: Place, faked_pyslurm: FakedPySlurm
) -> None:
    impatient.look()
    faked_pyslurm.switch("stuck")
    with pytest.raises(ClusterUnavailable, match=r"^Slurm does not answer: PySlurm took more than 5 s$"):
        impatient.look()
    faked_pyslurm.heal("stuck")
    assert len(impatient.look().nodes) == 3


def test_a_slurm_that_is_away_is_unavailable_in_one_line(slurm: Place, faked_pyslurm: FakedPySlurm) -> None:
    slurm.look()
    faked_pyslurm.switch("away")
    for ask in (slurm.look, lambda: slurm.submit(slurm.request())):
        with pytest.raises(ClusterUnavailable, match=r"^Slurm does not answer: PySlurm says 'Unable to contact slurm"):
            ask()
    faked_pyslurm.heal("away")
    assert len(slurm.look().nodes) == 3


def test_a_library_that_ends_the_process_is_unavailable_with_its_last_words(
    slurm: Place, faked_pyslurm: FakedPySlurm
) -> None:
    faked_pyslurm.switch("broken")
    with pytest.raises(ClusterUnavailable, match=r"^PySlurm's process has ended: .*Unable to process configuration"):
        slurm.look()


def test_what_the_library_prints_is_not_taken_for_an_answer(slurm: Place, faked_pyslurm: FakedPySlurm) -> None:
    faked_pyslurm.switch("chatty")
    assert len(slurm.look().nodes) == 3


def test_a_submission_that_is_not_answered_makes_no_second_agent(impatient: Place, faked_pyslurm: FakedPySlurm) -> None:
    impatient.look()
    request = impatient.request()
    faked_pyslurm.switch("mute")
    id_ = impatient.submit(request)
    faked_pyslurm.heal("mute")
    assert impatient.submit(request) == id_
    assert [(agent.name, agent.id) for agent in impatient.look().jobs] == [(request.name, id_)]
    assert len(faked_pyslurm.submissions()) == 1


def test_a_refusal_names_what_was_asked_for_and_is_not_called_unavailable(
    slurm: Place, faked_pyslurm: FakedPySlurm
) -> None:
    faked_pyslurm.switch("refuse", "Invalid partition name specified")
    with pytest.raises(ClusterError) as refused:
        slurm.submit(slurm.request())
    assert not isinstance(refused.value, ClusterUnavailable)
    assert str(refused.value) == "Slurm refuses: PySlurm says 'Invalid partition name specified' (partition gleaner)"


def test_a_submission_that_cannot_be_completed_is_withdrawn_again(slurm: Place, faked_pyslurm: FakedPySlurm) -> None:
    faked_pyslurm.switch("fixed")
    with pytest.raises(ClusterError, match="scontrol says 'Job is fixed'"):
        slurm.submit(slurm.request())
    assert slurm.look().jobs == ()


def test_a_job_that_does_not_end_is_named_whatever_the_call_said(slurm: Place, faked_pyslurm: FakedPySlurm) -> None:
    id_ = slurm.cluster.submit(slurm.request(), time.time())
    faked_pyslurm.switch("immortal")
    with pytest.raises(ClusterError, match=f"job {id_} did not end"):
        slurm.cluster.withdraw([id_])


def test_neither_the_child_nor_the_agent_gets_the_servers_environment(
    slurm: Place, faked_pyslurm: FakedPySlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_PASSWORD", "hunter2")
    monkeypatch.setenv("SLURM_JOB_ID", "of another job")
    slurm.submit(slurm.request())
    (submission,) = faked_pyslurm.submissions()
    assert set(submission["environment"]) - {"PWD", "SHLVL", "_", "LC_CTYPE"} == {"PATH", "LC_ALL", "TZ"}
    assert set(submission["facts"]["environment"]) == {"PATH"}


def test_all_of_the_nodes_memory_is_asked_for_before_the_start(slurm: Place, faked_pyslurm: FakedPySlurm) -> None:
    id_ = slurm.submit(slurm.request())
    told = (faked_pyslurm.folder / "scontrol").read_text()
    assert told == f"update JobId={id_} MinMemoryNode=0 StartTime=now\n"
    assert faked_pyslurm.submissions()[0]["facts"]["begin_time"] > time.time()


def test_a_pyslurm_that_was_built_for_another_slurm_is_not_used(slurm: Place, faked_pyslurm: FakedPySlurm) -> None:
    faked_pyslurm.switch("built", "24.11.5")
    with pytest.raises(ClusterUnavailable, match=r"built for Slurm 24.11.5, and the cluster has 25.11.4; .*backend ="):
        slurm.look()


def test_auto_takes_pyslurm_where_it_fits_the_cluster_and_says_so(faked_pyslurm: FakedPySlurm, tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert isinstance(factory.cluster(settings(tmp_path, faked_pyslurm.python)), PySlurmCluster)
    assert [(log["event"], log["cluster"]) for log in logs] == [("Slurm is asked through PySlurm", "25.11.4")]


@pytest.mark.parametrize(
    ("switch", "text", "why"),
    [
        ("built", "24.11.5", "built for Slurm 24.11.5"),
        ("away", "", "Unable to contact slurm controller"),
        ("broken", "", "process has ended"),
    ],
)
def test_auto_takes_slurms_programs_where_pyslurm_does_not_fit_and_says_why(
    faked_pyslurm: FakedPySlurm, tmp_path: Path, switch: str, text: str, why: str
) -> None:
    faked_pyslurm.switch(switch, text)
    with capture_logs() as logs:
        assert isinstance(factory.cluster(settings(tmp_path, faked_pyslurm.python)), SlurmCluster)
    assert [(log["event"], why in log["why"]) for log in logs] == [("Slurm is asked by its programs", True)]


def test_auto_takes_slurms_programs_where_there_is_no_pyslurm(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert isinstance(factory.cluster(settings(tmp_path, Path(sys.executable))), SlurmCluster)
    assert f"{sys.executable} says \"No module named 'pyslurm'\"; install it there" in logs[0]["why"]


def test_a_child_ends_with_the_program_that_asks_it_even_if_that_is_killed(
    faked_pyslurm: FakedPySlurm, tmp_path: Path
) -> None:
    program = f"""
import time
from pathlib import Path
from gleaner.control.slurm.pyslurm import PySlurmCluster
from gleaner.control.settings import ClusterSettings
backend = PySlurmCluster(ClusterSettings(pyslurm_python={str(faked_pyslurm.python)!r}), Path("/"))
backend.read(0)
print("looked", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"looked\n"
        (child,) = [path for path in Path("/proc").iterdir() if path.name.isdigit() and _is_child(path, faked_pyslurm)]
        parent.kill()
    wait_until(lambda: not _is_child(child, faked_pyslurm), "the child ends")


def _is_child(process: Path, faked: FakedPySlurm) -> bool:
    try:
        return str(faked.folder).encode() in (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
