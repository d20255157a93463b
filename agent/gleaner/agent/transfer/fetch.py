"""Fetch a URL into a file of the node, within limits of size and time. The content passes through in blocks."""

import hashlib
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.agent.common import allowed_urls
from gleaner.agent.common.clock import Clock
from gleaner.agent.common.quantities import in_words, size
from gleaner.agent.transfer import process
from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.process import Limits, PermanentFailure
from gleaner.agent.transfer.remotes import open_remote
from gleaner.agent.transfer.rules import Access

if TYPE_CHECKING:
    from gleaner.agent.messages import FetchRules  # slow to load, and not needed in the child


class NodeFull(Exception):
    """The node's disk has no room for it."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole file that was fetched."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A URL, and what the admin says about it."""

    url: str
    access: Access
    has_digest: bool
    """True if the content's digest is known: then a server need not say how long the content is."""

    def serve(self) -> Iterator[bytes]:
        """In the child: yield the content. Raises `TransferFailure`."""
        yield from open_remote(self.url, self.access, allowed_urls.FETCH).read(has_digest=self.has_digest)


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetches URLs for one agent. Safe for threads."""

    control_hosts: tuple[str, ...]
    reserve_bytes: int
    """So much of the node's disk stays free."""
    clock: Clock
    own: Sequence[str] = ()
    """Gleaner's own folders, from which nothing is fetched."""

    def __call__(
        self,
        url: str,
        into: Path,
        *,
        rules: "FetchRules",
        sha256: str | None,
        stop: threading.Event,
        credential: Credential | None = None,
    ) -> Fetched:
        """Fetch the URL into a new file. Raises `TransferFailure`, `TransferStopped`, `NodeFull`, `OSError`. Blocks."""
        access = Access(rules.allowed, self.control_hosts, rules.silent_s, credential, self.own)
        request, shown = FetchRequest(url, access, has_digest=sha256 is not None), allowed_urls.shown(url)
        limits = Limits(
            rules.total_s, f"{shown} was not fetched within {in_words(rules.total_s)} ([inputs] fetch_s)",
            rules.silent_s, f"{shown}: the server sent or took nothing for {rules.silent_s:.0f} s",
        )  # fmt: skip
        hashed, size_bytes = hashlib.sha256(), 0
        with into.open("xb") as file, closing(process.run(request, limits, stop=stop, clock=self.clock)) as chunks:
            for chunk in chunks:
                size_bytes += len(chunk)
                if size_bytes > rules.largest_bytes:
                    limit = f"{size(rules.largest_bytes)} ([inputs] largest_gib)"
                    raise PermanentFailure(f"{shown} is larger than {limit}")
                if len(chunk) > shutil.disk_usage(into.parent).free - self.reserve_bytes:
                    raise NodeFull(f"this node has no room for {shown}")
                file.write(chunk)
                hashed.update(chunk)
        found = f"sha256:{hashed.hexdigest()}"
        if sha256 is not None and found != sha256:
            has = f"{found.removeprefix('sha256:')} ({size_bytes} bytes), and not {sha256.removeprefix('sha256:')}"
            raise PermanentFailure(f"{shown} has the sha256 {has}")
        return Fetched(size_bytes, found)
