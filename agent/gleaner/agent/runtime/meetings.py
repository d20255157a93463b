"""The agent's side of a meeting with what is privileged on the node: it waits, and the other comes to it."""

import contextlib
import socket
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gleaner.agent.privileged.meeting import Meeting, NotMet, checked_name, peer
from gleaner.agent.runtime.images import NeverCame, capture, serve
from gleaner.agent.storage.protocol import Draft, Parcel

DESCRIPTORS_PART = "descriptors.json"
"""Which pipes the process had as its standard streams, in runc's words."""
SEAL_PART = "seal.json"
"""Root's own notes of what it has saved, for a user's own job (`privileged.seal`)."""
_ROOT = 0

Done = TypeVar("Done")


class Failed(Exception):
    """The privileged side could not save or restore. `log` is the end of CRIU's log."""

    def __init__(self, status: int, log: str) -> None:
        super().__init__(log[-500:] or f"exit status {status}")
        self.log = log


def save(meeting: Meeting, draft: Draft) -> None:
    """Take in what CRIU saves. Raises `Failed`, `NotMet`, or the draft's own errors."""
    _, descriptor = meeting.hear()
    with _listener(descriptor) as listener, contextlib.suppress(NeverCame):
        capture(listener, draft, meeting.connection)
    last, _ = meeting.hear()
    if last.get("status") != 0:
        raise Failed(int(last.get("status", -1)), str(last.get("log", "")))
    draft.add(DESCRIPTORS_PART, [str(last.get("descriptors", "")).encode()])
    if "seal" in last:
        draft.add(SEAL_PART, [str(last["seal"]).encode()])


def restore(meeting: Meeting, parcel: Parcel) -> None:
    """Give out what CRIU restores. Raises `Failed`, `NotMet`, or the parcel's own errors."""
    meeting.hear()
    parts = {"descriptors": DESCRIPTORS_PART} | ({"seal": SEAL_PART} if SEAL_PART in parcel.parts else {})
    meeting.say({name: b"".join(parcel.read(part)).decode("utf-8") for name, part in parts.items()})
    _, descriptor = meeting.hear()
    with _listener(descriptor) as listener, contextlib.suppress(NeverCame):
        serve(listener, parcel, meeting.connection)
    last, _ = meeting.hear()
    if last.get("status") != 0:
        raise Failed(int(last.get("status", -1)), str(last.get("log", "")))


def while_meeting(folder: Path, name: str, talk: Callable[[Meeting], None], act: Callable[[], Done]) -> Done:
    """Do `act`, which sends the privileged side to this name, and have `talk` with it meanwhile.

    A failure of the talk is raised rather than that of the act, since it is the reason; `NotMet` if nobody came.
    """
    path = folder / checked_name(name)
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, ThreadPoolExecutor(1) as one:
        listener.bind(str(path))
        listener.listen(1)
        try:
            talking = one.submit(_met, listener, talk)
            try:
                done = act()
            except Exception as failure:
                _turn_away(listener)
                reason = talking.exception()
                if reason is None or isinstance(reason, NotMet):
                    raise failure from reason
                raise reason from failure
            _turn_away(listener)
            talking.result()
            return done
        finally:
            path.unlink(missing_ok=True)


def _met(listener: socket.socket, talk: Callable[[Meeting], None]) -> None:
    try:
        connection, _ = listener.accept()
    except OSError as error:
        raise NotMet("nobody came") from error
    with connection:
        if (uid := peer(connection)) != _ROOT:
            raise NotMet(f"uid {uid} came, not root")
        talk(Meeting(connection))


def _turn_away(listener: socket.socket) -> None:
    """Whoever has not come by now is not waited for."""
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _listener(descriptor: int | None) -> Generator[socket.socket]:
    if descriptor is None:
        raise NotMet("no descriptor came with the message")
    with socket.socket(fileno=descriptor) as listener:
        yield listener
