"""The watchdog removes containerd's leavings, and nothing that only looks like them."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.privileged.waiting import wait_until

from gleaner.control.setup import shipped

WATCHDOG = shipped.content(shipped.WATCHDOG).decode()


def leak(folder: Path, name: str, *, old: bool = True) -> Path:
    found = folder / name
    found.mkdir(parents=True)
    (found / "pages-1.img").touch()
    if old:
        hour_ago_s = time.time() - 3600
        os.utime(found, (hour_ago_s, hour_ago_s))
    return found


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the watchdog's folder; its `docker` knows of no container."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "docker").chmod(0o755)
    script = WATCHDOG.replace("PATH=", f"PATH={tmp_path}/bin:", 1)
    (tmp_path / "watchdog").write_text(script)
    return tmp_path


def watch(place: Path, until_gone: Path) -> None:
    environment = {"GLEANER_WATCHDOG_LEAK_DIRS": f"{place}/nowhere {place}/tmp", "GLEANER_WATCHDOG_PERIOD_S": "0.1"}
    with subprocess.Popen(["/bin/sh", "watchdog"], cwd=place, env=environment) as watchdog:
        try:
            wait_until(lambda: not until_gone.exists(), f"{until_gone} goes")
        finally:
            watchdog.kill()


def test_old_copies_go_and_all_else_stays(place: Path) -> None:
    new = leak(place / "tmp", "ctrd-checkpoint2", old=False)
    other = leak(place / "tmp", "other")
    old = leak(place / "tmp", "ctrd-checkpoint1")
    watch(place, until_gone=old)
    assert not old.exists()
    assert new.exists()
    assert other.exists()


def test_a_blank_in_a_name_leads_to_no_other_folder(place: Path) -> None:
    bystander = leak(place, "bystander")
    named = leak(place / "tmp", "ctrd-checkpoint bystander")
    watch(place, until_gone=named)
    assert not named.exists()
    assert bystander.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another")
def test_what_is_anothers_is_left_alone(place: Path) -> None:
    others = leak(place / "tmp", "ctrd-checkpoint1")
    os.chown(others, 4321, 4321)
    watch(place, until_gone=leak(place / "tmp", "ctrd-checkpoint2"))
    assert others.exists()
