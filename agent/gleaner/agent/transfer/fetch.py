"""Fetch a URL into a file on the node, within limits of size and disk space."""

import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.common import allowed_urls
from gleaner.agent.common.quantities import size
from gleaner.agent.transfer.process import NodeFull, PermanentFailure
from gleaner.agent.transfer.remotes import open_remote
from gleaner.agent.transfer.rules import Access


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A URL, and the admin's rules for it."""

    url: str
    access: Access
    into: Path
    """The path of a new file."""
    sha256: str | None
    largest_bytes: int
    reserve_bytes: int
    """The space that must stay free on the node's disk."""

    def serve(self, report: Callable[[], None]) -> list[int]:
        """Fetch the URL into the file, in the child, and return the file's size. Raises `TransferFailure`."""
        hashed, size_bytes, shown = hashlib.sha256(), 0, allowed_urls.shown(self.url)
        source = open_remote(self.url, self.access, allowed_urls.FETCH)
        with self.into.open("xb") as file, ThreadPoolExecutor(1) as writing:

            def keep(chunk: bytes) -> None:
                file.write(chunk)
                hashed.update(chunk)

            kept = writing.submit(keep, b"")
            for chunk in source.read(has_digest=self.sha256 is not None):
                size_bytes += len(chunk)
                if size_bytes > self.largest_bytes:
                    limit = f"{size(self.largest_bytes)} ([inputs] largest_gib)"
                    raise PermanentFailure(f"{shown} is larger than {limit}")
                if len(chunk) > shutil.disk_usage(self.into.parent).free - self.reserve_bytes:
                    raise NodeFull(f"this node has no room for {shown}")
                kept.result()
                kept = writing.submit(keep, chunk)  # while the next one arrives
                report()
            kept.result()
        found, wanted = hashed.hexdigest(), (self.sha256 or "").removeprefix("sha256:")
        if wanted and found != wanted:
            raise PermanentFailure(f"{shown} has the sha256 {found} ({size_bytes} bytes), and not {wanted}")
        return [size_bytes]
