"""The classes that read and write files in other places, by the scheme of a URL."""

import importlib.util
from collections.abc import Callable

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer.folders import ListedFolder
from gleaner.agent.transfer.https import Https
from gleaner.agent.transfer.process import PermanentFailure
from gleaner.agent.transfer.rules import Access
from gleaner.agent.transfer.s3 import S3
from gleaner.agent.transfer.xrootd import Xrootd

Remote = Https | S3 | Xrootd | ListedFolder
"""A file to read, or a folder that receives files. The methods raise `TransferFailure` or `OSError`."""
_KINDS: dict[str, Callable[[str, Access], Remote]] = {
    "https": Https, "s3": S3, "root": Xrootd, "roots": Xrootd, "file": ListedFolder,
}  # fmt: skip
_LIBRARIES = {"https": "aiohttp", "s3": "s3fs", "root": "fsspec_xrootd", "roots": "fsspec_xrootd"}


def schemes() -> tuple[str, ...]:
    """Return the schemes of the URLs that agents here can read from and deliver to with the installed libraries."""
    return tuple(each for each in _KINDS if each == "file" or importlib.util.find_spec(_LIBRARIES[each]) is not None)


def open_remote(url: str, access: Access, use: allowed_urls.UrlUse) -> Remote:
    """Return the place of a URL. Raises `PermanentFailure` if the site does not allow it for this use."""
    if reason := allowed_urls.refusal(url, access.allowed, use):
        raise PermanentFailure(reason)
    return _KINDS[allowed_urls.location(url).scheme](url, access)
