"""The places at which files are, by the scheme of a URL."""

import importlib.util
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Protocol

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer.folders import Folder
from gleaner.agent.transfer.https import Https
from gleaner.agent.transfer.process import PermanentFailure, TemporaryFailure
from gleaner.agent.transfer.rules import Access, one_line
from gleaner.agent.transfer.s3 import S3
from gleaner.agent.transfer.stage import Names, StagedFile
from gleaner.agent.transfer.xrootd import Xrootd


class Remote(Protocol):
    """A file to read, or a folder that takes files. All raise `TransferFailed`, `TimeoutError` or `OSError`."""

    def read(self, *, has_digest: bool) -> Iterator[bytes]:
        """Yield the content of the file. With a digest, its end need not be certain."""
        ...

    def put(self, names: Names, file: StagedFile) -> None:
        """Send a file from its first byte to its last."""
        ...


_KINDS: dict[str, Callable[[str, Access], Remote]] = {
    "https": Https, "s3": S3, "root": Xrootd, "roots": Xrootd, "file": Folder,
}  # fmt: skip
_LIBRARIES = {"https": "aiohttp", "s3": "s3fs", "root": "fsspec_xrootd", "roots": "fsspec_xrootd"}


def schemes() -> tuple[str, ...]:
    """Return the schemes of the URLs that agents here can read from and deliver to: their libraries are installed."""
    return tuple(each for each in _KINDS if each == "file" or importlib.util.find_spec(_LIBRARIES[each]) is not None)


@contextmanager
def open_remote(url: str, access: Access, use: allowed_urls.Use) -> Generator[Remote]:
    """Yield the place of a URL, if the site allows it for this use. Raises `TransferFailed` for what it raises."""
    if reason := allowed_urls.refusal(url, access.allowed, use):
        raise PermanentFailure(reason)
    shown = allowed_urls.shown(url)
    verb = "sent" if use is allowed_urls.FETCH else "took"
    try:
        yield _KINDS[allowed_urls.location(url).scheme](url, access)
    except TimeoutError:
        raise TemporaryFailure(f"{shown}: the server {verb} nothing for {access.silent_s:.0f} s") from None
    except OSError as error:
        raise TemporaryFailure(f"{shown}: {error.strerror or one_line(error)}") from None
