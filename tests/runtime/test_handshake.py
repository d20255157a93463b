"""The agent's side of a handshake: the reason of a failure is the one that CRIU gives."""

import socket
import threading
from pathlib import Path

import pytest

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.privileged.common import handshake
from gleaner.agent.privileged.shim import img_streamer
from gleaner.agent.runtime.handshake import DESCRIPTORS_PART, TransferFailed, restore

LOG = "(00.1) Error (criu/files.c:1): there is no file\n"


@pytest.mark.parametrize(
    ("log", "expected", "why"), [(LOG, TransferFailed, "there is no file"), ("", img_streamer.StreamBroken, "no pipe")]
)
def test_a_criu_that_fails_between_two_images_is_asked_why(
    tmp_path: Path, log: str, expected: type[Exception], why: str
) -> None:
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    with storage.draft("jobs/1/x") as draft:
        for name in (DESCRIPTORS_PART, "criu.core-1.img"):
            draft.add(name, [b"x"])
        saved = draft.publish({})
    ours, roots = socket.socketpair()

    def fail() -> None:
        root = handshake.Handshake(roots)
        root.say({"do": "restore"})
        root.hear()
        with handshake.listening(str(tmp_path), "serve") as listener:
            root.say({"listening": True}, listener.fileno())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as criu:
            criu.connect(str(tmp_path / "serve"))
            img_streamer.ask(criu, "core-1.img")
            assert img_streamer.answered(criu)
        root.say({"status": 1, "log": log})

    failing = threading.Thread(target=fail)
    failing.start()
    with ours, roots, pytest.raises(expected, match=why):
        restore(handshake.Handshake(ours), storage.open(saved.key, saved.digest))
    failing.join()
