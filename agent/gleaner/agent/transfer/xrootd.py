"""Files on XRootD servers (`root://host//path`, and `roots` over TLS), reached by fsspec's file system for XRootD.

The library follows redirects itself, but not if it has a token. The addresses to which this process is connected are
checked before any byte is received or sent. The site's network determines which hosts have these addresses.
"""

import math
import os
import re
import shutil
import socket
import ssl
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer.process import CHUNK_BYTES, PermanentFailure, TemporaryFailure, TransferFailure
from gleaner.agent.transfer.rules import Access, RemoteServer
from gleaner.agent.transfer.stage import Names, StagedFile

_GRID_AUTHORITIES = "/etc/grid-security/certificates"
_LARGEST = 2**62
# An example of the library's errors: "File did not open properly: [ERROR] Server responded with an error: [3011] Unable
# to open ...". The numbers are from the protocol (XProtocol.hh): not allowed, no such file, not a file, a folder, and a
# failed login.
_ERROR = re.compile(r".*?\[(?:ERROR|FATAL)\] (?:Server responded with an error: )?", re.DOTALL)


class Xrootd(RemoteServer):
    """A URL of an XRootD server. A token is shown only to its host, and only over TLS."""

    def __init__(self, url: str, access: Access) -> None:
        super().__init__(url, access)
        where, credential = self.where, access.credential
        self._has_token = credential is not None and credential.is_for(url)
        # It is set within this process, since other users can see the environment with which a process was started.
        limit_s = max(1, math.ceil(access.silent_s))
        os.environ |= _library_settings(str(limit_s), credential.value if credential and self._has_token else "")
        from fsspec_xrootd import XRootDFileSystem  # pyright: ignore[reportMissingTypeStubs]

        with self.translating():
            for each in socket.getaddrinfo(where.host.strip("[]"), where.port, type=socket.SOCK_STREAM):
                self.check_address(where.host, str(each[4][0]))
        self._server: Any = XRootDFileSystem(
            f"{where.host}:{where.port}",
            locate_all_sources=False,
            timeout=limit_s,
            skip_instance_cache=True,
        )
        self._server.protocol = where.scheme

    def read(self, **_: bool) -> Iterator[bytes]:
        """Yield the content of a file until the server reports its end."""
        if "?" in unquote(self.url) or not self.where.folders:
            raise PermanentFailure(f"{allowed_urls.shown(self.url)}: name a file, without a ?")
        path, read_bytes = self._path(()), 0
        with self._understanding():
            file = self._server.open(path, block_size=0, cache_type="none", size=_LARGEST)
            self._check_peers()
            while chunk := file.read(CHUNK_BYTES):
                read_bytes += len(chunk)
                yield chunk
            self._check_peers()  # the library replaces a broken connection, perhaps by one to another server
            size_bytes = self._server.info(path)["size"]
        if read_bytes != size_bytes:
            line = f"{read_bytes} bytes were read, and the file has {size_bytes}"
            raise TemporaryFailure(f"{allowed_urls.shown(self.url)}: {line}")

    def put(self, names: Names, file: StagedFile) -> None:
        """Send a file. Readers might see a part of it before all of it has arrived."""
        path = self._path(names)
        with self._understanding(TemporaryFailure):
            self._server.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._check_peers()
            with self._server.open(path, "wb", block_size=CHUNK_BYTES) as target:
                self._check_peers()
                shutil.copyfileobj(file, target, CHUNK_BYTES)
            size_bytes = self._server.info(path)["size"]
        if size_bytes != file.size_bytes:
            line = f"the server has taken {size_bytes} bytes of {file.size_bytes}"
            raise TemporaryFailure(f"{allowed_urls.shown(self.url)}: {line}")

    def _path(self, names: Names) -> str:
        """Return a path in the library's form, without escapes. No part of the path is allowed to look like an
        option."""
        path = f"/{'/'.join((*self.where.folders, *names))}"
        if "?" in path or not path.isprintable():
            raise PermanentFailure(f"{allowed_urls.shown(self.url)}: a name has a letter that no file there has")
        return path

    def _check_peers(self) -> None:
        """Check the addresses to which this process is connected by TCP. UDP is used only for name servers."""
        for name in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if not stat.S_ISSOCK(name.stat().st_mode):
                    continue
                with socket.socket(fileno=os.dup(int(name.name))) as one:
                    if one.family in {socket.AF_INET, socket.AF_INET6} and one.type == socket.SOCK_STREAM:
                        self.check_address(self.where.host, str(one.getpeername()[0]))

    @contextmanager
    def _understanding(self, missing: type[TransferFailure] = PermanentFailure) -> Generator[None]:
        """Turn the text of the library's errors into the right exception, since it raises `OSError` for everything."""
        with self.translating(missing):
            try:
                yield
            except OSError as error:
                text = _ERROR.sub("", str(error))
                if "expired" in text:
                    raise TimeoutError from None
                if text.startswith(("[3010]", "[3030]", "Auth failed")):
                    raise PermissionError(text) from None
                if text.startswith(("[3011]", "[3015]", "[3016]")):
                    raise FileNotFoundError(text) from None
                if text.startswith("Redirect limit"):
                    why = "a secret is shown to one server only" if self._has_token else "that too often"
                    line = f"{allowed_urls.shown(self.url)} is redirected, and {why}: name the server with the file"
                    raise PermanentFailure(line) from None
                raise OSError(text) from None


def _library_settings(limit_s: str, token: str) -> dict[str, str]:
    """Return the environment that sets the library's limits and the ways in which it can authenticate.

    Without a token the library names this account (`unix`) or this host, as XRootD's servers require. It never uses the
    account's certificates, tickets or token files.
    """
    system = ssl.get_default_verify_paths()
    grid = _GRID_AUTHORITIES if Path(_GRID_AUTHORITIES).is_dir() else system.capath
    settings = {
        "XRD_CONNECTIONRETRY": "1",
        "XRD_CONNECTIONWINDOW": limit_s,
        "XRD_REQUESTTIMEOUT": limit_s,
        "XRD_STREAMTIMEOUT": limit_s,
        "XRD_TIMEOUTRESOLUTION": "1",
        "XRD_METALINKPROCESSING": "0",  # or a file's name could make the library follow URLs listed in the file
        "XRD_REDIRECTLIMIT": "0" if token else "10",
        "XrdSecPROTOCOL": "ztn" if token else "unix,host",
        "X509_CERT_DIR": os.environ.get("X509_CERT_DIR") or grid or "",
        "X509_CERT_FILE": system.cafile or "",
        "BEARER_TOKEN": token,
    }
    return {name: setting for name, setting in settings.items() if setting}
