"""Sockets in the folder where agents wait for root: no two agents meet in one, and a stale one is no obstacle."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
