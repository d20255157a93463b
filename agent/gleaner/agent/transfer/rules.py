"""The rules by which the child reaches servers: the addresses, the credential, and what a server's refusal means."""

import os
import socket
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, NoReturn, cast

from gleaner.agent.common import allowed_urls
from gleaner.agent.transfer.credentials import Credential, CredentialKind, kind
from gleaner.agent.transfer.process import PermanentFailure, TemporaryFailure

_ASK_LATER = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.LOCKED, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of the site for one URL, and the group's credential for it."""

    allowed: Sequence[str]
    control_host: str
    """The host of control's address. The child connects to none of its addresses."""
    silent_s: float
    """A server that sends or takes nothing for so long hangs."""
    credential: Credential | None = None
    own: Sequence[str] = ()
    """Gleaner's own folders: a listed folder inside or above one of them is refused."""


class AddressGuard:
    """Refuses the places to which an agent does not connect. A host that is an address itself is on the list."""

    def __init__(self, access: Access) -> None:
        self._entries = [allowed_urls.location(entry) for entry in access.allowed]
        self._named = allowed_urls.named_addresses(access.allowed)
        self._of_control = _addresses(access.control_host)
        self.resolved = set[str]()

    def check(self, host: str, address: str) -> None:
        """Raise `PermanentFailure` if an agent does not connect to this address of the host."""
        if reason := allowed_urls.address_refusal(host, address, named=self._named, of_control=self._of_control):
            raise PermanentFailure(reason)

    def check_listed(self, host: str, port: int) -> None:
        """Raise `PermanentFailure` if no entry has this host and port: a library may follow redirects by itself."""
        for entry in self._entries:
            at_amazon = entry.host == allowed_urls.AMAZON and host.endswith(".amazonaws.com")
            domain = entry.host.removeprefix("*")
            same_host = host.endswith(domain) if domain != entry.host else host == entry.host
            if entry.port == port and (same_host or at_amazon):
                return
        raise self._not_listed(host, port)

    def connector_options(self, loop: Any) -> dict[str, Any]:
        """Return the options by which aiohttp connects to checked addresses only."""
        import aiohttp  # slow to load, and not needed for a file

        guard = self

        class Resolver(aiohttp.ThreadedResolver):
            async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> Any:
                guard.check_listed(host, port)
                found = await super().resolve(host, port, family)
                for each in found:
                    guard.check(host, each["host"])
                    guard.resolved.add(each["host"])
                return found

        return {"resolver": Resolver(loop=loop), "socket_factory": self._make_socket}

    def _make_socket(self, address: Any) -> socket.socket:
        """Return a socket for aiohttp. A host that is an address itself was not resolved, so the list must name it."""
        family, kind_of_socket, protocol, _, place = address
        host = str(ip_address(place[0].partition("%")[0]))
        self.check(host, host)
        if place[0] not in self.resolved and host not in self._named:
            raise self._not_listed(host, place[1])
        return socket.socket(family, kind_of_socket, protocol)

    @staticmethod
    def _not_listed(host: str, port: int) -> PermanentFailure:
        return PermanentFailure(f"the server leads to {host}:{port}, which is not below a URL that this site allows")


def _addresses(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None)) if host else frozenset()
    except OSError:
        return frozenset()  # the agent does not reach it either


def load_fsspec() -> Any:
    """Return fsspec's module of loops. It uses none of this account's settings, which could add a credential."""
    for name in [name for name in os.environ if name.startswith(("FSSPEC_", "AWS_"))]:
        del os.environ[name]
    os.environ["FSSPEC_CONFIG_DIR"] = os.devnull
    from fsspec import asyn  # pyright: ignore[reportMissingTypeStubs]
    from fsspec.config import conf  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    cast("dict[str, Any]", conf).clear()
    return asyn


def one_line(error: Exception) -> str:
    """Return an error of a library in one line, or its name if it has no text."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def sign_in(url: str, credential: Credential | None) -> dict[str, str]:
    """Return the header with the credential. After a redirect to another place the server gets none."""
    if credential is None or not credential.is_for(url):
        return {}
    if kind(credential.url, credential.value) is CredentialKind.TOKEN:
        return {"Authorization": f"Bearer {credential.value}"}
    return {"Authorization": f"Basic {b64encode(credential.value.encode()).decode()}"}


def raise_status(url: str, status: int, credential: Credential | None) -> NoReturn:
    """Raise `TemporaryFailure` or `PermanentFailure` for a server's answer that is no success."""
    wants_to_know = status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    line = f"{allowed_urls.shown(url)}: the server answers {status}{advice(url, credential) if wants_to_know else ''}"
    may_pass = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _ASK_LATER
    raise (TemporaryFailure if may_pass else PermanentFailure)(line)


def advice(url: str, credential: Credential | None) -> str:
    """Return what the group can do about a server that does not let it in, after a colon."""
    if credential is None:
        return ": the group has no secret for it (`glean secret set`)"
    if not credential.is_for(url):
        return f": the group's secret is only for what is below {credential.url}"
    return f": it does not take the group's secret for {credential.url}"
