"""Decide which URLs an admin allows, and to which addresses an agent never connects. Pure.

An entry of the list is a URL. It allows all URLs that have the same scheme, host and port, and a path below its own.
`https://*.example.org/` allows all hosts of a domain. An address is allowed by an entry whose host is this address.

In an S3 URL, the first part is the server if it has a dot or a port, as in `s3://s3.example.org/bucket/key`. Otherwise
it is a bucket at Amazon, as in `s3://bucket/key`. `roots` is `root`, XRootD's protocol, over TLS.
"""

import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

SCHEMES = {"https": 443, "s3": 443, "root": 1094, "roots": 1094, "file": None}
"""The schemes of URLs, and the default port of each."""
AMAZON = "s3.amazonaws.com"
TARGET_SCHEMES = ("https", "s3", "root", "roots", "file")
"""The schemes of targets to which results are delivered."""
LONGEST_URL = 2000
_PLAIN = re.compile(r"[!-~]+")
_NETLOC = re.compile(r"(?P<host>(\*\.)?[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Location:
    """The parts of a URL that decide whether it is allowed."""

    scheme: str
    host: str
    """In lower case, and empty for a file."""
    port: int | None
    folders: tuple[str, ...]
    """The names in its path, with all escapes resolved."""

    def is_within(self, other: "Location") -> bool:
        """Return True if an entry with the location `other` allows this location."""
        domain = other.host.removeprefix("*")
        same_host = self.host.endswith(domain) if domain != other.host else self.host == other.host
        same_port = (self.scheme, self.port) == (other.scheme, other.port)
        return same_host and same_port and self.folders[: len(other.folders)] == other.folders


def location(url: str) -> Location:
    """Return the location of a URL or of an entry in the list. Raises `ValueError` with a description of the mistake.

    >>> location("https://data.example.org/pub/a%2Fb?version=2")
    Location(scheme='https', host='data.example.org', port=443, folders=('pub', 'a', 'b'))
    >>> location("s3://bucket/a") == location("s3://s3.amazonaws.com/bucket/a")
    True
    >>> location("root://host//pub/a") == location("root://host:1094/pub/a")
    True
    """
    if not _PLAIN.fullmatch(url) or "\\" in url or len(url) > LONGEST_URL:
        raise ValueError(f"a URL has at most {LONGEST_URL} plain letters, digits and signs: escape others, as in %20")
    scheme, colon, _ = url.partition("://")
    scheme = scheme.lower()
    if not colon or scheme not in SCHEMES:
        raise ValueError(f"must begin with {' or '.join(f'{each}://' for each in SCHEMES)}, found {shown(url)}")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("a URL with a user's name or password in it would be shown to others: leave it out")
    if parts.fragment:
        raise ValueError("a URL of a file has no # in it: write %23")
    netloc, path = parts.netloc, parts.path
    if scheme == "s3" and re.fullmatch(r"[A-Za-z0-9_-]+", netloc):
        netloc, path = AMAZON, f"/{netloc}{path}"
    host, port = _host_and_port(scheme, netloc)
    names = tuple(name for name in unquote(path).split("/") if name)
    if any(name in {".", ".."} for name in names):
        raise ValueError("the path of a URL must not lead upward: write it without . and ..")
    return Location(scheme, host, port, names)


def _host_and_port(scheme: str, netloc: str) -> tuple[str, int | None]:
    if scheme == "file":
        if netloc:
            raise ValueError("the URL of a file has three slashes: file:///folder/name")
        return "", None
    found = _NETLOC.fullmatch(netloc.lower())
    if found is None:
        raise ValueError(f"must be like {scheme}://host/name or {scheme}://host:port/name")
    return found["host"], int(found["port"]) if found["port"] else SCHEMES[scheme]


def shown(url: str) -> str:
    """Return a URL for messages, without the parts that might be secret.

    >>> shown("https://host/a?signature=0123")
    'https://host/a?…'
    >>> shown("https://me:secret@host/a")
    'https://…@host/a'
    """
    path, mark, _ = re.sub("//[^/?]*@", "//…@", url).partition("?")
    plain = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in path[:200])
    return plain + mark + ("…" if mark else "")


class UrlUse(NamedTuple):
    """The words in a refusal that depend on the use of a URL."""

    done: str
    setting: str


FETCH = UrlUse("be fetched", "urls in [inputs]")
DELIVER = UrlUse("be a target", "urls in [outputs]")


def refusal(url: str, allowed: Sequence[str], use: UrlUse = FETCH) -> str:
    """Return one line that explains why this URL must not be used in this way, or "" if it is allowed.

    >>> refusal("https://data.example.org/pub/a", ["https://data.example.org/pub/"])
    ''
    >>> refusal("https://data.example.org/public", ["https://data.example.org/pub/"])
    'https://data.example.org/public is not below a URL that this site allows: an admin may add it to urls in [inputs]'
    """
    may = f"an admin may add it to {use.setting}"
    try:
        wanted = location(url)
    except ValueError as error:
        return f"{shown(url)}: {error}"
    if "*" in wanted.host:
        return f"{shown(url)}: a host has no * in it"
    if not allowed:
        return f"{shown(url)} may not {use.done}, as this site allows no URLs: {may}"
    if any(wanted.is_within(location(entry)) for entry in allowed):
        return ""
    return f"{shown(url)} is not below a URL that this site allows: {may}"


def named_addresses(allowed: Sequence[str]) -> frozenset[str]:
    """Return the addresses that occur as hosts in the list.

    >>> sorted(named_addresses(["https://[::1]:8443/", "https://host/", "https://127.0.0.1/"]))
    ['127.0.0.1', '::1']
    """
    hosts = (location(entry).host.strip("[]") for entry in allowed)
    return frozenset(str(address) for host in hosts if (address := _address(host)) is not None)


def address_refusal(host: str, address: str, *, named: Collection[str], of_control: Collection[str]) -> str:
    """Return one line that explains why an agent does not connect to this address of a host, or "" if it does.

    >>> address_refusal("a.org", "::ffff:127.0.0.1", named=(), of_control=())
    'a.org has the address 127.0.0.1, which is of the node itself: only a list that names it allows it'
    >>> address_refusal("a.org", "127.0.0.1", named=["127.0.0.1"], of_control=())
    ''
    """
    found = _address(address)
    if found is None:
        return f"{host} has the address {address[:50]}, which nobody can read"
    if str(found) in named:
        return ""
    if str(found) in of_control:
        whose = "control's"
    elif found.is_loopback or found.is_unspecified:
        whose = "of the node itself"
    elif found.is_link_local:
        whose = "link-local"
    elif found.is_multicast:
        whose = "of many hosts"
    else:
        return ""
    return f"{host} has the address {found}, which is {whose}: only a list that names it allows it"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address, or None if the text is not one. An IPv4 address in IPv6 form is converted."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
