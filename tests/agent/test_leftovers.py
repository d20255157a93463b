"""Sockets in the folder where agents wait for root: those of killed saves go, and no two agents meet in one."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.agent.control_harness import Control

from gleaner.agent.node.leftovers import remove_agents_sockets
from gleaner.agent.privileged.common import config
from gleaner.agent.privileged.common.agent_leftovers import remove_sockets
from gleaner.agent.privileged.common.slurm_job import JobHandle
from gleaner.agent.runtime.criu_streams import during_handshake
from gleaner.agent.system.ipc import Handshake, connect

US = os.getuid()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "handshakes"
    place.mkdir(mode=0o700)
    return place


@contextmanager
def left_by_a_killed_agent(path: Path) -> Iterator[None]:
    """Nobody listens at it any more, and nobody has removed it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
    yield


def answer_with(name: str, handshake: Handshake) -> None:
    said, _ = handshake.hear()
    handshake.say({"name": name, "heard": said["who"]})


def test_only_sockets_of_earlier_agents_are_removed(folder: Path) -> None:
    for name in ("gleaner-1-1", "gleaner-2-1"):
        with left_by_a_killed_agent(folder / name):
            pass
    (folder / "a file").write_text("")
    (folder / "a folder").mkdir()
    (folder / "a link").symlink_to(folder / "gleaner-1-1")
    assert remove_sockets(str(folder), owner_uid=US) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["a file", "a folder", "a link"]
    assert remove_sockets(str(folder / "not there"), owner_uid=US) == 0


def test_a_node_that_saves_without_root_has_nothing_to_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    def misconfigured(_path: str = "") -> config.Config:
        raise config.Misconfigured("there is no file")

    monkeypatch.setattr(config, "load", misconfigured)
    assert remove_agents_sockets() == 0


@pytest.mark.parametrize("whole_node", [True, False])
def test_an_agent_removes_older_agents_sockets_only_from_a_node_that_it_has_as_a_whole(
    control: Control, folder: Path, monkeypatch: pytest.MonkeyPatch, whole_node: bool
) -> None:
    """Elsewhere another agent of the same account may be waiting at its own."""
    monkeypatch.setattr(config, "load", lambda: config.Config(agent_uid=US, handshakes=str(folder)))
    monkeypatch.setattr(JobHandle, "look", lambda _job: None)
    with left_by_a_killed_agent(folder / "gleaner-1-1"):
        agent = control.agent("a1", lives_s=30)
        agent.slurm_job = "7" if whole_node else None
        control.live(agent)
        assert (folder / "gleaner-1-1").exists() != whole_node


def test_two_agents_of_one_account_on_one_node_meet_root_each_at_its_own_socket(folder: Path) -> None:
    """A socket is named after the job and the attempt, and control gives out that pair once."""
    both_wait = threading.Barrier(2)
    heard: dict[str, object] = {}

    def an_agent(name: str) -> None:
        def act() -> None:
            both_wait.wait(30)  # from here on both sockets are there
            handshake = connect(str(folder), name, US)
            handshake.say({"who": f"root for {name}"})
            heard[name], _ = handshake.hear()
            handshake.close()

        during_handshake(folder, name, lambda handshake: answer_with(name, handshake), act)

    agents = [threading.Thread(target=an_agent, args=(name,)) for name in ("gleaner-1-1", "gleaner-2-1")]
    for agent in agents:
        agent.start()
    for agent in agents:
        agent.join()
    assert heard == {name: {"name": name, "heard": f"root for {name}"} for name in ("gleaner-1-1", "gleaner-2-1")}
    assert list(folder.iterdir()) == []


def test_a_stale_socket_of_the_same_name_is_no_obstacle(folder: Path) -> None:
    heard: list[object] = []

    def act() -> None:
        handshake = connect(str(folder), "gleaner-1-1", US)
        handshake.say({"who": "root"})
        heard.append(handshake.hear()[0])
        handshake.close()

    with left_by_a_killed_agent(folder / "gleaner-1-1"):
        during_handshake(folder, "gleaner-1-1", lambda handshake: answer_with("new", handshake), act)
    assert heard == [{"name": "new", "heard": "root"}]
