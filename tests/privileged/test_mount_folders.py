"""The folders of a node that jobs may mount: only root can change what their paths lead to."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.privileged.root import only_root

from gleaner.agent.privileged.common import config, mount_folders
from gleaner.agent.privileged.common.config import Config, Misconfigured
from gleaner.agent.privileged.helper import containers
from gleaner.agent.system.listed_folders import FolderRefused

USER = 4200


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that nobody but root can change, and none above it."""
    made = Path(tempfile.mkdtemp(prefix="gleaner-mounts-", dir="/opt"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@only_root
def test_a_folder_of_anybodys_is_opened_below_folders_of_roots(place: Path) -> None:
    (place / "calib").mkdir()
    os.chown(place / "calib", USER, USER)
    mount_folders.check(str(place / "calib"))


@only_root
def test_a_file_system_that_does_not_answer_is_missing_after_a_while(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the place of `test` waits as for a dead server."""
    slow = tmp_path / "test"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(mount_folders, "_ANSWER_WITHIN_S", 0.2)
    with pytest.raises(FolderRefused, match="it does not answer"):
        mount_folders.check(str(place))


@only_root
@pytest.mark.parametrize(
    ("mounts", "why"),
    [
        ("/data", "must be a list of folders"),
        ([7], "must be a list of folders"),
        (["data"], "'data' must be a full path"),
        (["/data/../root"], "must be a full path without"),
        (["/"], "'/' must be a full path"),
        (["/job/data"], "in the way of /job"),
        (["/var/lib/gleaner-root/containers"], "in the way of /var/lib/gleaner-root"),
        (["/var/lib"], "in the way of /var/lib/gleaner/work"),
        (["/run/gleaner-helper.sock"], "in the way of /run/gleaner-helper.sock"),
    ],
)
def test_root_settings_name_folders_that_can_be_mounted(tmp_path: Path, mounts: object, why: str) -> None:
    path = tmp_path / "privileged.json"
    path.write_text(json.dumps({"agent_uid": USER, "mounts": mounts}))
    path.chmod(0o644)
    with pytest.raises(Misconfigured, match=why):
        config.load(str(path))
    path.write_text(json.dumps({"agent_uid": USER, "mounts": ["/cvmfs/a", "/cvmfs/a/b"]}))
    assert config.load(str(path)).mounts == ("/cvmfs/a", "/cvmfs/a/b")


@only_root
def test_the_helper_mounts_what_root_names_letter_by_letter_and_nothing_else(place: Path) -> None:
    (place / "calib" / "inner").mkdir(parents=True)
    allowed = str(place / "calib")
    settings = Config(USER, mounts=(allowed,))
    containers._check_mount(settings, allowed)
    for path in (f"{allowed}/inner", str(place), "/root", f"{allowed}/", f"{allowed}/../calib"):
        with pytest.raises(containers.Failed, match=f"^{path}: it is not among the mounts in") as caught:
            containers._check_mount(settings, path)
        assert caught.value.kind == "mount"
    shutil.rmtree(place / "calib")
    with pytest.raises(containers.Failed, match=f"^{allowed}: there is no such folder") as caught:
        containers._check_mount(settings, allowed)
    assert caught.value.kind == "mount"
