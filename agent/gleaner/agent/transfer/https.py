"""Files on HTTPS servers, read by GET and sent by a plain PUT. Each redirect is checked before it is followed."""

import os
import ssl
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urljoin

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer.process import CHUNK_BYTES, PermanentFailure, TemporaryFailure, TransferFailure
from gleaner.agent.transfer.rules import Access, RemoteServer
from gleaner.agent.transfer.stage import Names, StagedFile

MOST_REDIRECTS = 10
_STORED = {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT}
_ASK_LATER = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.LOCKED, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class _Redirected(TransferFailure):
    pass


class Https(RemoteServer):
    """A URL of a server that fsspec reaches in our own session, so that every answer is checked."""

    def __init__(self, url: str, access: Access) -> None:
        super().__init__(url, access)
        import aiohttp  # slow to load, and not needed for `file://`
        from fsspec.asyn import get_loop  # pyright: ignore[reportMissingTypeStubs]
        from fsspec.implementations.http import HTTPFileSystem  # pyright: ignore[reportMissingTypeStubs]

        options = self.connector_options(get_loop())

        async def get_client(**_: object) -> aiohttp.ClientSession:
            return aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(), **options),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=access.silent_s, sock_read=access.silent_s),
                headers={"Accept-Encoding": "identity", "User-Agent": "gleaner"},
                auto_decompress=False,
                raise_for_status=self._check_answer,
            )

        self._server: Any = HTTPFileSystem(get_client=get_client, encoded=True, skip_instance_cache=True)

    def read(self, *, has_digest: bool) -> Iterator[bytes]:
        """Yield the content. Its end is proved by a length, by the last chunk, or by the digest that the caller has."""

        def ask(url: str, options: dict[str, Any]) -> Any:
            return self._server.open(url, block_size=0, size=1, **options)

        file = self._follow(self.url, ask, allowed_urls.FETCH)
        headers, shown = file.r.headers, allowed_urls.shown(str(file.r.url))
        is_chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        encoding = headers.get("Content-Encoding", "identity")
        if not (has_digest or is_chunked or "Content-Length" in headers):
            raise PermanentFailure(f"{shown}: the server does not say where the file ends: give its sha256")
        if encoding != "identity" and not has_digest:
            line = f"{shown}: the server sends the file packed ({encoding}), though it was asked not to"
            raise PermanentFailure(f"{line}: give the sha256 of what it sends")
        with self.translating():
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def put(self, names: Names, file: StagedFile) -> None:
        """Send a file. Readers might see a part of it before all of it has arrived."""
        path = "/".join(quote(os.fsencode(name), safe="") for name in names)

        def ask(url: str, options: dict[str, Any]) -> None:
            file.rewind()
            options["headers"]["Content-Length"] = str(file.size_bytes)
            self._server.put_file(file, url, chunk_size=CHUNK_BYTES, method="put", **options)

        self._follow(f"{self.url.rstrip('/')}/{path}", ask, allowed_urls.DELIVER)

    def _follow(self, url: str, ask: Callable[[str, dict[str, Any]], Any], use: allowed_urls.UrlUse) -> Any:
        """Send the request to the server, and follow redirects to other servers that the site allows."""
        place = url
        for _ in range(1 + MOST_REDIRECTS):
            shown = allowed_urls.shown(place)
            try:
                with self.translating():
                    return ask(place, {"allow_redirects": False, "headers": self.sign_in(place)})
            except _Redirected as error:
                if not str(error):
                    raise PermanentFailure(f"{shown} is redirected, and the server does not say where to") from None
                place = urljoin(place, str(error))
            reason = allowed_urls.refusal(place, self.access.allowed, use)
            if not reason and allowed_urls.location(place).scheme != "https":
                reason = "a server must not lead to a file of the node"
            if reason:
                raise PermanentFailure(f"{shown} is redirected, and {reason}")
        raise PermanentFailure(f"{allowed_urls.shown(url)} is redirected more than {MOST_REDIRECTS} times")

    async def _check_answer(self, answer: Any) -> None:
        """Raise an error for each unsuccessful answer."""
        url, status = str(answer.url), answer.status
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            raise _Redirected(answer.headers.get("Location", ""))
        if status in (_STORED if answer.method == "PUT" else {HTTPStatus.OK}):
            return
        wants_to_know = status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
        line = f"{allowed_urls.shown(url)}: the server answers {status}{self.advice(url) if wants_to_know else ''}"
        may_pass = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _ASK_LATER
        raise (TemporaryFailure if may_pass else PermanentFailure)(line)
