"""A server of S3 as our programs reach it: with the group's keys and no others, at checked addresses, each call once.

An object is there when all of it is: a small one is sent in one request, and the parts of a large one become an object
at the last call. What breaks off before leaves no object. Its parts are removed by that try, or by a later one.
"""

import io
import json
import os
import ssl
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from gleaner.agent.common import allowed_urls
from gleaner.agent.staging import servers
from gleaner.agent.staging.child_process import MayNot, MayPass
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.stage import SAYS_WHILE_SILENT, SLOWEST_BYTES_PER_S, Names, while_saying

PART_BYTES = 2**24
"""A larger file is sent in parts, which are larger where there would be too many."""
MOST_PARTS = 10_000
MOST_PAGES = 20
"""So many pages of broken-off uploads are read, with a thousand each."""
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


class S3Server:
    """One server of S3."""

    def __init__(
        self, url: str, guard: servers.AddressGuard, *, silent_s: float, credential: Credential | None
    ) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        # Of this account's own credentials and settings nothing may be used, and no server of the cloud is asked.
        os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        os.environ |= {"AWS_EC2_METADATA_DISABLED": "true"}
        servers.forget_own_settings()
        from fsspec import asyn  # pyright: ignore[reportMissingTypeStubs]
        from s3fs import S3FileSystem  # pyright: ignore[reportMissingTypeStubs]

        self._url, self._credential, self._loops = url, credential, cast("Any", asyn)
        connector = {"resolver": servers.resolver(guard)(loop=self._loops.get_loop())}
        where = allowed_urls.location(url)
        mine = credential if credential is not None and credential.is_for(url) else None
        access_key, _, secret_key = mine.value.partition(":") if mine else (None, "", None)
        config = {
            "connector_args": connector | {"socket_factory": servers.socket_factory(guard)},
            "http_session_cls": _session_without_redirects(),
            "connect_timeout": silent_s,
            "read_timeout": silent_s,
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

    def call(self, operation: str, **arguments: object) -> Any:
        """Call an operation of S3; return its answer."""
        return self._server.call_s3(operation, **arguments)

    def read(self, body: Any, most_bytes: int) -> bytes:
        """Return the next bytes of an object's content."""
        return cast("bytes", self._loops.sync(self._server.loop, body.read, most_bytes))

    @contextmanager
    def translating(self) -> Generator[None]:
        """Raise `MayNot`, `MayPass` or `TimeoutError` for what the libraries raise."""
        import aiohttp
        from botocore import exceptions  # pyright: ignore[reportMissingTypeStubs]

        shown = allowed_urls.shown(self._url)
        try:
            yield
        except (exceptions.BotoCoreError, exceptions.ClientError, aiohttp.ClientError, OSError) as error:
            causes = tuple(_causes(error))
            for cause in causes:
                if isinstance(cause, MayNot):
                    raise cause from None
                if isinstance(cause, exceptions.ClientError):
                    self._raise_answer(cast("Any", cause).response)
            if any(isinstance(cause, exceptions.ReadTimeoutError | TimeoutError) for cause in causes):
                raise TimeoutError from None
            if any(isinstance(cause, aiohttp.ClientPayloadError | exceptions.IncompleteReadError) for cause in causes):
                raise MayPass(f"{shown}: the server broke off before the end of the file") from None
            kind = MayNot if isinstance(error, exceptions.ParamValidationError) else MayPass
            raise kind(f"{shown}: {servers.one_line(error)}") from None

    def _raise_answer(self, answer: Any) -> NoReturn:
        """Raise `MayPass` or `MayNot` for an answer that is no success. S3's own code says more than the status."""
        status, code = answer["ResponseMetadata"]["HTTPStatusCode"], answer.get("Error", {}).get("Code")
        line = f"{allowed_urls.shown(self._url)}: the server answers {status}"
        if code in _PASSING_CODES:
            raise MayPass(f"{line} ({code})")
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            raise MayNot(f"{line}, a redirect, which is not followed: name the server that has the bucket")
        servers.raise_status(self._url, status, self._credential)


def _session_without_redirects() -> Any:
    """Return the class of botocore's sessions, but that its library follows no redirect: it would follow each.

    botocore itself asks Amazon's server of another region, where it is led to one.
    """
    from aiobotocore import httpsession  # pyright: ignore[reportMissingTypeStubs]

    library = cast("Any", httpsession).AIOHTTPSession

    async def get_session(self: Any, proxy_url: Any) -> _OneAnswer:
        return _OneAnswer(await library._get_session(self, proxy_url))

    return type("Session", (library,), {"_get_session": get_session})


class _OneAnswer:
    """A session of aiohttp that gives each answer as it is."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def request(self, method: str, **options: Any) -> Any:
        return self._session.request(method, **options, allow_redirects=False)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class _Part(io.RawIOBase):
    """A part of a file, whose reading is said. botocore reads it for a signature, and then sends it."""

    def __init__(self, file: IO[bytes], first: int, size_bytes: int, progress: Callable[[], None]) -> None:
        super().__init__()
        self._file, self._first, self._size_bytes, self._progress, self._at = file, first, size_bytes, progress, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        self._progress()
        left_bytes = max(0, self._size_bytes - self._at)
        wanted = left_bytes if size is None or size < 0 else min(size, left_bytes)
        content = os.pread(self._file.fileno(), wanted, self._first + self._at)
        self._at += len(content)
        return content


class S3Target:
    """The folder of one target: a bucket, and the beginning of the keys in it."""

    def __init__(self, to: str, server: S3Server, *, note: Path, silent_s: float, progress: Callable[[], None]) -> None:
        """`note`: a file for the upload that is under way; who kills this process reads it in another one."""
        folders = allowed_urls.location(to).folders
        self._bucket, self._above = folders[0], folders[1:]
        self._to, self._server, self._note, self._silent_s, self._progress = to, server, note, silent_s, progress
        self._left: list[tuple[str, str]] = []

    def put(self, names: Names, file: IO[bytes]) -> None:
        """Send a file, from its beginning. Raises `MayNot` or `MayPass`."""
        key, size_bytes = self._key(names), os.fstat(file.fileno()).st_size
        with self._translating():
            if size_bytes <= PART_BYTES:
                self._call("put_object", Key=key, Body=_Part(file, 0, size_bytes, self._progress))
            else:
                self._put_in_parts(key, file, size_bytes)

    def find_left(self) -> None:
        """Find the uploads that have come to no end. One that begins later is of a newer try, and stays."""
        with suppress(MayNot, MayPass), self._translating():
            self._left.extend(self._uploads())

    def remove_left(self, names: Names) -> None:
        """Remove the parts that tries before have left of a file. That they cannot be removed is no error."""
        for key, upload in self._left:
            if key == self._key(names):
                self._abort(key, upload)

    def clear(self) -> None:
        """Remove the parts of the upload that was under way when this program was killed."""
        with suppress(FileNotFoundError):
            self._abort(*json.loads(self._note.read_text()))

    def close(self) -> None:
        """Do nothing: the process ends."""

    def _put_in_parts(self, key: str, file: IO[bytes], size_bytes: int) -> None:
        upload = str(self._call("create_multipart_upload", Key=key)["UploadId"])
        try:
            self._note.write_text(json.dumps([key, upload]))
            of_part_bytes = max(PART_BYTES, -(-size_bytes // MOST_PARTS))
            parts: list[dict[str, object]] = []
            for first in range(0, size_bytes, of_part_bytes):
                part = _Part(file, first, min(of_part_bytes, size_bytes - first), self._progress)
                number = len(parts) + 1
                sent = self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=part)
                parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            # A server may put the parts together for long. It sends something meanwhile, or its time-out ends it.
            most_s, every_s = size_bytes / SLOWEST_BYTES_PER_S, self._silent_s / SAYS_WHILE_SILENT
            with while_saying(self._progress, every_s, most_s=most_s):
                whole = {"Parts": parts}
                self._call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload=whole)
        except Exception:
            self._abort(key, upload)
            raise

    def _uploads(self) -> Iterator[tuple[str, str]]:
        """Yield the uploads below the target that have come to no end."""
        marks: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            page = self._call("list_multipart_uploads", Prefix="/".join(self._above), **marks)
            yield from ((one["Key"], one["UploadId"]) for one in page.get("Uploads", ()))
            if not page.get("IsTruncated"):
                return
            marks = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _abort(self, key: str, upload: str) -> None:
        with suppress(MayNot, MayPass), self._translating():
            self._call("abort_multipart_upload", Key=key, UploadId=upload)

    def _call(self, operation: str, **arguments: object) -> Any:
        self._progress()
        return self._server.call(operation, Bucket=self._bucket, **arguments)

    @contextmanager
    def _translating(self) -> Generator[None]:
        try:
            with self._server.translating():
                yield
        except TimeoutError:
            line = f"{allowed_urls.shown(self._to)}: the server took nothing for {self._silent_s:.0f} s"
            raise MayPass(line) from None

    def _key(self, names: Names) -> str:
        try:
            return b"/".join(map(os.fsencode, (*self._above, *names))).decode()
        except UnicodeDecodeError:
            plain = os.fsencode("/".join(names)).decode(errors="replace")
            raise MayNot(f"{plain} has letters that no key of S3 can have: give the file another name") from None
