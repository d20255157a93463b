"""Fetch a URL into a file of the node, within limits of size and time. The content passes through in blocks."""

import hashlib
import importlib.util
import os
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from gleaner.agent.common.clock import Clock
from gleaner.agent.common.quantities import in_words, size
from gleaner.agent.messages import FetchRules
from gleaner.agent.staging import allowed_urls, fetch_child
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.fetch_child import FetchRequest

LOOK_EVERY_S = 0.25
"""A stop is seen within this time."""
ENDS_WITHIN_S = 5.0
"""A killed process is gone within this time, unless its storage hangs: then nobody waits for it."""
LONGEST_LINE = 2000


class FetchFailed(Exception):
    """The URL was not fetched; one line. `may_pass`: another try may succeed."""

    def __init__(self, detail: str, *, may_pass: bool) -> None:
        super().__init__(detail)
        self.may_pass = may_pass


class FetchStopped(Exception):
    """The agent has no more time for it."""


class NodeFull(Exception):
    """The node's disk has no room for it."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A whole file that was fetched."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetches URLs for one agent. Safe for threads."""

    control_host: str
    reserve_bytes: int
    """So much of the node's disk stays free."""
    clock: Clock

    def __call__(
        self,
        url: str,
        into: Path,
        *,
        rules: FetchRules,
        sha256: str | None,
        stop: threading.Event,
        credential: Credential | None = None,
    ) -> Fetched:
        """Fetch the URL into a new file. Raises `FetchFailed`, `FetchStopped`, `NodeFull` or `OSError`. Blocks."""
        request = FetchRequest(url, rules.allowed, self.control_host, rules.silent_s, sha256 is not None, credential)
        hashed, size_bytes = hashlib.sha256(), 0
        with into.open("xb") as file, _child() as child:
            for chunk in self._chunks(child, request, rules, stop):
                size_bytes += len(chunk)
                if size_bytes > rules.largest_bytes:
                    limit = f"{size(rules.largest_bytes)} ([inputs] largest_gib)"
                    raise FetchFailed(f"{allowed_urls.shown(url)} is larger than {limit}", may_pass=False)
                if len(chunk) > shutil.disk_usage(into.parent).free - self.reserve_bytes:
                    raise NodeFull(f"this node has no room for {allowed_urls.shown(url)}")
                file.write(chunk)
                hashed.update(chunk)
        found = f"sha256:{hashed.hexdigest()}"
        if sha256 is not None and found != sha256:
            has = f"{found.removeprefix('sha256:')} ({size_bytes} bytes), and not {sha256.removeprefix('sha256:')}"
            raise FetchFailed(f"{allowed_urls.shown(url)} has the sha256 {has}", may_pass=False)
        return Fetched(size_bytes, found)

    def _chunks(
        self, child: "subprocess.Popen[bytes]", request: FetchRequest, rules: FetchRules, stop: threading.Event
    ) -> Iterator[bytes]:
        """Yield what the child writes. Its silence is limited here, too: a library may forget its own limits."""
        incoming, where = _send(child, request), allowed_urls.shown(request.url)
        began_s = heard_s = self.clock.monotonic_s()
        while True:
            if stop.is_set():
                raise FetchStopped
            is_ready = select.select([incoming], [], [], LOOK_EVERY_S)[0]
            now_s = self.clock.monotonic_s()
            if now_s - began_s > rules.total_s:
                limit = f"{in_words(rules.total_s)} ([inputs] fetch_s)"
                raise FetchFailed(f"{where} was not fetched within {limit}", may_pass=True)
            if not is_ready and now_s - heard_s > rules.silent_s + LOOK_EVERY_S:
                raise FetchFailed(f"{where}: the server sent nothing for {rules.silent_s:.0f} s", may_pass=True)
            if not is_ready:
                continue
            heard_s = now_s
            chunk = os.read(incoming.fileno(), fetch_child.CHUNK_BYTES)
            if not chunk:
                break
            yield chunk
        _check_end(child, where)


def schemes() -> tuple[str, ...]:
    """Return the schemes of the URLs that can be fetched here: those whose libraries are installed."""
    return tuple(
        scheme
        for scheme, modules in fetch_child.NEEDS.items()
        if all(importlib.util.find_spec(module) is not None for module in modules)
    )


def _send(child: "subprocess.Popen[bytes]", request: FetchRequest) -> IO[bytes]:
    """Give the child its request, and return what it writes."""
    with suppress(BrokenPipeError), cast("IO[bytes]", child.stdin) as stdin:
        stdin.write(request.to_json())
    return cast("IO[bytes]", child.stdout)


def _check_end(child: "subprocess.Popen[bytes]", where: str) -> None:
    """Raise `FetchFailed` unless the child, whose output has ended, says that the content was whole."""
    line = " ".join(cast("IO[bytes]", child.stderr).read(LONGEST_LINE).decode(errors="replace").split())
    try:
        status = child.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        status = -1
    if status == fetch_child.FINAL:
        raise FetchFailed(line, may_pass=False)
    if status:
        raise FetchFailed(line or f"{where}: the program that fetches it broke ({status})", may_pass=True)


@contextmanager
def _child() -> Generator["subprocess.Popen[bytes]"]:
    pipe = subprocess.PIPE
    child = subprocess.Popen(
        [sys.executable, "-m", fetch_child.__name__], stdin=pipe, stdout=pipe, stderr=pipe, cwd="/"
    )
    try:
        yield child
    finally:
        child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(ENDS_WITHIN_S)
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
