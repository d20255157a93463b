"""What is Docker's alone."""

from pathlib import Path

import pytest
from tests.runtime.nodes import USER

from gleaner.agent.runtime.docker import DockerRuntime
from gleaner.agent.runtime.protocol import RuntimeFault


def test_jobs_never_run_as_root() -> None:
    with pytest.raises(RuntimeFault, match="root"):
        DockerRuntime("unix:///nowhere", user=(0, 0))


def test_an_engine_that_is_not_there_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="does not answer") as fault:
        DockerRuntime(f"unix://{tmp_path}/docker.sock", user=USER).facts()
    assert "\n" not in str(fault.value)
