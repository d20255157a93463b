"""Calls of Munge's programs, which prove the identity of a caller with the cluster's own key.

The caller's node creates the proof, and control's node verifies it. The proof is a credential, which contains the Unix
user that the kernel reported to munged, and our payload. The payload is a digest of one request, with a number that is
used once. Therefore a credential is valid only for that request and only once.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.privileged.common import system_programs
from gleaner.agent.privileged.common.system_programs import ProgramResult

TTL_S = 60
"""The time for which a credential is valid, by the clocks of the two nodes. Munge refuses older credentials."""
NONCE_BYTES = 16
_VERSION = "gleaner-1"
_KEYS = "STATUS,ENCODE_TIME,DECODE_TIME,UID"
_REFUSALS = {
    8: "it is no whole credential",
    15: "it has expired: are the clocks of this node and of control's the same?",
    16: "it is from the future: are the clocks of this node and of control's the same?",
    17: "it was used already",
    18: "it is for somebody else to read",
}
"""The meanings of munge's error codes for a credential (munge.h)."""


class MungeError(Exception):
    """Munge cannot identify the caller. The text is one line with the reason."""


class MungeAway(MungeError):
    """Munge does not work at present. The caller can try again later, or use a token."""


class MungeRefused(MungeError):
    """The credential is not valid."""


@dataclass(frozen=True, slots=True)
class MungeCredential:
    """The contents of a credential that munge has verified. Both times are in whole seconds since the epoch."""

    uid: int
    payload: str
    encoded_s: int
    decoded_s: int


def new_nonce() -> str:
    """Return a new random number."""
    return secrets.token_hex(NONCE_BYTES)


def payload_of(*, method: str, target: str, body_digest: str, nonce: str) -> str:
    """Return the payload of a credential for this request. `target` is the path with the query, exactly as it is sent.

    >>> payload_of(method="GET", target="/v1/jobs?limit=1", body_digest="", nonce="00")[:16]
    'gleaner-1 47f3ae'
    """
    words = "\n".join((_VERSION, method.upper(), target, body_digest, nonce))
    return f"{_VERSION} {hashlib.sha256(words.encode('utf-8', 'replace')).hexdigest()}"


def encode(payload: str, *, socket: Path | None, timeout_s: float) -> str:
    """Return a credential for this process's user with this payload. Raises `MungeAway`."""
    done = _run(["munge", f"--ttl={TTL_S}", f"--string={payload}"], "", socket=socket, timeout_s=timeout_s)
    if done.status != 0:
        raise MungeAway(_said(done, "munge"))
    return done.stdout.strip()


def decode(credential: str, *, socket: Path | None, timeout_s: float) -> MungeCredential:
    """Return the contents of a credential. munged accepts each credential only once.

    Raises `MungeRefused` or `MungeAway`.
    """
    words = ["unmunge", "--numeric", f"--keys={_KEYS}"]
    done = _run(words, credential, socket=socket, timeout_s=timeout_s)
    if done.status in _REFUSALS:
        raise MungeRefused(f"munge does not accept the credential: {_REFUSALS[done.status]}")
    if done.status != 0:
        error = MungeAway if "munged" in done.stderr or "socket" in done.stderr else MungeRefused
        raise error(_said(done, "unmunge"))
    return parsed(done.stdout)


def parsed(text: str) -> MungeCredential:
    r"""Return the contents of a credential from the output of `unmunge`: metadata, an empty line, the payload.

    Raises `MungeAway` for any other output.

    >>> parsed("STATUS:   0\nENCODE_TIME:  5\nDECODE_TIME:  6\nUID:   1000\n\nUID: 0\n")
    MungeCredential(uid=1000, payload='UID: 0', encoded_s=5, decoded_s=6)
    """
    metadata, empty, payload = text.partition("\n\n")
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in metadata.splitlines())}
    try:
        status, uid = int(facts["STATUS"]), int(facts["UID"])
        encoded_s, decoded_s = int(facts["ENCODE_TIME"]), int(facts["DECODE_TIME"])
    except (KeyError, ValueError) as error:
        raise MungeAway(f"unmunge said {metadata!r}, which is not understood") from error
    if status != 0 or not empty:
        raise MungeAway(f"unmunge said {metadata!r}, which is not understood")
    return MungeCredential(uid, payload.strip(), encoded_s, decoded_s)


def _run(words: Sequence[str], given: str, *, socket: Path | None, timeout_s: float) -> ProgramResult:
    where = [] if socket is None else [f"--socket={socket}"]
    try:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        return system_programs.run([*words, *where], within_s=timeout_s, stdin=given, environment=environment)
    except FileNotFoundError as error:
        raise MungeAway(f"the program {words[0]} is not installed here") from error
    except TimeoutError as error:
        raise MungeAway(f"{words[0]} did not answer within {timeout_s:g} s: is munged all right?") from error
    except OSError as error:
        raise MungeAway(f"{words[0]}: {error}") from error


def _said(done: ProgramResult, program: str) -> str:
    said = " ".join(done.stderr.split()).removeprefix(f"{program}: Error: ")
    return f"{program} failed: {said or f'exit code {done.status}'}"
