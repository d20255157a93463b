"""A submission through PySlurm, beside one by sbatch, on the same real controller."""

import time
from pathlib import Path

import pytest
from tests.slurm import pyslurm_container, slurm_harness
from tests.slurm.pyslurm_container import PySlurmContainer
from tests.slurm.slurm_harness import Place

from gleaner.control.settings import ClusterSettings, Settings, StorageSettings
from gleaner.control.slurm import factory
from gleaner.control.slurm.agents_view import agent_phase
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm.pyslurm import PySlurmCluster
from gleaner.control.slurm.snapshot import JobPhase

pytestmark = [pytest.mark.nodes, pytest.mark.extended]

PRINTED = ClusterSettings().agent_logs
"""The folder of its nodes for what agents print."""
PRINTER = ("sh", "-c", f"(env; echo) >{PRINTED}/$3.env; sleep 300", "agent")
"""An agent that writes down its environment, under its own name (`run --name NAME`)."""
MATTERS = (
    "TimeLimit", "TimeMin", "Requeue", "Nice", "NumNodes", "NumCPUs", "AllocTRES", "MinMemoryNode", "OverSubscribe",
    "WorkDir", "StdIn", "Partition",
)  # fmt: skip
DIFFERS = {"SLURM_EXPORT_ENV", "SLURM_PROFILE", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST"}
"""Of the submission alone; the agent and the Slurm programs that it runs do not look at them."""


@pytest.fixture
def pair(real_pyslurm: PySlurmContainer, tmp_path: Path) -> dict[str, Place]:
    """Both backends to one controller."""
    python = tmp_path / "bin" / pyslurm_container.PYTHON
    return {
        "slurm": slurm_harness.slurm(tmp_path, logs=Path("/tmp"), agent=PRINTER),
        "pyslurm": slurm_harness.pyslurm(tmp_path, python=python, logs=Path("/tmp"), agent=PRINTER),
    }


def test_an_agent_gets_the_same_from_slurm_whichever_way_it_was_submitted(
    pair: dict[str, Place], container: PySlurmContainer
) -> None:
    jobs: dict[str, dict[str, str]] = {}
    environments: dict[str, set[str]] = {}
    for way, place in pair.items():
        request = place.request()
        id_ = place.submit(request)
        place.eventually(lambda view: [agent_phase(agent) for agent in view.jobs] == [JobPhase.RUNNING])
        environments[way] = wait_for_environment(container, request.name)
        jobs[way] = facts(container.run("scontrol", "show", "job", id_))
        place.cluster.withdraw([id_])
        place.eventually(lambda view: not view.jobs)
    assert [jobs["pyslurm"].get(name) for name in MATTERS] == [jobs["slurm"][name] for name in MATTERS]
    assert jobs["pyslurm"]["AllocTRES"] == "cpu=6,mem=4000M,node=1,billing=6"
    assert environments["pyslurm"] ^ environments["slurm"] <= DIFFERS


def test_auto_takes_pyslurm_on_a_cluster_that_it_was_built_for(real_pyslurm: PySlurmContainer, tmp_path: Path) -> None:
    cluster = ClusterSettings(backend="auto", pyslurm_python=tmp_path / "bin" / pyslurm_container.PYTHON)
    settings = Settings(cluster=cluster, storage=StorageSettings(folder=tmp_path))
    assert isinstance(factory.cluster(settings), PySlurmCluster)


def test_a_controller_that_is_away_is_unavailable_and_the_next_look_finds_it_again(
    real_pyslurm: PySlurmContainer, tmp_path: Path
) -> None:
    place = slurm_harness.pyslurm(
        tmp_path, python=tmp_path / "bin" / pyslurm_container.PYTHON, logs=Path("/tmp"), timeout_s=2
    )
    place.look()
    real_pyslurm.run("sh", "-c", "kill -STOP $(cat /run/slurmctld.pid)")
    try:
        with pytest.raises(ClusterUnavailable, match=r"^Slurm does not answer: PySlurm took more than 2 s$"):
            place.look()
    finally:
        real_pyslurm.run("sh", "-c", "kill -CONT $(cat /run/slurmctld.pid)")
    assert len(place.once_it_answers().nodes) == 3


def test_what_slurm_refuses_is_no_reason_to_ask_again(pair: dict[str, Place], tmp_path: Path) -> None:
    settings = ClusterSettings(partition="nope", pyslurm_python=tmp_path / "bin" / pyslurm_container.PYTHON)
    cluster = PySlurmCluster(settings, Path("/tmp"))
    with pytest.raises(
        ClusterError, match=r"^Slurm refuses: PySlurm says '.*nvalid partition.*\(partition nope\)$"
    ) as no:
        cluster.submit(pair["pyslurm"].request(), time.time())
    assert not isinstance(no.value, ClusterUnavailable)


def facts(shown: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def wait_for_environment(container: PySlurmContainer, name: str) -> set[str]:
    """The names of the variables, once the last line is there."""
    until_s = time.monotonic() + 120
    while not (text := container.run("sh", "-c", f"cat {PRINTED}/{name}.env 2>/dev/null || true")).endswith("\n\n"):
        assert time.monotonic() < until_s
        time.sleep(0.1)
    return {line.partition("=")[0] for line in text.split("\n") if line}
