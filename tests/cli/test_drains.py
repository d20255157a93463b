"""`glean drain`, `glean resume` and `glean migrate`, with made nodes behind a real control program."""

import os
import signal
import threading
import time
from collections.abc import Generator

import pytest
from tests.cli.cli_harness import CliHarness
from tests.slurm.fake_cluster import OTHERS_IN, OWNERS_IN, FakeCluster

from gleaner.control.daemon.drains import Drains
from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.settings import ClusterSettings, EntitlementSettings


@pytest.fixture
def nodes(admin: CliHarness) -> Generator[FakeCluster]:
    """Nodes that control drains, as its own part does it."""
    changes = {
        "cluster": ClusterSettings(backend="slurm"),
        "entitlements": EntitlementSettings(partitions=(OWNERS_IN,)),
    }
    admin.state.settings = admin.state.settings.model_copy(update=changes)
    made = FakeCluster()
    drainer, over = Drains(admin.state, made, made), threading.Event()

    def live() -> None:
        while not over.wait(0.05):
            drainer.step(time.time())

    part = threading.Thread(target=live)
    part.start()
    yield made
    over.set()
    part.join()


@pytest.mark.slow
def test_a_drain_says_what_happened_to_what_was_there(admin: CliHarness, nodes: FakeCluster) -> None:
    nodes.run("11", "n1", kind=JobClass.CHECKPOINTABLE)
    assert "n1, n2 could be drained. Nothing was done" in admin.good("drain", "--dry-run", "n[1-2]")
    out = admin.good("drain", "n[1-2]", "--leave-others")
    assert "is asked to save itself" in out
    assert "n1, n2: empty after" in out
    assert nodes.marked == {"n1", "n2"}
    assert admin.good("resume", "n1", "n2") == "n1, n2: in use again\n"
    assert nodes.marked == set()


@pytest.mark.slow
def test_ctrl_c_leaves_the_drain_going_and_says_so(admin: CliHarness, nodes: FakeCluster) -> None:
    nodes.run("20", "n1", partition=OTHERS_IN, until_s=None)
    program = admin.start("drain", "n1")
    assert program.stderr is not None
    assert program.stderr.readline() == "glean: 1 job of others is not touched; it is not known when it ends\n"
    os.kill(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=20)
    assert program.returncode == 130
    assert said == "glean: the drain of n1 continues without this program; see `glean nodes`\n"
    assert nodes.marked == {"n1"}


@pytest.mark.slow
def test_a_user_moves_a_running_job_of_the_own_group(harness: CliHarness) -> None:
    harness.good("submit", "--image", "gleaner/pi")
    assert "does not run, it is New" in harness.refused("migrate", "1", code=1)
    harness.node.claim()
    assert "no live agent there has 1 core and 512 MiB free" in harness.refused("migrate", "1", "--to", "n7", code=1)
    assert harness.refused("migrate", "1", "--to", "n 7", code=2).startswith("--to must begin with a letter or digit")
    assert "Running" in harness.good("migrate", "1")
