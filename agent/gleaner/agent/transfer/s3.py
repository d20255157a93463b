"""Objects of S3, reached at checked addresses with only the group's keys. Calls are not repeated.

An object appears only when it is complete, because the last call joins its parts. An upload that fails before that
leaves no object and removes its parts. The parts from a child that was killed stay until a rule of the bucket removes
them.
"""

import shutil
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer.process import CHUNK_BYTES, PermanentFailure, TemporaryFailure
from gleaner.agent.transfer.rules import Access, RemoteServer
from gleaner.agent.transfer.stage import Names, StagedFile

PART_BYTES = 2**24
"""The size of a part. Parts are larger if there would otherwise be too many."""
MOST_PARTS = 10_000


class S3(RemoteServer):
    """A URL of an S3 server, reached by s3fs."""

    def __init__(self, url: str, access: Access) -> None:
        super().__init__(url, access)
        from fsspec import asyn  # pyright: ignore[reportMissingTypeStubs]
        from s3fs import S3FileSystem  # pyright: ignore[reportMissingTypeStubs]

        self._loops: Any = asyn
        mine = access.credential if access.credential and access.credential.is_for(url) else None
        access_key, _, secret_key = mine.value.partition(":") if mine else (None, "", None)
        config = {
            "connector_args": self.connector_options(self._loops.get_loop()),
            "connect_timeout": access.silent_s,
            "read_timeout": access.silent_s,
            "proxies": {},
            "retries": {"total_max_attempts": 1},
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",  # older servers do not know newer checksums
        }
        # Amazon's servers differ by region, and its library knows them.
        endpoint = None if self.where.host == allowed_urls.AMAZON else f"https://{self.where.host}:{self.where.port}"
        self._server: Any = S3FileSystem(
            anon=mine is None,
            key=access_key,
            secret=secret_key,
            endpoint_url=endpoint,
            client_kwargs={"region_name": "us-east-1", "verify": ssl.get_default_verify_paths().cafile or True},
            config_kwargs=config,
            skip_instance_cache=True,
        )
        self._server.retries = 1
        self._bucket, self._above = "".join(self.where.folders[:1]), self.where.folders[1:]

    def read(self, **_: bool) -> Iterator[bytes]:
        """Yield the content of an object, read in one request so that all bytes come from the same object."""
        shown, size_bytes, loop = allowed_urls.shown(self.url), 0, self._loops.get_loop()
        if not self._above or "?" in unquote(self.url):
            raise PermanentFailure(f"{shown}: name a bucket and a key, without a ?")
        with self.translating():
            file = self._loops.sync(loop, self._server.open_async, f"{self._bucket}/{'/'.join(self._above)}")
            try:
                while chunk := self._loops.sync(loop, file.read, CHUNK_BYTES):
                    size_bytes += len(chunk)
                    yield chunk
            except KeyError:  # the header with the length
                raise PermanentFailure(f"{shown}: the server does not say where the object ends") from None
            if size_bytes != file.size:
                raise TemporaryFailure(f"{shown}: the server has sent {size_bytes} bytes of {file.size}")

    def put(self, names: Names, file: StagedFile) -> None:
        """Send a file, which becomes an object when all of it has arrived."""
        key, of_part_bytes = "/".join((*self._above, *names)), max(PART_BYTES, -(-file.size_bytes // MOST_PARTS))
        if not key.isprintable():
            raise PermanentFailure(f"{key!r} has letters that Gleaner gives to no key of S3: rename the file")
        with self.translating(TemporaryFailure):
            upload = self._server.open(f"{self._bucket}/{key}", "wb", block_size=of_part_bytes, autocommit=False)
            try:
                shutil.copyfileobj(file, upload, CHUNK_BYTES)
                upload.close()
                upload.commit()
            except BaseException:
                with suppress(Exception):
                    upload.discard()
                raise
