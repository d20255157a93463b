"""Leavings of agents in their account's folders go without a next agent, and no name there leads root elsewhere."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.privileged.root import only_root

from gleaner.agent.privileged.common import config
from gleaner.agent.privileged.common.agent_leftovers import (
    LOG_AGE_S,
    SOCKET_AGE_S,
    remove_dead_sockets,
    remove_old_logs,
)
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.helper import main as helper
from gleaner.control.setup import shipped

US = os.getuid()
OTHER = 4321


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, as a socket's path has an end."""
    with tempfile.TemporaryDirectory() as short:
        (Path(short) / "handshakes").mkdir()
        (Path(short) / "work").mkdir()
        yield Path(short)


def settings_of(place: Path, uid: int = US) -> Config:
    return Config(
        uid, handshakes=str(place / "handshakes"), agent_logs=str(place / "work"), bundles=str(place / "root")
    )


def dead(path: Path | bytes) -> None:
    """Make a socket that a killed agent has left."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path if isinstance(path, bytes) else str(path))
        listener.listen(1)


def log(path: Path, *, age_s: float = LOG_AGE_S + 60) -> Path:
    path.write_text("what it printed")
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))
    return path


def swept(place: Path, *, after_s: float = SOCKET_AGE_S + 10) -> int:
    return remove_dead_sockets(str(place / "handshakes"), owner_uid=US, now_s=time.time() + after_s)


def test_a_socket_that_nobody_holds_goes_and_one_at_which_an_agent_waits_stays(place: Path) -> None:
    dead(place / "handshakes" / "gleaner-1-1")
    with socket.socket(socket.AF_UNIX) as waiting:
        waiting.bind(str(place / "handshakes" / "gleaner-2-1"))
        waiting.listen(1)
        waiting.setblocking(False)
        assert swept(place) == 1
        assert [path.name for path in (place / "handshakes").iterdir()] == ["gleaner-2-1"]
        with pytest.raises(BlockingIOError):  # the agent would take anybody who comes for root
            waiting.accept()


def test_a_socket_that_has_just_been_made_stays(place: Path) -> None:
    dead(place / "handshakes" / "gleaner-1-1")
    assert swept(place, after_s=0) == 0
    assert (place / "handshakes" / "gleaner-1-1").exists()


def test_only_sockets_go(place: Path) -> None:
    folder = place / "handshakes"
    dead(place / "elsewhere")
    (folder / "a link").symlink_to(place / "elsewhere")
    (folder / "a file").touch()
    (folder / "a folder").mkdir()
    os.mkfifo(folder / "a pipe")
    assert swept(place) == 0
    assert len(list(folder.iterdir())) == 4
    assert (place / "elsewhere").exists()


def test_only_logs_of_long_ago_go(place: Path) -> None:
    work = place / "work"
    old, new, other = log(work / "a1.log"), log(work / "a2.log", age_s=LOG_AGE_S - 60), log(work / "a3.txt")
    elsewhere = log(place / "kept.log")
    (work / "link.log").symlink_to(elsewhere)
    (work / "folder.log").mkdir()
    os.utime(work / "folder.log", (0, 0))
    assert remove_old_logs(str(work), owner_uid=US, now_s=time.time()) == 1
    assert not old.exists()
    assert all(path.exists() for path in (new, other, elsewhere, work / "folder.log"))
    assert (work / "link.log").is_symlink()


def test_a_link_in_place_of_the_folder_leads_nowhere(place: Path) -> None:
    """The service account owns the folder around it, and may put there what it likes."""
    others = place / "others"
    others.mkdir()
    kept = log(others / "kept.log")
    (place / "work").rmdir()
    (place / "work").symlink_to(others)
    with pytest.raises(OSError, match="work"):
        remove_old_logs(str(place / "work"), owner_uid=US, now_s=time.time())
    assert kept.exists()


@only_root
def test_a_link_on_the_way_leads_to_no_folder_of_another(place: Path) -> None:
    others = place / "others" / "work"
    others.mkdir(parents=True)
    os.chown(others, OTHER, OTHER)
    kept = log(others / "kept.log")
    (place / "way").symlink_to(place / "others")
    with pytest.raises(PermissionError, match="not the service account's"):
        remove_old_logs(str(place / "way" / "work"), owner_uid=US, now_s=time.time())
    assert kept.exists()


def test_the_watchdog_of_a_node_with_docker_calls_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = log(place / "work" / "a1.log")
    monkeypatch.setattr(config, "load", lambda: settings_of(place))
    monkeypatch.setattr(sys, "argv", ["gleaner-helper", "sweep"])
    monkeypatch.setattr(os, "umask", lambda _mask: 0)  # of this whole process
    with pytest.raises(SystemExit) as left:
        helper.main()
    assert left.value.code == 0
    assert not old.exists()


def test_the_watchdog_asks_for_it_at_once_and_goes_on(tmp_path: Path) -> None:
    """It runs for ever, and tells of its rounds by what it calls: here each is a line in a file."""
    (tmp_path / "bin").mkdir()
    for program in ("docker", "gleaner-helper"):
        (tmp_path / "bin" / program).write_text(f'#!/bin/sh\necho "{program} $1" >>{tmp_path}/calls\n')
        (tmp_path / "bin" / program).chmod(0o755)
    watchdog = shipped.content(shipped.WATCHDOG).decode()
    (tmp_path / "watchdog").write_text(watchdog.replace("PATH=", f"PATH={tmp_path}/bin:", 1))
    environment = {
        "GLEANER_WATCHDOG_PERIOD_S": "0.05",
        "GLEANER_WATCHDOG_SWEEP_ROUNDS": "3",
    }

    def calls(words: str) -> int:
        file = tmp_path / "calls"
        return file.read_text().splitlines().count(words) if file.exists() else 0

    with subprocess.Popen(["/bin/sh", "watchdog"], cwd=tmp_path, env=environment) as running:
        give_up_s = time.monotonic() + 60
        while calls("gleaner-helper sweep") < 2 and time.monotonic() < give_up_s:
            time.sleep(0.02)
        running.kill()
    assert calls("gleaner-helper sweep") >= 2
    assert calls("docker ps") > 3


@pytest.mark.parametrize(("docker", "called"), [("", False), ("#!/bin/sh\nexit 1\n", True)], ids=["absent", "silent"])
def test_the_epilog_asks_the_watchdog_only_where_docker_is_and_does_not_answer(
    tmp_path: Path, docker: str, called: bool
) -> None:
    (tmp_path / "timeout").symlink_to("/usr/bin/timeout")
    watchdog = f'#!/bin/sh\necho "$@" >{tmp_path}/calls\n'
    for name, text in (("docker", docker), ("watchdog", watchdog)):
        if text:
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
    epilog = shipped.content(shipped.EPILOG).decode().replace(shipped.WATCHDOG, f"{tmp_path}/watchdog")
    epilog = epilog.replace("\nPATH=", f"\nPATH={tmp_path} #", 1)
    subprocess.run(["/bin/sh", "-c", epilog], env={"SLURM_JOB_ID": "78"}, check=True)
    assert (tmp_path / "calls").exists() is called
    assert not called or (tmp_path / "calls").read_text() == "end-job 78\n"
