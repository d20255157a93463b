"""A child without rights: what it can still do is what the parent asked it to do."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gleaner.agent.privileged.common import confined

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., bytes]:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.chown(folder, confined.ACCOUNT, confined.ACCOUNT)
    source = tmp_path / "source"
    source.write_bytes(b"content")

    def made(function: Callable[[], object], *, within_s: int = 30, longest: int = 1000) -> bytes:
        with source.open("rb") as file:
            opened = os.open(folder, os.O_RDONLY)
            try:
                return confined.call(
                    lambda: str(function()).encode(),
                    folder=opened,
                    source=file.fileno(),
                    within_s=within_s,
                    most_bytes=1000,
                    longest=longest,
                )
            finally:
                os.close(opened)

    return made


def test_it_answers_and_writes_into_its_folder_alone(call: Callable[..., bytes], tmp_path: Path) -> None:
    def work() -> str:
        Path("/inside").write_text("x")
        return f"{os.getuid()} {os.getgroups()} {[str(path) for path in Path('/').iterdir()]}"

    assert call(work) == f"{confined.ACCOUNT} [] ['/inside']".encode()
    assert (tmp_path / "folder" / "inside").read_text() == "x"


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def use_network() -> None:
    with socket.socket() as found:
        found.connect_ex(("127.0.0.1", OPEN))
        found.getpeername()


listener = socket.create_server(("127.0.0.1", 0))
OPEN = listener.getsockname()[1]
ATTACKS: dict[str, Callable[[], object]] = {
    "read a file of the machine": lambda: Path("/etc/passwd").read_text(),
    "climb out": lambda: Path("../../../../../../etc/passwd").read_text(),
    "become root": lambda: os.setuid(0),
    "leave its root": lambda: os.chroot("/"),
    "make a device": lambda: os.mknod("/null", 0o20666, os.makedev(1, 3)),
    "give a file away": lambda: (Path("/f").write_text("x"), os.chown("/f", 0, 0)),
    "signal another process": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "start a process": fork,
    "reach the network": use_network,
    "write a large file": lambda: Path("/large").write_bytes(bytes(2000)),
}


@pytest.mark.parametrize("attack", [*ATTACKS])
def test_what_it_must_not_do_fails(call: Callable[..., bytes], attack: str) -> None:
    def attempt() -> str:
        try:
            ATTACKS[attack]()
        except OSError as error:
            return f"failed: {error}"
        return "succeeded"

    assert call(attempt).startswith(b"failed")


def test_a_descriptor_of_the_parents_is_not_there(call: Callable[..., bytes], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)

        def look() -> str:
            try:
                return os.read(file.fileno(), 1).decode()
            except OSError:
                return "closed"

        assert call(look) == b"closed"


def test_an_error_is_one_line(call: Callable[..., bytes]) -> None:
    def fail() -> None:
        raise ValueError("two\nlines")

    with pytest.raises(confined.Failure, match=r"^two lines$"):
        call(fail)


@pytest.mark.slow
def test_one_that_hangs_dies_or_says_too_much_is_ended(call: Callable[..., bytes]) -> None:
    for function in (signal.pause, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: "x" * 5000):
        with pytest.raises(confined.Failure, match="too much memory, or more than 1 s"):
            call(function, within_s=1)
