"""Whatever a run leaves is removed when it ends, however it ends."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

from tests.suite import cleaner

LIVES = "import time; print(flush=True); time.sleep(600)"


def start(run: str, folder: Path) -> "subprocess.Popen[bytes]":
    """A process that works in this folder, in a session of its own, as a daemon of a test is."""
    process = subprocess.Popen(
        [sys.executable, "-c", LIVES],
        env=os.environ | {cleaner.MARK: run},
        cwd=folder,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout
    process.stdout.readline()
    return process


def test_the_processes_of_a_killed_run_are_ended_and_no_others(tmp_path: Path) -> None:
    run, other = uuid.uuid4().hex, uuid.uuid4().hex
    folder = tmp_path / "run"
    (folder / "inner").mkdir(parents=True)
    (folder / "left").touch()
    marked, inside, theirs = start(run, tmp_path), start(other, folder / "inner"), start(other, tmp_path)
    try:
        words = [sys.executable, "-m", "tests.suite.cleaner", run, str(folder)]
        done = subprocess.run(
            words, cwd=cleaner.ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.stdout == "cleaner: the run left 2 processes; they are gone\n"
        assert marked.wait(60) != 0
        assert inside.wait(60) != 0
        assert theirs.poll() is None
        assert not folder.exists()
    finally:
        for process in (marked, inside, theirs):
            process.kill()
            process.wait()


def test_mounts_are_detached_from_the_innermost_one() -> None:
    table = "\n".join(
        f"36 35 98:0 / {point} rw,noatime - ext4 /dev/root rw"
        for point in ("/tmp/run", "/tmp/run/a", "/tmp/run/a/b\\040c", "/tmp/running", "/proc")
    )
    assert cleaner.mounts_in(Path("/tmp/run"), table) == ["/tmp/run/a/b c", "/tmp/run/a", "/tmp/run"]
