"""The program that fetches one URL (see `child_process`): it writes the content to its output."""

import json
import os
import ssl
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from gleaner.agent.common import allowed_urls
from gleaner.agent.staging import fetch_xrootd, servers
from gleaner.agent.staging.child_process import CHUNK_BYTES, MayNot, MayPass, serve
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.servers import AddressGuard
from gleaner.agent.system import listed_folders, openat


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A URL, and what the admin says about it."""

    url: str
    allowed: Sequence[str]
    control_host: str
    """The host of control's address: its addresses are refused."""
    silent_s: float
    """A server that sends nothing for so long hangs."""
    has_digest: bool
    """True if the content's digest is known: then a server need not say how long the content is."""
    credential: Credential | None = None
    """It comes by this process's standard input: others see neither its arguments nor its environment with it."""
    own: Sequence[str] = ()
    """Gleaner's own folders: no file is read from a listed folder inside or above one of them."""

    def to_json(self) -> bytes:
        """Return the request as the child reads it."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: str) -> "FetchRequest":
        """Return the request that was sent."""
        fields = json.loads(text)
        credential = fields.pop("credential")
        return cls(**fields, credential=None if credential is None else Credential(**credential))


def open_file(url: str, request: FetchRequest) -> Iterator[bytes]:
    """Yield the content of a file that everybody on this node may read. Links are followed within what is allowed."""
    names = allowed_urls.location(url).folders
    entries = [allowed_urls.location(each).folders for each in request.allowed if _is_file(each)]
    top = max((each for each in entries if names[: len(each)] == each), key=len)[: len(names) - 1]
    path, above = f"/{'/'.join(names)}", f"/{'/'.join(top)}"
    try:
        listed = listed_folders.open_listed(above, owners=(0, os.geteuid()), own=request.own)
    except listed_folders.FolderRefused as error:
        raise MayPass(f"{above}: {error}") from None
    try:
        with openat.closing_fd(listed):
            file = os.open("/".join(names[len(top) :]), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=listed)
    except OSError as error:
        raise MayNot(f"{path}: {error.strerror}") from None
    with openat.closing_fd(file):
        # The open file is checked, and not its name, which may mean another file a moment later.
        real = Path(f"/proc/self/fd/{file}").readlink()
        if not any(real.is_relative_to(Path("/", *each)) for each in entries):
            raise MayNot(f"{path} leads to {real}, which is not below a folder that this site allows")
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise MayNot(f"{path} is no file")
        if not os.fstat(file).st_mode & stat.S_IROTH or not all(
            folder.stat().st_mode & stat.S_IXOTH for folder in real.parents
        ):
            raise MayNot(f"{path} is not readable by everybody: Gleaner would give it to who may not read it")
        while chunk := os.read(file, CHUNK_BYTES):
            yield chunk


def _is_file(entry: str) -> bool:
    return allowed_urls.location(entry).scheme == "file"


def open_https(url: str, request: FetchRequest) -> Iterator[bytes]:
    """Yield the content that a server sends. Each redirect is checked before it is followed."""
    import aiohttp  # slow to load, and not needed for a file

    servers.forget_own_settings()
    from fsspec.implementations.http import HTTPFileSystem  # pyright: ignore[reportMissingTypeStubs]

    resolver = servers.resolver(AddressGuard(request.allowed, request.control_host))

    async def get_client(**_: object) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=request.silent_s, sock_read=request.silent_s)
        connector = aiohttp.TCPConnector(resolver=resolver(), ssl=ssl.create_default_context())
        headers = {"Accept-Encoding": "identity", "User-Agent": "gleaner"}
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers, auto_decompress=False)

    server: Any = HTTPFileSystem(get_client=get_client, encoded=True, skip_instance_cache=True)
    for _ in range(1 + servers.MOST_REDIRECTS):
        try:
            file = server.open(
                url, block_size=0, size=1, allow_redirects=False, headers=servers.sign_in(url, request.credential)
            )
        except FileNotFoundError:
            raise MayNot(f"{allowed_urls.shown(url)}: the server has no such file (404)") from None
        except TimeoutError:  # also one of aiohttp's
            raise
        except aiohttp.ClientResponseError as error:
            servers.raise_status(url, error.status, request.credential)
        except aiohttp.InvalidURL as error:
            raise MayNot(f"{allowed_urls.shown(url)}: {servers.one_line(error)}") from None
        except aiohttp.ClientError as error:
            raise MayPass(f"{allowed_urls.shown(url)}: {servers.one_line(error)}") from None
        answer = file.r
        if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
            target = urljoin(url, answer.headers.get("Location", ""))
            servers.check_redirect(url, target, request.allowed, allowed_urls.FETCH)
            url = target
            continue
        if answer.status != HTTPStatus.OK:
            servers.raise_status(url, answer.status, request.credential)
        is_chunked = answer.headers.get("Transfer-Encoding", "").lower() == "chunked"
        if not (request.has_digest or is_chunked or "Content-Length" in answer.headers):
            raise MayNot(f"{allowed_urls.shown(url)}: the server does not say where the file ends: give its sha256")
        return _read(file, url)
    raise servers.too_many_redirects(request.url)


def open_s3(url: str, request: FetchRequest) -> Iterator[bytes]:
    """Yield the content of an object of S3, in one request: it is the same object from the first byte to the last."""
    from gleaner.agent.staging.s3 import S3Server

    folders = allowed_urls.location(url).folders
    if len(folders) < 2 or "?" in url:
        raise MayNot(f"{allowed_urls.shown(url)}: name a bucket and a key, without a ?")
    guard = AddressGuard(request.allowed, request.control_host)
    server = S3Server(url, guard, silent_s=request.silent_s, credential=request.credential)
    with server.translating():
        answer = server.call("get_object", Bucket=folders[0], Key="/".join(folders[1:]))
        while chunk := server.read(answer["Body"], CHUNK_BYTES):
            yield chunk


def open_xrootd(url: str, request: FetchRequest) -> Iterator[bytes]:
    """Yield the content of a file of XRootD."""
    rules = fetch_xrootd.XrootdRules(request.allowed, request.control_host, request.silent_s, request.credential)
    return fetch_xrootd.read_xrootd(url, rules)


def _read(file: Any, url: str) -> Iterator[bytes]:
    import aiohttp

    try:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
        raise MayPass(f"{allowed_urls.shown(url)}: the server broke off before the end of the file") from None


OPENERS = {"https": open_https, "file": open_file, "s3": open_s3, "root": open_xrootd, "roots": open_xrootd}
NEEDS = {"https": ("aiohttp", "fsspec"), "file": (), "s3": ("s3fs",), "root": ("XRootD",), "roots": ("XRootD",)}
"""The libraries that each scheme needs."""


def fetch(request: FetchRequest) -> Iterator[bytes]:
    """Yield the content of the URL. Raises `MayNot` or `MayPass` with one line."""
    if reason := allowed_urls.refusal(request.url, request.allowed):
        raise MayNot(reason)
    where = allowed_urls.shown(request.url)
    try:
        yield from OPENERS[allowed_urls.location(request.url).scheme](request.url, request)
    except TimeoutError:
        raise MayPass(f"{where}: the server sent nothing for {request.silent_s:.0f} s") from None
    except OSError as error:
        raise MayPass(f"{where}: {servers.one_line(error)}") from None


def main() -> int:
    """Answer one request; return the exit status."""
    request = FetchRequest.from_json(sys.stdin.read())
    return serve(fetch(request), request.credential)


if __name__ == "__main__":
    status = main()
    os._exit(status)  # at once, whatever threads of libraries still do
