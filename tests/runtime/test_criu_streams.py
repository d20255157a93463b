"""The agent's side of a handshake: the reason of a failure is the one that CRIU gives."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.privileged.shim import criu_messages
from gleaner.agent.runtime.criu_streams import DESCRIPTORS_PART, INIT_PART, TransferFailed, restore
from gleaner.agent.system import ipc

LOG = "(00.1) Error (criu/files.c:1): there is no file\n"


@pytest.fixture
def saved(tmp_path: Path) -> FolderArchive:
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    with storage.draft("jobs/1/x") as draft:
        for name in (DESCRIPTORS_PART, INIT_PART, "criu.core-1.img"):
            draft.add(name, [b"x"])
        published = draft.publish({})
    return storage.open(published.key, published.digest)


@contextmanager
def restoring(folder: Path, end: Callable[[ipc.Handshake], None], *, images: int) -> Iterator[ipc.Handshake]:
    """Yield the agent's side of a restore whose CRIU asks for so many images and fails in the midst of the last one."""
    ours, roots = socket.socketpair()

    def fail() -> None:
        root = ipc.Handshake(roots)
        root.say({"do": "restore"})
        root.hear()
        with ipc.listen(str(folder / "serve")) as listener:
            root.say({"listening": True}, listener.fileno())
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as criu:
            criu.connect(str(folder / "serve"))
            for _ in range(images):
                criu_messages.send_request(criu, "core-1.img")
                assert criu_messages.read_answer(criu)
        end(root)

    failing = threading.Thread(target=fail)
    failing.start()
    with ours, roots:
        yield ipc.Handshake(ours)
    failing.join()


@pytest.mark.parametrize(
    ("log", "expected", "why"), [(LOG, TransferFailed, "there is no file"), ("", criu_messages.StreamBroken, "no pipe")]
)
def test_a_criu_that_fails_between_two_images_is_asked_why(
    tmp_path: Path, saved: FolderArchive, log: str, expected: type[Exception], why: str
) -> None:
    with (
        restoring(tmp_path, lambda root: root.say({"status": 1, "log": log}), images=1) as agents_side,
        pytest.raises(expected, match=why),
    ):
        restore(agents_side, saved)
