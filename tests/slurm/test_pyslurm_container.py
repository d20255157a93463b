"""PySlurm on a real controller."""

from pathlib import Path

import pytest
from tests.slurm import pyslurm_container, slurm_harness
from tests.slurm.pyslurm_container import PySlurmContainer

from gleaner.control.slurm.interface import ClusterUnavailable

pytestmark = [pytest.mark.nodes, pytest.mark.extended]


def test_a_controller_that_is_away_is_unavailable_and_the_next_look_finds_it_again(
    real_pyslurm: PySlurmContainer, tmp_path: Path
) -> None:
    place = slurm_harness.pyslurm(
        tmp_path, python=tmp_path / "bin" / pyslurm_container.PYTHON, logs=Path("/tmp"), timeout_s=2
    )
    place.look()
    real_pyslurm.run("sh", "-c", "kill -STOP $(cat /run/slurmctld.pid)")
    try:
        with pytest.raises(ClusterUnavailable, match=r"^Slurm does not answer: .*python took more than 2 s$"):
            place.look()
    finally:
        real_pyslurm.run("sh", "-c", "kill -CONT $(cat /run/slurmctld.pid)")
    assert len(place.once_it_answers().nodes) == 3
