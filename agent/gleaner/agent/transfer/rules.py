"""The child's rules for servers: their addresses, the credential, and the meaning of refusals."""

import socket
from base64 import b64encode
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer.credentials import Credential, CredentialKind, kind
from gleaner.agent.transfer.process import PermanentFailure, TemporaryFailure, TransferFailure

_BROKEN_OFF = ("ClientPayloadError", "ServerDisconnectedError", "IncompleteReadError", "ResponseStreamingError")
"""Errors of aiohttp and botocore, by name because these libraries are slow to load."""


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of the site for one URL, and the group's credential for it."""

    allowed: Sequence[str]
    control_hosts: tuple[str, ...]
    """The host names of control. The child connects to none of their addresses."""
    silent_s: float
    """The time without data in either direction after which a server counts as hanging."""
    credential: Credential | None = None
    own: Sequence[str] = ()
    """Gleaner's own folders. A listed folder inside or above one of them is refused."""


class RemoteServer:
    """A server, and the rules for reaching it, even by a library that resolves names and follows redirects itself."""

    def __init__(self, url: str, access: Access) -> None:
        self.url, self.access, self.where = url, access, allowed_urls.location(url)
        self._named, self._of_control = allowed_urls.named_addresses(access.allowed), _addresses(access.control_hosts)
        self.resolved = set[str]()
        self._refusal = ""

    def check_address(self, host: str, address: str) -> None:
        """Raise `PermanentFailure` if agents must not connect to this address of the host."""
        self._refuse(allowed_urls.address_refusal(host, address, named=self._named, of_control=self._of_control))

    def connector_options(self, loop: Any) -> dict[str, Any]:
        """Return options that restrict aiohttp to checked addresses of listed hosts."""
        import aiohttp  # slow to load, and not needed for a file

        server = self

        class Resolver(aiohttp.ThreadedResolver):
            async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> Any:
                if not server.is_listed(host, port):
                    server.refuse_host(host, port)
                found = await super().resolve(host, port, family)
                for each in found:
                    server.check_address(host, each["host"])
                    server.resolved.add(each["host"])
                return found

        return {"resolver": Resolver(loop=loop), "socket_factory": self._make_socket}

    def _make_socket(self, address: Any) -> socket.socket:
        """Return a socket for aiohttp. An address that was not resolved from a host name must itself be listed."""
        family, kind_of_socket, protocol, _, place = address
        host = str(ip_address(place[0].partition("%")[0]))
        self.check_address(host, host)
        if place[0] not in self.resolved and host not in self._named:
            self.refuse_host(host, place[1])
        return socket.socket(family, kind_of_socket, protocol)

    def is_listed(self, host: str, port: int) -> bool:
        """Return True if an entry has this host and port, or covers Amazon's S3, whose servers have many names."""
        one = replace(self.where, host=host, port=port, folders=())
        entries = [replace(allowed_urls.location(entry), folders=()) for entry in self.access.allowed]
        at_amazon = self.where.host == allowed_urls.AMAZON and host.endswith(".amazonaws.com")
        return at_amazon or any(one.is_within(entry) for entry in entries)

    def refuse_host(self, host: str, port: int) -> None:
        """Raise `PermanentFailure` for a host to which a redirect leads."""
        self._refuse(f"the server leads to {host}:{port}, which is not below a URL that this site allows")

    def _refuse(self, reason: str) -> None:
        self._refusal = self._refusal or reason  # a library might hide it in another error
        if reason:
            raise PermanentFailure(reason)

    @contextmanager
    def translating(self, missing: type[TransferFailure] = PermanentFailure) -> Generator[None]:
        """Turn a library's errors into a `TransferFailure` of one line, or into `missing` for a missing file."""
        try:
            yield
        except TransferFailure:
            raise
        except Exception as error:
            shown, text = allowed_urls.shown(self.url), " ".join(str(error).split())[:300] or type(error).__name__
            if type(error).__name__ in _BROKEN_OFF:
                text = "the server broke off before the end of the file"
            if self._refusal:
                raise PermanentFailure(self._refusal) from None
            if isinstance(error, TimeoutError):
                line = f"{shown}: the server sent or took nothing for {self.access.silent_s:.0f} s"
                raise TemporaryFailure(line) from None
            if isinstance(error, PermissionError):
                line = f"{shown}: the server refuses it ({text}){self.advice(self.url)}"
                raise PermanentFailure(line) from None
            if isinstance(error, FileNotFoundError):
                raise missing(f"{shown}: there is no such file ({text})") from None
            is_url = isinstance(error, ValueError) and not isinstance(error, OSError)
            raise (PermanentFailure if is_url else TemporaryFailure)(f"{shown}: {text}") from None

    def sign_in(self, url: str) -> dict[str, str]:
        """Return the header with the credential, or no header after a redirect to another place."""
        credential = self.access.credential
        if credential is None or not credential.is_for(url):
            return {}
        if kind(credential.url, credential.value) is CredentialKind.TOKEN:
            return {"Authorization": f"Bearer {credential.value}"}
        return {"Authorization": f"Basic {b64encode(credential.value.encode()).decode()}"}

    def advice(self, url: str) -> str:
        """Return advice for a group to which a server denies access, beginning with a colon."""
        credential = self.access.credential
        if credential is None:
            return ": the group has no secret for it (`glean secret set`)"
        if not credential.is_for(url):
            return f": the group's secret is only for what is below {credential.url}"
        return f": it does not take the group's secret for {credential.url}"


def _addresses(hosts: Iterable[str]) -> frozenset[str]:
    found = set[str]()
    for host in hosts:
        with suppress(OSError):  # then the agent cannot reach that host either
            found.update(str(address[4][0]) for address in socket.getaddrinfo(host, None))
    return frozenset(found)
