"""A socket that a killed agent has left, where agents wait for root."""

import os
import socket
from pathlib import Path

from gleaner.agent.runtime.criu_streams import during_handshake
from gleaner.agent.system.ipc import Handshake, connect


def test_a_stale_socket_of_the_same_name_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / "handshakes"
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(folder / "gleaner-1-1"))
        killed.listen(1)
    heard: list[object] = []

    def root() -> None:
        handshake = connect(str(folder), "gleaner-1-1", os.getuid())
        handshake.say({"who": "root"})
        handshake.close()

    def agent(handshake: Handshake) -> None:
        heard.append(handshake.hear()[0])

    during_handshake(folder, "gleaner-1-1", agent, root)
    assert heard == [{"who": "root"}]
    assert list(folder.iterdir()) == []
