"""The user's proof of identity: a token, or otherwise a munge credential."""

import hashlib
import os
import shutil
import stat
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from gleaner.client.errors import ClientError, ErrorKind

if TYPE_CHECKING:
    from gleaner.control.settings import ClientSettings


class TokenProof(httpx.Auth):
    """The proof of identity by a token."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the token."""
        request.headers["Authorization"] = self._header
        yield request


class MungeProof(httpx.Auth):
    """The proof of identity by munge, which creates a credential for each request."""

    requires_request_body = True

    def __init__(self, socket: Path, timeout_s: float) -> None:
        self._socket = socket
        self._timeout_s = timeout_s

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign the request. Raises `ClientError`."""
        from gleaner.control.slurm import munge

        nonce, digest = munge.new_nonce(), hashlib.sha256(request.content).hexdigest()
        target = request.url.raw_path.decode("ascii")
        payload = munge.payload_of(method=request.method, target=target, body_digest=digest, nonce=nonce)
        try:
            credential = munge.encode(payload, socket=self._socket, timeout_s=self._timeout_s)
        except munge.MungeError as error:
            line = f"no token, and munge cannot prove who you are: {error}"
            raise ClientError(line, kind=ErrorKind.NO_PROOF) from error
        request.headers["Authorization"] = f"Munge {credential}"
        request.headers["Gleaner-Proof"] = f"{nonce} {digest}"
        yield request


def find_proof(settings: "ClientSettings") -> httpx.Auth:
    """Return the proof of this user's identity. Raises `ClientError`."""
    runs_munge = settings.munge_socket.exists() and shutil.which("munge") is not None
    has_token = settings.token_file.expanduser().exists()
    if settings.proof == "munge" or (settings.proof == "auto" and runs_munge and not has_token):
        return MungeProof(settings.munge_socket, settings.timeout_s)
    return TokenProof(read_token(settings.token_file.expanduser()))


def read_token(path: Path) -> str:
    """Return the token in a file that only its owner can read. Raises `ClientError`."""
    no_token = f"no token: {path}"
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except FileNotFoundError:
        line = f"{no_token} is not there; ask an admin for one and put it there, mode 0600"
        raise ClientError(line, kind=ErrorKind.NO_PROOF) from None
    except OSError as error:
        raise ClientError(f"{no_token}: {error.strerror}", kind=ErrorKind.NO_PROOF) from None
    except UnicodeDecodeError:
        token, mode = "", 0
    if stat.S_IMODE(mode) & 0o077:
        line = f"the token in {path} can be read by others: chmod 600 {path}"
        raise ClientError(line, kind=ErrorKind.NO_PROOF)
    if not token or not token.isprintable() or " " in token:
        raise ClientError(f"{no_token} does not contain one line of plain text", kind=ErrorKind.NO_PROOF)
    return token
