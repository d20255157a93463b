"""The node helper's door: who is let in, and what may be said there."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gleaner.agent.privileged.common import bundle
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.config import Config, Misconfigured
from gleaner.agent.privileged.helper import monitor
from gleaner.agent.privileged.helper.main import Helper
from gleaner.agent.privileged.helper.watchdog import is_overdue
from gleaner.agent.reporting.output_lines import OutputLines
from gleaner.agent.runtime.log_frames import messages
from gleaner.agent.system.ipc import Handshake, HandshakeFailed


def served(place: Path, uid: int) -> Config:
    found = Config(uid, bundles=str(place / "root"), own=str(place / "own"), helper_socket=str(place / "socket"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(found.helper_socket)
    listener.listen(8)
    threading.Thread(target=Helper(found).serve, args=(listener,), daemon=True).start()
    return found


@pytest.fixture
def helper(tmp_path: Path) -> Config:
    return served(tmp_path, os.getuid())


def ask(helper: Config, descriptor: int | None = None, **message: object) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(helper.helper_socket)
        handshake = Handshake(connection, 10)
        handshake.say(message, descriptor)
        said, given = handshake.hear()
        assert given is None
        return said


def test_nobody_but_the_service_account_is_let_in(tmp_path: Path) -> None:
    other = served(tmp_path, os.getuid() + 1)
    with pytest.raises(HandshakeFailed):
        ask(other, do="list")


@pytest.mark.parametrize("name", ["../x", "/etc", "", "a/b", 7, None, "x\0"])
@pytest.mark.parametrize("do", ["pause", "unpause", "checkpoint", "remove", "about", "logs", "wait"])
def test_a_container_is_a_plain_name(helper: Config, do: str, name: object) -> None:
    said = ask(helper, do=do, name=name)
    assert not said["ok"]
    assert "'name'" in said["why"]


@pytest.mark.parametrize("do", ["pause", "unpause", "checkpoint", "about", "logs"])
def test_a_container_that_is_not_there_is_gone(helper: Config, do: str) -> None:
    assert ask(helper, do=do, name="no-such")["kind"] == "gone"


@pytest.mark.parametrize("do", ["run", "import"])
def test_what_comes_with_a_descriptor_is_refused_without_one(helper: Config, do: str) -> None:
    assert "descriptor" in ask(helper, do=do, name="a-1")["why"]


@pytest.mark.parametrize("signal", ["STOP", "9", 9, "KILL ", "-KILL", None, "SEGV"])
def test_only_some_signals_can_be_sent(helper: Config, signal: object) -> None:
    assert "'signal'" in ask(helper, do="signal", name="a-1", signal=signal)["why"]


@pytest.mark.parametrize("do", ["", "exec", "__class__", None, 7, [], {}, "monitor", "x" * 10_000])
def test_there_are_no_other_requests(helper: Config, do: object) -> None:
    assert not ask(helper, do=do, name="a-1")["ok"]


def made(helper: Config, name: str = "a-1", **labels: str) -> Bundle:
    found = Bundle(helper, name)
    bundle.folder(helper)
    found.make({"labels": labels, "image_id": "i", "rootfs": "/nowhere", "made_s": 1}, {})
    return found


def test_a_job_folder_must_be_a_folder_of_the_agents_own(helper: Config, tmp_path: Path) -> None:
    made(helper)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", Path("/proc") if os.getuid() else Path("/dev/null")):
        descriptor = os.open(path, os.O_PATH)
        assert "agent's own" in ask(helper, descriptor, do="run", name="a-1")["why"]
        os.close(descriptor)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=20),  # longer numbers are not heard
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(message=st.dictionaries(st.sampled_from(["do", "name", "image", "signal", "x"]), values, max_size=4))
def test_whatever_is_said_is_answered(helper: Config, message: dict[str, Any]) -> None:
    said = ask(helper, **message)
    assert isinstance(said.pop("ok"), bool)
    assert "Error" not in json.dumps(said).replace("NotADirectoryError", "")


def test_an_end_is_known_although_the_monitor_was_killed(helper: Config) -> None:
    found = made(helper)
    alive = os.open(found.inside("alive"), os.O_RDWR)
    assert found.is_monitored()
    ended = threading.Event()

    def wait() -> None:
        assert ask(helper, do="wait", name="a-1") == {"ok": True, "exit": None, "ended": True}
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    assert not ended.wait(0.3)
    os.close(alive)
    assert ended.wait(60)
    assert not found.is_monitored()


def test_a_name_is_given_once(helper: Config) -> None:
    made(helper)
    with pytest.raises(bundle.Exists):
        made(helper)


@pytest.mark.skipif(os.getuid() != 0, reason="folders of root's cannot be made by others")
def test_the_place_must_be_roots_alone(tmp_path: Path) -> None:
    place = tmp_path / "open" / "root"
    place.parent.mkdir()
    place.parent.chmod(0o777)
    with pytest.raises(Misconfigured, match="root's"):
        bundle.check_place(Config(1, bundles=str(place)))


@pytest.mark.parametrize("end", ["", "soon", "-1", "1e9", "99999999999x", "nan", "١٢٣"])
def test_nobody_stays_whose_end_is_not_known(end: str) -> None:
    assert is_overdue({"org.gleaner.end-s": end}, 0)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "log", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    yield descriptor
    os.close(descriptor)


def read(log: int) -> list[tuple[int, bytes]]:
    return list(messages([os.pread(log, 2**20, 0)]))


def test_a_log_keeps_what_was_written_up_to_its_limit_and_then_says_so(log: int) -> None:
    kept = monitor.Log(log, most_bytes=45)
    for number in range(20):
        kept.add(1, b"line %d\n" % number)
    kept.end()
    frames = read(log)
    assert frames[-1] == (0, b"")
    lines = list(OutputLines().of(frames[:-1]))
    assert lines == ["line 0", "line 1", "line 2", "[gleaner] more output than this is not kept"]


def test_a_frame_that_the_disk_does_not_take_is_left_out_whole(log: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = monitor.Log(log)
    kept.add(1, b"one")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, frame: write(descriptor, frame[:5]))
    kept.add(1, b"two")
    monkeypatch.undo()
    kept.add(2, b"three")
    assert read(log) == [(1, b"one"), (2, b"three")]
