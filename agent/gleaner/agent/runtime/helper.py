"""The agent's side of the node helper (`privileged.helper`): one request, one connection, one answer."""

import contextlib
import os
import socket
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from gleaner.agent.privileged.meeting import Meeting, NotMet, peer
from gleaner.agent.runtime.protocol import RuntimeFault

_ROOT = 0
_COMES_BACK_S = 60.0
"""The helper may be started anew while a container runs; whoever waits for that one asks again so long."""
_AGAIN_S = 0.5


class Refusal(Exception):
    """The helper's no. `kind`: start, image, ended, checkpoint, restore, gone, or fault."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Answer:
    """What the helper says, and the descriptor that came with it; it is the caller's to close."""

    said: Mapping[str, Any]
    descriptor: int | None


@dataclass(frozen=True, slots=True)
class Helper:
    """The helper of this node, at its socket."""

    path: str

    def ask(self, do: str, descriptor: int | None = None, **fields: object) -> Answer:
        """Have one thing done, however long it takes. Raises `Refusal`, or `RuntimeFault` if no helper answers."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(self.path)
                if (uid := peer(connection)) != _ROOT:
                    raise RuntimeFault(f"uid {uid} listens at {self.path}, not root")
                met = Meeting(connection)
                met.say({"do": do, **fields}, descriptor)
                said, given = met.hear()
        except (OSError, NotMet) as error:
            raise RuntimeFault(f"the node's helper at {self.path} does not answer: {error}") from error
        if said.get("ok") is not True:
            raise Refusal(str(said.get("kind")), str(said.get("why")))
        return Answer(said, given)

    def ask_until_answered(self, do: str, **fields: str) -> Answer:
        """For what may be asked twice: a helper that ends meanwhile, and comes back soon, is asked again."""
        missed_s = 0.0
        while True:
            asked_s = time.monotonic()
            try:
                return self.ask(do, None, **fields)
            except RuntimeFault:
                # One that has kept us waiting was there until now.
                missed_s = 0.0 if time.monotonic() > asked_s + _COMES_BACK_S else missed_s + _AGAIN_S
                if missed_s > _COMES_BACK_S:
                    raise
                time.sleep(_AGAIN_S)


@contextlib.contextmanager
def translated(doing: str) -> Generator[None]:
    """Refusals that mean something to the caller are caught before they get here."""
    try:
        yield
    except Refusal as error:
        raise RuntimeFault(f"{doing}: {error}") from error


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], flags: int) -> Generator[int]:
    """A descriptor, closed at the end."""
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
