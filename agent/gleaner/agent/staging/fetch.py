"""Fetch a URL into a file of the node, within limits of size and time. The content passes through in blocks."""

import hashlib
import importlib.util
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.common import allowed_urls
from gleaner.agent.common.clock import Clock
from gleaner.agent.common.quantities import in_words, size
from gleaner.agent.messages import FetchRules
from gleaner.agent.staging import fetch_child
from gleaner.agent.staging.child_process import (
    ChildSilent,
    ChildStopped,
    ChildTooSlow,
    MayNot,
    MayPass,
    answer,
    check_end,
    child_process,
)
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.fetch_child import FetchRequest


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
    own: Sequence[str] = ()
    """Gleaner's own folders, from which nothing is fetched."""

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
        has_digest = sha256 is not None
        request = FetchRequest(
            url, rules.allowed, self.control_host, rules.silent_s, has_digest, credential, self.own
        )
        hashed, size_bytes = hashlib.sha256(), 0
        with into.open("xb") as file, child_process(fetch_child) as child:
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
        """Yield what the child writes."""
        where, limits = allowed_urls.shown(request.url), {"total_s": rules.total_s, "silent_s": rules.silent_s}
        try:
            yield from answer(child, request.to_json(), **limits, stop=stop, clock=self.clock)
            check_end(child, where)
        except ChildStopped:
            raise FetchStopped from None
        except ChildTooSlow:
            limit = f"{in_words(rules.total_s)} ([inputs] fetch_s)"
            raise FetchFailed(f"{where} was not fetched within {limit}", may_pass=True) from None
        except ChildSilent:
            line = f"{where}: the server sent nothing for {rules.silent_s:.0f} s"
            raise FetchFailed(line, may_pass=True) from None
        except (MayNot, MayPass) as error:
            raise FetchFailed(str(error), may_pass=isinstance(error, MayPass)) from None


def schemes() -> tuple[str, ...]:
    """Return the schemes of the URLs that can be fetched here: those whose libraries are installed."""
    return tuple(
        scheme
        for scheme, modules in fetch_child.NEEDS.items()
        if all(importlib.util.find_spec(module) is not None for module in modules)
    )
