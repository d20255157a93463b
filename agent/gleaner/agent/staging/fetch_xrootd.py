"""Files of XRootD servers (`root://host//path`, and `roots` over TLS), read with XRootD's own library.

The library follows redirects by itself, and fsspec's file system for it does not say to where. So the library is called
here directly, and follows none: each place is checked before it is asked.
"""

import math
import os
import re
import socket
import ssl
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from gleaner.agent.common import allowed_urls
from gleaner.agent.staging import servers
from gleaner.agent.staging.child_process import CHUNK_BYTES, MayNot, MayPass
from gleaner.agent.staging.credentials import Credential

_TLS = "roots"
_GRID_AUTHORITIES = "/etc/grid-security/certificates"
_OWN_SETTINGS = ("XRD_", "XrdSec", "X509_USER_", "BEARER_TOKEN")
"""The beginnings of environment variables with this account's own settings and credentials."""

# Of the library (XrdClStatus.hh) and of the protocol (XProtocol.hh); its Python part does not name them.
_BROKEN, _SILENT, _LOGIN_REFUSED, _EXPIRED, _SERVER_ERROR, _REDIRECTED = 102, 103, 204, 206, 400, 401
_NOT_ALLOWED, _NOT_FOUND, _NO_FILE, _FOLDER, _NOT_KNOWN = 3010, 3011, 3015, 3016, 3030

_BROKE_OFF = "the server broke off before the end of the file"


@dataclass(frozen=True, slots=True)
class XrootdRules:
    """The rules for a file of an XRootD server, and for all servers to which that one leads."""

    allowed: Sequence[str]
    control_host: str
    silent_s: float
    credential: Credential | None


def read_xrootd(url: str, rules: XrootdRules) -> Iterator[bytes]:
    """Yield the content of a file. Raises `MayNot`, `MayPass`, `TimeoutError` or `OSError`.

    A bearer token is shown to the servers of its URL alone, and only over TLS: its URL begins with `roots`.
    """
    shown = allowed_urls.shown(url)
    if "?" in unquote(url) or not allowed_urls.location(url).folders:
        raise MayNot(f"{shown}: name a file, without a ?")
    credential = rules.credential if rules.credential is not None and rules.credential.is_for(url) else None
    for name in [name for name in os.environ if name.startswith(_OWN_SETTINGS)]:
        del os.environ[name]
    # It stays within this process: others see the environment with which a process was started.
    os.environ |= library_settings(rules.silent_s, "" if credential is None else credential.value)
    os.environ |= _authorities(os.environ)
    from XRootD import client  # pyright: ignore[reportMissingTypeStubs]
    from XRootD.client.flags import OpenFlags  # pyright: ignore[reportMissingTypeStubs]

    library: Any = client
    flags: Any = OpenFlags
    guard = servers.AddressGuard(rules.allowed, rules.control_host)
    limit_s = _seconds(rules.silent_s)
    place = url
    for _ in range(1 + servers.MOST_REDIRECTS):
        where = allowed_urls.location(place)
        for found in socket.getaddrinfo(where.host.strip("[]"), where.port, type=socket.SOCK_STREAM):
            guard.check(where.host, str(found[4][0]))
        file = library.File()
        for name in ("FollowRedirects", "ReadRecovery"):  # the second would read on at another server
            if not file.set_property(name, "false"):
                raise MayNot(f"{shown}: this node's library for XRootD is too old")
        status, _ = file.open(library_url(place), flags.READ, 0, limit_s)
        # The library has resolved the name once more: only where it has really connected counts.
        for address in _peers():
            guard.check(where.host, address)
        if status.code == _REDIRECTED:
            place = redirect_target(place, str(status.message))
            if reason := allowed_urls.refusal(place, rules.allowed):
                raise MayNot(f"{shown} is redirected, and {reason}")
            if credential is not None and not credential.is_for(place):
                raise MayNot(f"{shown} is redirected to {allowed_urls.shown(place)}, and the group's secret is only"
                             f" for what is below {credential.url}")  # fmt: skip
            continue
        if not status.ok:
            _raise(place, status, rules)
        yield from _blocks(file, place, rules)
        return
    raise servers.too_many_redirects(url)


def library_settings(silent_s: float, token: str) -> dict[str, str]:
    """Return the environment by which the library is told its limits, and how it may say who asks.

    Without a token it names this account (`unix`) or this host, as XRootD's servers ask for it. It never uses the
    account's certificates, tickets or token files.
    """
    limit_s = str(_seconds(silent_s))
    settings = {
        "XRD_CONNECTIONRETRY": "1",
        "XRD_CONNECTIONWINDOW": limit_s,
        "XRD_REQUESTTIMEOUT": limit_s,
        "XRD_STREAMTIMEOUT": limit_s,
        "XRD_TIMEOUTRESOLUTION": "1",
        "XRD_METALINKPROCESSING": "0",  # else a file's name could make the library follow what the file lists
        "XrdSecPROTOCOL": "ztn" if token else "unix,host",
    }
    return settings | {"BEARER_TOKEN": token} if token else settings


def _seconds(silent_s: float) -> int:
    return max(1, math.ceil(silent_s))


def _authorities(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the authorities that vouch for servers: those of the grid, where a node has them."""
    system = ssl.get_default_verify_paths()
    grid = _GRID_AUTHORITIES if Path(_GRID_AUTHORITIES).is_dir() else system.capath
    found = {"X509_CERT_DIR": environment.get("X509_CERT_DIR") or grid, "X509_CERT_FILE": system.cafile}
    return {name: path for name, path in found.items() if path}


def library_url(url: str) -> str:
    """Return a URL as the library takes it: the path that was checked, without escapes. Raises `MayNot`.

    >>> library_url("root://host/pub/a%20b?cap=1")
    'root://host:1094//pub/a b?cap=1'
    """
    where = allowed_urls.location(url)
    path = "/".join(where.folders)
    if "?" in path or not path.isprintable():
        raise MayNot(f"{allowed_urls.shown(url)}: the name has a letter that no file there has")
    _, mark, query = url.partition("?")
    return f"{where.scheme}://{where.host}:{where.port}//{path}{mark}{query}"


def redirect_target(url: str, message: str) -> str:
    """Return the URL to which a server leads, from the library's message. Without a path of its own it has the old one.

    What came over TLS goes on over TLS. The library's own parameters go: with them a server could steer it.

    >>> redirect_target("roots://host//a", "[ERROR] Unhandled redirect: root://[::192.0.2.1]:1095/?cap=1&xrd.k=v&")
    'roots://192.0.2.1:1095//a?cap=1'
    """
    head, _, query = message.partition("redirect: ")[2].strip().partition("?")
    scheme, _, rest = head.partition("://")
    netloc, _, path = rest.partition("/")
    netloc = re.sub(r"^\[::(?:ffff:)?([0-9]+\.[0-9.]+)\]", r"\1", netloc)
    path = quote(path.strip("/")) or quote("/".join(allowed_urls.location(url).folders))
    kept = [each for each in query.split("&") if each and not each.startswith(("xrd.", "xrdcl."))]
    target = f"{scheme}://{netloc}//{path}" + ("?" if kept else "") + "&".join(kept)
    if scheme not in {"root", _TLS}:
        raise MayNot(f"{allowed_urls.shown(url)} is redirected to {allowed_urls.shown(target)}, which is not XRootD's")
    return _TLS + target.removeprefix("root") if scheme == "root" and url.startswith(f"{_TLS}:") else target


def _peers() -> Iterator[str]:
    """Yield the addresses to which this process is connected by TCP. UDP asks the servers of names."""
    for name in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not stat.S_ISSOCK(name.stat().st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name.name))) as one:
                if one.family in {socket.AF_INET, socket.AF_INET6} and one.type == socket.SOCK_STREAM:
                    yield str(one.getpeername()[0])


def _blocks(file: Any, place: str, rules: XrootdRules) -> Iterator[bytes]:
    """Yield the content of an open file: as many bytes as the server says at first."""
    limit_s = _seconds(rules.silent_s)
    status, facts = file.stat(timeout=limit_s)
    if not status.ok:
        _raise(place, status, rules)
    size_bytes, offset = int(facts.size), 0
    while offset < size_bytes:
        status, chunk = file.read(offset, min(CHUNK_BYTES, size_bytes - offset), limit_s)
        if status.code in {_SILENT, _EXPIRED, _SERVER_ERROR}:
            _raise(place, status, rules)
        if not status.ok or not chunk:
            raise MayPass(f"{allowed_urls.shown(place)}: {_BROKE_OFF}")
        offset += len(chunk)
        yield chunk


def _raise(place: str, status: Any, rules: XrootdRules) -> NoReturn:
    shown = allowed_urls.shown(place)
    if status.code in {_SILENT, _EXPIRED}:
        raise TimeoutError
    if status.code == _BROKEN:
        raise MayPass(f"{shown}: {_BROKE_OFF}")
    if status.code == _REDIRECTED:  # not at the opening: what it says may have a server's own token
        raise MayPass(f"{shown}: the server leads elsewhere in the middle of the file")
    # The library's words begin with the class of the error and the protocol's number.
    said = " ".join(re.sub(r"^\[\w+\] (Server responded with an error: )?", "", str(status.message)).split())[:300]
    if status.code == _LOGIN_REFUSED or status.errno in {_NOT_ALLOWED, _NOT_KNOWN}:
        advice = servers.advice(place, rules.credential) if place.startswith(f"{_TLS}:") else ""
        raise MayNot(f"{shown}: the server refuses it ({said}){advice}")
    if status.errno == _NOT_FOUND:
        raise MayNot(f"{shown}: the server has no such file")
    if status.errno in {_NO_FILE, _FOLDER}:
        raise MayNot(f"{shown} is no file: name each file of a folder")
    raise MayPass(f"{shown}: {said}")
