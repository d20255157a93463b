"""Whatever a run leaves is removed, and nothing that belongs to somebody else."""

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.suite import cleaner

LIVES = "import time; print(flush=True); time.sleep(600)"


TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"


def start(
    run: str, folder: Path, *words: str, stderr: IO[str] | None = None, stdin: int | None = None
) -> "subprocess.Popen[bytes]":
    """A process that works in this folder, in a session of its own, as a daemon of a test is."""
    process = subprocess.Popen(
        words or [sys.executable, "-c", LIVES],
        env=os.environ | {cleaner.MARK: run},
        cwd=folder,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    assert process.stdout
    process.stdout.readline()
    return process


def run_cleaner(run: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Let it clean at once: nobody holds the other end of its input."""
    return subprocess.run(
        [sys.executable, "-m", "tests.suite.cleaner", run, str(folder)],
        cwd=cleaner.ROOT,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run's folder, with something in it."""
    (tmp_path / "run" / "inner").mkdir(parents=True)
    (tmp_path / "run" / "left").touch()
    return tmp_path / "run"


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """Somebody's files, below a mount point that is shared, as all are where systemd runs; nothing stays mounted."""
    place = tmp_path / "theirs"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "theirs", str(place))
        mount("--make-shared", str(place))
        (place / "inner").mkdir()
        mount("-t", "tmpfs", "inner", str(place / "inner"))
        (place / "inner" / "precious").touch()
        yield place
    finally:
        for point in cleaner.mounts_in(tmp_path, Path("/proc/self/mountinfo").read_bytes()):
            subprocess.run(["mount", "--make-private", point], check=False)
            subprocess.run(["umount", "--lazy", point], check=False)


def mount(*words: str) -> None:
    try:
        subprocess.run(["mount", *words], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.fail(f"this test mounts a file system, so it must run as root ({error})")


def program(place: Path, text: str) -> Path:
    """A script of the shell."""
    place.parent.mkdir(exist_ok=True, parents=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)
    return place


def test_the_processes_of_a_killed_run_are_ended_and_no_others(tmp_path: Path, folder: Path) -> None:
    run, other = uuid.uuid4().hex, uuid.uuid4().hex
    shutil.copy(shutil.which("sh") or "", tmp_path / "dockerd")
    with (folder / "log").open("w") as log:
        lives = program(tmp_path / "bin" / "dockerd", "echo; exec 1>&-; while :; do sleep 600; done")
        ours = {
            "marked": start(run, tmp_path),
            "works there": start(other, folder / "inner"),
            "prints there": start(other, tmp_path, stderr=log),
            "has only the engine's name": start(run, tmp_path, str(lives)),
        }
    person, terminal = os.openpty()
    others = {
        "elsewhere": start(other, tmp_path),
        "somebody's shell": start(other, folder, sys.executable, "-c", TERMINAL + LIVES, stdin=terminal),
        "the engine": start(run, tmp_path, str(tmp_path / "dockerd"), "-c", "echo; read _", stdin=terminal),
    }
    try:
        done = run_cleaner(run, folder)
        # The script's sleep goes with it.
        assert re.fullmatch(r"cleaner: the run left 5 processes \(.*\); they are gone\n", done.stdout)
        assert done.stdout.count("of tests/suite/test_cleaner.py::test_the_processes_of_a_killed_run") == 5
        assert {name: process.wait(60) for name, process in ours.items()} == dict.fromkeys(ours, -9)
        assert {name: process.poll() for name, process in others.items()} == dict.fromkeys(others)
        assert not folder.exists()
    finally:
        for process in (*ours.values(), *others.values()):
            process.kill()
            process.wait()
        os.close(person)
        os.close(terminal)


def test_what_is_mounted_in_the_folder_stays_where_it_is_from(theirs: Path, folder: Path) -> None:
    mount("--rbind", str(theirs), str(folder / "inner"))
    done = run_cleaner("no process", folder)
    assert done.stdout == "cleaner: the run left 2 mounts; they are gone\n"
    assert not folder.exists()
    assert (theirs / "inner" / "precious").exists()


def test_nothing_is_deleted_in_a_mount_that_cannot_be_detached(tmp_path: Path, theirs: Path, folder: Path) -> None:
    mount("--bind", str(theirs / "inner"), str(folder / "inner"))
    program(tmp_path / "bin" / "umount", "exit 1")
    done = run_cleaner("no process", folder, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert (done.returncode, done.stdout) == (1, f"cleaner: {folder / 'inner'} cannot be unmounted\n")
    assert (theirs / "inner" / "precious").exists()
