"""Objects of S3, with the group's keys and no others, at checked addresses, each call once.

An object is there when all of it is: its parts become an object at the last call. What breaks off before leaves no
object, and its parts are removed by that try, or by the next one.
"""

import os
import shutil
import ssl
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any, NoReturn, cast
from urllib.parse import unquote

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer import rules
from gleaner.agent.transfer.process import CHUNK_BYTES, PermanentFailure, TemporaryFailure
from gleaner.agent.transfer.rules import Access, AddressGuard
from gleaner.agent.transfer.stage import Names, StagedFile

PART_BYTES = 2**24
"""The size of a part. Parts are larger where there would be too many."""
MOST_PARTS = 10_000
_PASSING_CODES = frozenset(
    {
        "IncompleteBody",
        "InternalError",
        "NoSuchUpload",  # another try has removed it
        "OperationAborted",
        "RequestTimeTooSkewed",
        "RequestTimeout",
        "SlowDown",
    }
)
"""The server's own words for what may pass. Their statuses are 400, 403, 404 and 409, too."""


class S3:
    """A URL of a server of S3, as s3fs reaches it."""

    def __init__(self, url: str, access: Access) -> None:
        self._url, self._access, self._loops = url, access, rules.load_fsspec()
        # Of this account's own credentials and settings nothing may be used, and no server of the cloud is asked.
        os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        os.environ |= {"AWS_EC2_METADATA_DISABLED": "true"}
        from s3fs import S3FileSystem  # pyright: ignore[reportMissingTypeStubs]

        where, credential = allowed_urls.location(url), access.credential
        mine = credential if credential is not None and credential.is_for(url) else None
        access_key, _, secret_key = mine.value.partition(":") if mine else (None, "", None)
        config = {
            "connector_args": AddressGuard(access).connector_options(self._loops.get_loop()),
            "connect_timeout": access.silent_s,
            "read_timeout": access.silent_s,
            "proxies": {},
            "retries": {"total_max_attempts": 1},
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",  # older servers know no newer checksums
        }
        # Amazon's servers differ by region, and its library knows them.
        endpoint = None if where.host == allowed_urls.AMAZON else f"https://{where.host}:{where.port}"
        self._server: Any = S3FileSystem(
            anon=mine is None,
            key=access_key,
            secret=secret_key,
            token=None,
            endpoint_url=endpoint,
            client_kwargs={"region_name": "us-east-1", "verify": ssl.get_default_verify_paths().cafile or True},
            config_kwargs=config,
            skip_instance_cache=True,
        )
        self._server.retries = 1
        self._bucket, self._above = where.folders[0] if where.folders else "", where.folders[1:]

    def read(self, *, has_digest: bool) -> Iterator[bytes]:
        """Yield the content of an object, in one request: it is the same object from the first byte to the last."""
        del has_digest  # a length is always expected
        if not self._above or "?" in unquote(self._url):
            raise PermanentFailure(f"{allowed_urls.shown(self._url)}: name a bucket and a key, without a ?")
        read_bytes, loop = 0, self._server.loop
        with self._translating():
            file = self._loops.sync(loop, self._server.open_async, f"{self._bucket}/{'/'.join(self._above)}")
            while chunk := self._next(file):
                read_bytes += len(chunk)
                yield chunk
        if read_bytes != file.size:
            raise self._broken_off()

    def _next(self, file: Any) -> bytes:
        try:
            return cast("bytes", self._loops.sync(self._server.loop, file.read, CHUNK_BYTES))
        except KeyError:  # of the header with the length
            line = f"{allowed_urls.shown(self._url)}: the server does not say where the object ends"
            raise PermanentFailure(line) from None

    def put(self, names: Names, file: StagedFile) -> None:
        """Send a file. It becomes an object when all of it is there."""
        key, of_part_bytes = self._key(names), max(PART_BYTES, -(-file.size_bytes // MOST_PARTS))
        with self._translating():
            self._remove_left(key)
            upload = self._server.open(f"{self._bucket}/{key}", "wb", block_size=of_part_bytes, autocommit=False)
            try:
                shutil.copyfileobj(file, upload, CHUNK_BYTES)
                upload.close()
                with file.progress.while_working(file.size_bytes):  # a server may put the parts together for long
                    upload.commit()
            except BaseException:
                with suppress(Exception):
                    upload.discard()
                raise

    def _remove_left(self, key: str) -> None:
        """Remove the parts that tries before have left of an object. Keys that may not list uploads leave them."""
        with suppress(OSError):
            page = self._server.call_s3("list_multipart_uploads", Bucket=self._bucket, Prefix=key)
            for upload in page.get("Uploads", ()):
                if upload["Key"] == key:
                    self._server.abort_mpu(self._bucket, key, upload["UploadId"])

    def _key(self, names: Names) -> str:
        try:
            return b"/".join(map(os.fsencode, (*self._above, *names))).decode()
        except UnicodeDecodeError:
            plain = os.fsencode("/".join(names)).decode(errors="replace")
            line = f"{plain} has letters that no key of S3 can have: give the file another name"
            raise PermanentFailure(line) from None

    @contextmanager
    def _translating(self) -> Generator[None]:
        """Raise a `TransferFailed` or a `TimeoutError` for what the libraries raise."""
        import aiohttp
        from botocore import exceptions  # pyright: ignore[reportMissingTypeStubs]

        try:
            yield
        except (exceptions.BotoCoreError, exceptions.ClientError, aiohttp.ClientError, OSError) as error:
            causes = tuple(_causes(error))
            for cause in causes:
                if isinstance(cause, PermanentFailure):
                    raise cause from None
                if isinstance(cause, exceptions.ClientError):
                    self._raise_answer(cast("Any", cause).response)
            if any(isinstance(cause, exceptions.ReadTimeoutError | TimeoutError) for cause in causes):
                raise TimeoutError from None
            if any(isinstance(cause, aiohttp.ClientPayloadError | exceptions.IncompleteReadError) for cause in causes):
                raise self._broken_off() from None
            kind = PermanentFailure if isinstance(error, exceptions.ParamValidationError) else TemporaryFailure
            raise kind(f"{allowed_urls.shown(self._url)}: {rules.one_line(error)}") from None

    def _broken_off(self) -> TemporaryFailure:
        line = f"{allowed_urls.shown(self._url)}: the server broke off before the end of the file"
        return TemporaryFailure(line)

    def _raise_answer(self, answer: Any) -> NoReturn:
        """Raise for an answer that is no success. S3's own code says more than the status."""
        status, code = answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("Error", {}).get("Code")
        line = f"{allowed_urls.shown(self._url)}: the server answers {status}"
        if code in _PASSING_CODES:
            raise TemporaryFailure(f"{line} ({code})")
        if code == "InvalidObjectState":
            raise PermanentFailure(f"{line}: the object is archived: restore it first")
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            raise PermanentFailure(f"{line}, a redirect: name the server that has the bucket")
        rules.raise_status(self._url, status, self._access.credential)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
