"""Nothing is removed for its age by a clock that may be wrong."""

import time
from pathlib import Path

import pytest
from sqlalchemy import literal
from tests.daemon.daemon_harness import DaemonHarness
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.daemon.clocks import AFTER_START_S, may_remove_by_age
from gleaner.control.settings import DAY_S


@pytest.fixture
def settled(harness: DaemonHarness) -> DaemonHarness:
    """A control program that started long ago."""
    harness.state.began_s -= 2 * AFTER_START_S
    return harness


def test_nothing_goes_soon_after_a_start(harness: DaemonHarness) -> None:
    assert not may_remove_by_age(harness.state, time.time())
    harness.state.began_s -= AFTER_START_S
    assert may_remove_by_age(harness.state, time.time())


@pytest.mark.parametrize("ahead_s", [2 * DAY_S, -2 * DAY_S])
def test_nothing_goes_while_the_databases_or_the_storages_clock_is_another(
    settled: DaemonHarness, ahead_s: float
) -> None:
    assert not may_remove_by_age(settled.state, time.time() + ahead_s)  # both differ
    settled.state.database_clock = lambda: literal(time.time() + ahead_s)
    assert not may_remove_by_age(settled.state, time.time())


def test_nothing_goes_while_the_newest_heartbeat_is_of_another_day(settled: DaemonHarness, faked: FakedSlurm) -> None:
    settled.submit_jobs(1)
    settled.round()
    settled.ahead_s = -2 * DAY_S
    settled.register(settled.agents()[0].name, "n1")
    assert not may_remove_by_age(settled.state, time.time())


def test_without_a_storage_nothing_goes(settled: DaemonHarness, tmp_path: Path) -> None:
    settled.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="No such file"):
        may_remove_by_age(settled.state, time.time())
