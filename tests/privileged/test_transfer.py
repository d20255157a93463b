"""The files that a save or restore keeps on the node, and those that it takes from an agent."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.privileged.root import only_root
from tests.privileged.scripts import in_own_mounts

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.shim import head_room, transfer, written_layer
from gleaner.agent.privileged.shim.main import Call
from gleaner.agent.privileged.shim.transfer import check_descriptors, own_folder
from gleaner.agent.system.ipc import HandshakeFailed

GOOD = ["/dev/null", "pipe:[17]", "pipe:[18]"]


@pytest.mark.parametrize(
    "given",
    [
        None, 7, "", "[", "{}", "null", "[]", '"pipe:[1]"', "[1, 2, 3]",
        json.dumps(GOOD[:2]),
        json.dumps([*GOOD, "/dev/null"]),
        json.dumps(["/dev/null", "pipe:[17]", "pipe:[17]/../../etc/shadow"]),
        json.dumps(["/dev/null", "x pipe:[17]", "pipe:[18]"]),
        json.dumps(["/dev/null", "pipe:[17]:fd[3]", "pipe:[18]"]),
        json.dumps(["/dev/null", "pipe:[17]\n", "pipe:[18]"]),
        json.dumps(["/dev/null", "pipe:[" + "9" * 30 + "]", "pipe:[18]"]),
        json.dumps(["/dev/null", "\0", "pipe:[18]"]),
        json.dumps(["/" + "x" * 5000, "pipe:[17]", "pipe:[18]"]),
        "[" * 100_000,
    ],
    ids=lambda given: repr(given)[:30],
)  # fmt: skip
def test_descriptors_that_are_not_three_streams_are_refused(given: object) -> None:
    with pytest.raises(HandshakeFailed):
        check_descriptors(given)


@given(st.lists(st.text(max_size=20), max_size=4))
def test_what_is_let_through_cannot_name_another_file_to_criu(given: list[str]) -> None:
    try:
        found = check_descriptors(json.dumps(given))
    except HandshakeFailed:
        return
    assert len(found) == 3
    for stream in found:
        assert "pipe:" not in stream or stream[6:-1].isdigit()


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return Config(4200, own=str(tmp_path / "own"))


def test_the_folder_is_roots_alone_and_goes_with_the_call(settings: Config) -> None:
    with own_folder(settings) as own:
        assert Path(own).stat().st_mode & 0o777 == 0o700
        assert Path(settings.own).stat().st_mode & 0o777 == 0o700
        Path(own, "work", "dump.log").touch()
    assert list(Path(settings.own).iterdir()) == []


def test_a_folder_that_others_may_enter_or_a_link_is_refused(settings: Config, tmp_path: Path) -> None:
    Path(settings.own).mkdir()
    Path(settings.own).chmod(0o711)
    with pytest.raises(ValueError, match="must be root's alone"), own_folder(settings):
        pass
    Path(settings.own).rmdir()
    (tmp_path / "theirs").mkdir(mode=0o700)
    Path(settings.own).symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="own"), own_folder(settings):
        pass


def test_a_container_that_a_killed_call_has_left_held_back_ends_with_the_next_call(
    settings: Config, tmp_path: Path
) -> None:
    held = tmp_path / "cgroup"
    held.mkdir()
    (held / "freezer.state").write_text("FROZEN\n")
    left = Path(settings.own, "123-dead")
    left.mkdir(parents=True, mode=0o700)
    Path(settings.own).chmod(0o700)
    with subprocess.Popen(["sleep", "60"]) as process:
        (held / "cgroup.procs").write_text(f"{process.pid}\n")
        transfer.record_held(str(left), {"freezer": str(held)})
        with own_folder(settings):
            assert process.wait(timeout=30) == -signal.SIGKILL
    assert (held / "freezer.state").read_text() == "THAWED\n"
    assert not left.exists()


def test_what_a_killed_call_has_left_goes_with_the_next_and_what_is_in_use_stays(settings: Config) -> None:
    with own_folder(settings) as in_use:
        left = Path(settings.own, "123-dead")
        (left / "work").mkdir(parents=True)
        with own_folder(settings) as own:
            assert not left.exists()
            assert Path(in_use).exists()
            assert own != in_use
            assert transfer.is_held(own)
        assert Path(in_use, "work").exists()


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """To save a container that stands frozen."""
    kept = tmp_path / "c"
    kept.mkdir()
    (kept / "state.json").write_text(json.dumps({"cgroup_paths": {"": str(kept)}}))
    stand(kept, frozen=True)
    return Call(["--root", str(tmp_path)], "checkpoint", [("--image-path", str(tmp_path / "images"))], "c")


def stand(kept: Path, *, frozen: bool) -> None:
    (kept / "cgroup.events").write_text(f"populated 1\nfrozen {int(frozen)}\n")
    (kept / "cgroup.freeze").write_text(f"{int(frozen)}\n")


def test_what_goes_on_is_not_saved(settings: Config, call: Call) -> None:
    """Whoever takes it for paused: its files would be of another time than its memory."""
    with pytest.raises(HandshakeFailed):  # nobody waits for it
        transfer._save(settings, call, {"org.gleaner.handshake": "c"})
    stand(Path(call.folder), frozen=False)
    with pytest.raises(ValueError, match="c is not paused"):
        transfer._save(settings, call, {"org.gleaner.handshake": "c"})


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_has_gone_on_meanwhile_is_not_said_to_be_saved(
    call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, goes_on: bool
) -> None:
    (tmp_path / "gleaner-init").touch()
    said: list[dict[str, object]] = []
    agent = SimpleNamespace(say=lambda message, *_: said.append(message), close=lambda: None)
    relay = SimpleNamespace(finish=lambda _: None)

    def save(_settings: Config, call: Call, _command: str, own: str, *_: object, **_named: object) -> int:
        Path(own, transfer.DESCRIPTORS).write_text("[]")
        stand(Path(call.folder), frozen=not goes_on)
        return 0

    monkeypatch.setattr(transfer, "_connect", lambda *_: (transfer._Owner(4200, b""), agent))
    monkeypatch.setattr(transfer, "_make_relay", lambda *_, **_named: (relay, socket.socket()))
    monkeypatch.setattr(transfer, "_run", save)
    monkeypatch.setattr(head_room, "of_container", lambda _: head_room.Need(1, 2, 3))
    monkeypatch.setattr(transfer, "_root_of_state", lambda _: "/")
    monkeypatch.setattr(written_layer, "layers", lambda *_: None)
    monkeypatch.setattr(written_layer, "send", lambda *_: None)
    refused = pytest.raises(ValueError, match="c is not paused") if goes_on else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as short, refused:  # a socket's path has an end
        transfer._save(Config(4200, own=f"{short}/own"), call, {"bundle": str(tmp_path)})
    assert [message.get("status") for message in said] == ([None] if goes_on else [None, 0])


def test_a_child_of_the_call_does_not_hold_its_folder(settings: Config) -> None:
    with own_folder(settings) as own:
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    held = os.open(settings.own, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)
    child.kill()
    child.wait()
    assert not Path(own).exists()


def test_a_link_in_the_folder_is_removed_and_not_followed(settings: Config, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    with own_folder(settings) as own:
        Path(own, "link").symlink_to(tmp_path / "kept")
    assert (tmp_path / "kept" / "file").exists()
    assert not Path(own).exists()


@only_root
def test_what_is_mounted_in_the_folder_is_unmounted_and_not_emptied(tmp_path: Path) -> None:
    """CRIU, killed in the middle of a restore, leaves the machine's cgroups there."""
    kept, folder = tmp_path / "kept", tmp_path / "folder"
    (kept / "empty").mkdir(parents=True)
    (folder / "work" / "yard").mkdir(parents=True)
    (folder / "work" / "log").touch()
    script = f"""
import subprocess, sys
from gleaner.agent.privileged.common.mounts import remove_tree
subprocess.check_call(["mount", "-t", "tmpfs", "x", {str(kept)!r}])
subprocess.check_call(["mkdir", {str(kept / "inside")!r}])
subprocess.check_call(["mount", "--bind", {str(kept)!r}, {str(folder / "work" / "yard")!r}])
remove_tree({str(folder)!r})
import os
print(os.path.isdir({str(kept / "inside")!r}), os.path.exists({str(folder)!r}))
"""
    said = subprocess.run(in_own_mounts(script), capture_output=True, text=True, check=False)
    assert said.stdout == "True False\n", said.stderr


@pytest.mark.parametrize("end", ["", "soon", "nan", "-1", "0"])
def test_an_end_that_is_no_time_is_an_error(end: str) -> None:
    with pytest.raises(ValueError):
        transfer._end({"org.gleaner.end-s": end})
