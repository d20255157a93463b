"""A storage that hangs: the agent is gone in time all the same, so Slurm never finds a process that it cannot kill."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.agent.controlled import Control

from gleaner.agent.storage.folder import FolderStorage
from gleaner.agent.storage.probe import PATIENCE_S, Probe
from gleaner.control.life import State
from gleaner.control.queue import agents, reads
from gleaner.control.queue.engine import snapshot, transaction

pytestmark = pytest.mark.slow

KILL_WAIT_S = 4.0
ROOT = Path(__file__).parents[2]


def lived(control: Control, *more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """An agent process on a storage that hangs; how it ended, and how long before its end."""
    end_s = time.time() + 35  # a busy machine takes its time to start it
    with transaction(control.site.engine) as db:
        token_hash = hashlib.sha256(b"secret-of-a1").hexdigest()
        agents.expect(db, name="a1", end_s=end_s, token_hash=token_hash, now_s=time.time())
    (control.folder / "work").mkdir()
    command = [sys.executable, "-m", "tests.agent.hanging", f"http://127.0.0.1:{control.port}", str(control.folder)]
    done = subprocess.run(
        [*command, str(end_s), str(KILL_WAIT_S), *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, end_s - time.time()


def test_an_agent_leaves_a_storage_that_hangs_in_time_and_says_why(control: Control) -> None:
    job = control.submit("100000")
    done, early_s = lived(control)
    assert done.returncode == 1, done.stderr
    assert early_s > KILL_WAIT_S - 0.5
    with snapshot(control.site.engine) as db:
        (row,) = reads.agent_rows(db, now_s=time.time())
    assert row.reason == "storage hangs"
    detail = control.job(job)
    assert (detail.job.state, detail.failures) == (State.NEW, 0)


def test_an_agent_of_which_all_hangs_is_gone_in_time_too(control: Control) -> None:
    control.submit("100000")
    done, early_s = lived(control, "stuck")
    assert done.returncode == 1, done.stderr
    assert early_s > KILL_WAIT_S - 0.5


def test_a_probe_tells_a_storage_that_hangs_from_one_that_says_no(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path / "storage")
    no_storage, good = Probe(storage, "agents/a1/probe"), Probe(storage, "agents/a1/probe")
    no_storage.look()
    time.sleep(0.5)
    assert no_storage.out_for_s == 0
    storage.prepare()
    good.look()
    time.sleep(0.5)
    assert good.out_for_s == 0
    assert not good.hangs
    assert storage.keys("") == []
    assert PATIENCE_S > 0
