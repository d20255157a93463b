"""Stream CRIU's images on the agent's side of a save and a restore, and carry out the handshake with the shim.

With `--stream`, CRIU opens no image file but asks for a pipe for each image (see `privileged.shim.criu_messages`). So
memory is read from the process once, and written to the storage once.

The agent listens on a socket, to which the shim on the node connects. This module writes the same parts of an archive,
whichever runtime made the container. The parts are CRIU's images, the list of descriptors, and the written files.
"""

import fcntl
import os
import select
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.privileged.shim.criu_messages import StreamBroken, read_request, receive_pipe, send_answer
from gleaner.agent.system.ipc import Handshake, HandshakeFailed, Message, check_name, listen, peer
from gleaner.agent.system.openat import closing_fd, write_all
from gleaner.agent.system.untrusted import text_of

if TYPE_CHECKING:
    from gleaner.agent.runtime.lazy_memory import LazyMemory

DESCRIPTORS_PART = "descriptors.json"
NOT_OURS = "it was not saved by Gleaner's runtime or node helper: it has no list of descriptors"
"""The reason why an archive without `DESCRIPTORS_PART` is not restored.

This part lists, in runc's notation, the pipes that were the process's standard streams.
"""
INIT_PART = "init"
"""The init with which the container ran, packed by `privileged.shim.own_config`."""
LAYER_PART = "layer.tar"
"""The files that the container has written outside its job's folder (`privileged.shim.written_layer`)."""
SEAL_PART = "seal.json"
"""The shim's notes on what it has saved for a user job (`privileged.shim.seal`)."""
TIGHT_PART = "tight"
"""A mark that the restore needs more memory than the container's limit (`privileged.shim.head_room`)."""
_ROOT = 0
_CHUNK_BYTES = 2**20
PREFIX = "criu."
"""The start of the name of each part that is a CRIU image. It is followed by CRIU's own name for the image."""
PIPE_BYTES = 2**20

Result = TypeVar("Result")


class NeverCame(Exception):
    """CRIU failed or ended before it asked for its first image."""


def capture(listener: socket.socket, draft: FolderDraft, caller: socket.socket) -> None:
    """Write all CRIU images of one save to the draft. Return when CRIU has closed the last image.

    Raises the draft's errors. CRIU connects to the socket `listener`. If CRIU's caller sends a message before CRIU
    connects, CRIU has failed, and `NeverCame` is raised. A failure here closes every pipe, and so ends CRIU's save.
    """
    pumps = _Pumps()

    def take(pipe: int, name: str) -> None:
        with open(pipe, "rb", buffering=0) as source, draft.part(PREFIX + name) as writer:
            buffer = memoryview(bytearray(PIPE_BYTES))
            while count := source.readinto(buffer):
                pumps.check()
                writer.write(buffer[:count])
            writer.close()

    with closing(_accept_criu(listener, caller)) as criu:
        while (name := read_request(criu)) is not None:
            pumps.start(take, receive_pipe(criu), name)
    pumps.join()


def serve(
    listener: socket.socket, archive: FolderArchive, caller: socket.socket, memory: "LazyMemory | None" = None
) -> None:
    """Send the images that CRIU asks for, with every byte verified. Return when CRIU asks for no more.

    The memory that `memory` sends later is left out.
    """
    pumps = _Pumps()

    def give(pipe: int, name: str) -> None:
        with closing_fd(pipe), suppress(BrokenPipeError):
            for chunk in archive.read(PREFIX + name) if memory is None else memory.chunks(name):
                write_all(pipe, chunk)

    with closing(_accept_criu(listener, caller)) as criu:
        while (name := read_request(criu)) is not None:
            exists = PREFIX + name in archive.parts
            send_answer(criu, exists=exists)
            if exists:
                pumps.start(give, receive_pipe(criu), name)
    pumps.join()


class _Pumps:
    """Threads that move bytes, one for each image. The first failure stops the other threads, and `join` raises it."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def start(self, pump: Callable[[int, str], None], pipe: int, name: str) -> None:
        thread = threading.Thread(target=self._run, args=(pump, pipe, name), name=f"image {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, pump: Callable[[int, str], None], pipe: int, name: str) -> None:
        with suppress(OSError):  # if the system allows an ordinary user only a small pipe, it stays small
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        try:
            pump(pipe, name)
        except BaseException as error:
            self._failures.append(error)

    def check(self) -> None:
        """Raise the failure of another image, if there is one, because this save then cannot succeed."""
        if self._failures:
            raise self._failures[0]

    def join(self) -> None:
        """Wait for all threads, and raise the first failure."""
        for thread in self._threads:
            thread.join()
        self.check()


def _accept_criu(listener: socket.socket, caller: socket.socket) -> socket.socket:
    ready, _, _ = select.select([listener, caller], [], [])
    if listener not in ready:
        raise NeverCame
    return listener.accept()[0]


class TransferFailed(Exception):
    """The privileged side could not save or restore the container. `log` is the end of CRIU's log."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(log[-500:] or f"exit status {status}")
        self.log = log


def save(handshake: Handshake, draft: FolderDraft) -> None:
    """Write the images from CRIU, and the written files, to the draft.

    Raises `TransferFailed`, `HandshakeFailed`, or the draft's own errors.
    """
    last = _stream_images(handshake, lambda listener: capture(listener, draft, handshake.connection), draft)
    draft.add(DESCRIPTORS_PART, [str(last.get("descriptors", "")).encode()])
    draft.add(INIT_PART, [str(last.get("init", "")).encode()])
    if last.get("is_tight"):
        draft.add(TIGHT_PART, [b"yes"])
    if "seal" in last:
        draft.add(SEAL_PART, [str(last["seal"]).encode()])


def restore(handshake: Handshake, archive: FolderArchive, memory: "LazyMemory | None" = None) -> None:
    """Send everything that CRIU needs for a restore.

    Raises `TransferFailed`, `HandshakeFailed`, or the archive's own errors. If the node can load memory later, `memory`
    begins to send that memory.
    """
    handshake.hear()
    parts = {"descriptors": DESCRIPTORS_PART, "init": INIT_PART} | (
        {"seal": SEAL_PART} if SEAL_PART in archive.parts else {}
    )
    answer: Message = {name: text_of(b"".join(archive.read(part))) for name, part in parts.items()}
    has_layer = LAYER_PART in archive.parts
    wishes = {"layer": has_layer, "is_tight": TIGHT_PART in archive.parts, "lazy": memory is not None}
    handshake.say(answer | wishes)
    if has_layer:
        _, pipe = handshake.hear()
        _send_layer(pipe, archive)
    if memory is not None:
        _, descriptor = handshake.hear()
        if descriptor is not None:
            memory.begin(socket.socket(fileno=descriptor))
    _stream_images(handshake, lambda listener: serve(listener, archive, handshake.connection, memory))


def _send_layer(pipe: int | None, archive: FolderArchive) -> None:
    """Send the written files. If the privileged side stops reading them, it gives the reason in its next message."""
    if pipe is None:
        raise HandshakeFailed("no pipe came for the written files")
    chunks = archive.read(LAYER_PART)
    with closing_fd(pipe), suppress(BrokenPipeError):
        for chunk in chunks:
            write_all(pipe, chunk)
    for _ in chunks:  # a broken archive might be detected only at its end
        pass


def _last_message(handshake: Handshake, draft: FolderDraft | None) -> Message:
    """Return the privileged side's last message. If the written files arrive before it, put them into the draft."""
    last, pipe = handshake.hear()
    if pipe is None:
        return last
    try:
        if draft is not None:
            draft.add(LAYER_PART, iter(partial(os.read, pipe, _CHUNK_BYTES), b""))
    finally:
        os.close(pipe)
    return handshake.hear()[0]


def _stream_images(
    handshake: Handshake, stream: Callable[[socket.socket], None], draft: FolderDraft | None = None
) -> Message:
    """Call `stream` for the images, and return the privileged side's last message.

    The failure of a stream that breaks off is raised only if CRIU gives no reason, because usually CRIU has failed and
    therefore stopped asking.
    """
    broken: StreamBroken | None = None
    first, descriptor = handshake.hear()
    if "status" in first:  # the privileged side has given up before CRIU started
        raise TransferFailed(int(first["status"]), str(first.get("log", "")))
    if descriptor is None:
        raise HandshakeFailed("no descriptor came with the message")
    with socket.socket(fileno=descriptor) as listener, suppress(NeverCame):
        try:
            stream(listener)
        except StreamBroken as error:
            broken = error
    try:
        last = _last_message(handshake, draft)
    except HandshakeFailed as error:
        if broken is None:
            raise
        raise broken from error
    log = str(last.get("log", ""))
    if last.get("status") != 0 and (log or broken is None):
        raise TransferFailed(int(last.get("status", -1)), log) from broken
    if broken is not None:
        raise broken
    return last


def during_handshake(folder: Path, name: str, talk: Callable[[Handshake], None], act: Callable[[], Result]) -> Result:
    """Call `act`, which makes the privileged side connect under this name, and at the same time pass the connection to
    `talk`.

    If both fail, the failure of `talk` is raised, since it is the cause. Raises `HandshakeFailed` if there was no
    connection.
    """
    path = folder / check_name(name)
    with listen(str(path)) as listener, ThreadPoolExecutor(1) as one:
        try:
            talking = one.submit(_accept, listener, talk)
            try:
                result = act()
            except Exception as failure:
                _turn_away(listener)
                reason = talking.exception()
                if reason is None or isinstance(reason, HandshakeFailed):
                    raise failure from reason
                raise reason from failure
            _turn_away(listener)
            talking.result()
            return result
        finally:
            path.unlink(missing_ok=True)


def _accept(listener: socket.socket, talk: Callable[[Handshake], None]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError as error:
        raise HandshakeFailed("nobody came") from error
    with connection:
        if (uid := peer(connection)) != _ROOT:
            raise HandshakeFailed(f"uid {uid} came, not root")
        talk(Handshake(connection))


def _turn_away(listener: socket.socket) -> None:
    """Stop waiting for the privileged side, in case it has not connected yet."""
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
