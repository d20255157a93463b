"""Call the node helper from the agent (`privileged.helper.main`), with one request and one answer per connection."""

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gleaner.agent.runtime.interface import RuntimeFault
from gleaner.agent.system.ipc import Handshake, HandshakeFailed, peer

_ROOT = 0
_COMES_BACK_S = 60.0
"""The time for which a caller that waits for a container repeats its request.

The helper can be restarted while the container runs.
"""
_AGAIN_S = 0.5


class HelperRefusal(RuntimeFault):
    """The helper's refusal. `kind` is start, image, mount, ended, checkpoint, gone, or fault."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class HelperAnswer:
    """The helper's answer, and the descriptor that came with it, which the caller must close."""

    fields: Mapping[str, Any]
    descriptor: int | None


@dataclass(frozen=True, slots=True)
class HelperClient:
    """A client of this node's helper, at its socket."""

    path: str

    def ask(self, do: str, *descriptors: int, **fields: object) -> HelperAnswer:
        """Send a request and wait for its answer, however long it takes.

        Raises `HelperRefusal`, or `RuntimeFault` if no helper answers. A message carries one descriptor, so each
        additional one is sent in a separate message.
        """
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(self.path)
                if (uid := peer(connection)) != _ROOT:
                    raise RuntimeFault(f"uid {uid} listens at {self.path}, not root")
                helper = Handshake(connection)
                helper.say({"do": do, **fields}, *descriptors[:1])
                for one in descriptors[1:]:
                    helper.say({}, one)
                answer, answer_descriptor = helper.hear()
        except (OSError, HandshakeFailed) as error:
            raise RuntimeFault(f"the node's helper at {self.path} does not answer: {error}") from error
        if answer.get("ok") is not True:
            raise HelperRefusal(str(answer.get("kind")), str(answer.get("why")))
        return HelperAnswer(answer, answer_descriptor)

    def ask_until_answered(self, do: str, **fields: str) -> HelperAnswer:
        """Send a request that can be repeated. If the helper ends and soon comes back, it is asked again."""
        missed_s = 0.0
        while True:
            asked_s = time.monotonic()
            try:
                return self.ask(do, **fields)
            except HelperRefusal:
                raise
            except RuntimeFault:
                # A helper that has kept us waiting was running until now.
                missed_s = 0.0 if time.monotonic() > asked_s + _COMES_BACK_S else missed_s + _AGAIN_S
                if missed_s > _COMES_BACK_S:
                    raise
                time.sleep(_AGAIN_S)
