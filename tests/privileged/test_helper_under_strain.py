"""The node helper goes on when something on its node does not: no call holds it for ever, and nothing ends it."""

import fcntl
import os
import resource
import socket
import threading
from pathlib import Path

import pytest

from gleaner.agent.privileged.common import bundle
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.helper import containers
from gleaner.agent.privileged.helper.containers import Failed
from gleaner.agent.privileged.helper.main import Helper


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return Config(os.getuid(), bundles=str(tmp_path / "root"), own=str(tmp_path / "own"), runc=str(tmp_path / "runc"))


@pytest.fixture
def made(settings: Config) -> Bundle:
    bundle.folder(settings)
    found = Bundle(settings, "a-1")
    found.make({"labels": {}, "image_id": "i", "rootfs": "/nowhere", "made_s": 1}, {})
    return found


def runc(settings: Config, script: str) -> None:
    Path(settings.runc).write_text(f"#!/bin/sh\n{script}\n")
    Path(settings.runc).chmod(0o755)


def test_many_may_wait_at_once(made: Bundle) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    ours, theirs = socket.socketpair()
    high = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 2000)
    alive = os.open(made.inside("alive"), os.O_RDWR)
    theirs.close()
    assert not made.wait_for_end(high)
    for descriptor in (high, alive):
        os.close(descriptor)
    ours.close()
    assert made.wait_for_end(None)


def test_what_still_runs_is_not_forgotten(settings: Config, made: Bundle) -> None:
    runc(settings, 'case "$*" in *delete*) exit 1 ;; *state*) echo \'{"status": "running"}\' ;; esac')
    with pytest.raises(Failed, match="cannot be removed"):
        containers.remove(settings, made)
    assert made.facts()
    runc(settings, "exit 1")  # it is not known to runc
    containers.remove(settings, made)
    assert bundle.all_bundles(settings) == []


def test_a_runc_that_hangs_is_given_up(settings: Config, made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    runc(settings, 'case "$*" in *state*) echo \'{"status": "paused"}\' ;; *) exec sleep 60 ;; esac')
    monkeypatch.setattr(containers, "_RUNC_WITHIN_S", 0.2)
    with pytest.raises(Failed, match="not done within"):
        containers.unpause(settings, made)


def test_what_is_being_saved_is_not_frozen(settings: Config, made: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """CRIU has let go of the freezer then: its own code in the container would stand still, and the save never end."""
    helper, done = Helper(settings), list[str]()
    pausing, paused, saving, saved = (threading.Event() for _ in range(4))

    def pause(*_: object) -> None:
        pausing.set()
        assert paused.wait(30)
        done.append("paused")

    def save(*_: object, end_s: float | None) -> None:
        saving.set()
        assert saved.wait(30)
        done.append("saved")

    monkeypatch.setattr(containers, "pause", pause)
    monkeypatch.setattr(containers, "checkpoint", save)
    threads = [
        threading.Thread(target=helper._pause, args=[made]),
        threading.Thread(target=helper._checkpoint, args=[made]),
    ]
    threads[0].start()
    assert pausing.wait(30)
    threads[1].start()
    assert not saving.wait(0.2), "it waits for a pause that has begun"
    paused.set()
    assert saving.wait(30)
    helper._pause(made)
    assert done == ["paused"]
    saved.set()
    for thread in threads:
        thread.join()
    helper._pause(made)
    assert done == ["paused", "saved", "paused"]
