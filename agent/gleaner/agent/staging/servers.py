"""The rules by which our programs reach servers: the addresses, the credential, and what a server's refusal means."""

import os
import socket
from base64 import b64encode
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NoReturn, cast

from gleaner.agent.common import allowed_urls
from gleaner.agent.staging.child_process import MayNot, MayPass
from gleaner.agent.staging.credentials import Credential, CredentialKind, kind

_ASK_LATER = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.LOCKED, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
MOST_REDIRECTS = 10


class AddressGuard:
    """Refuses the addresses to which an agent does not connect. A host that is an address itself is on the list."""

    def __init__(self, allowed: Sequence[str], control_host: str) -> None:
        self._named = allowed_urls.named_addresses(allowed)
        self._of_control = _addresses(control_host)

    def check(self, host: str, address: str) -> None:
        """Raise `MayNot` if an agent does not connect to this address of the host."""
        if reason := allowed_urls.address_refusal(host, address, named=self._named, of_control=self._of_control):
            raise MayNot(reason)


def _addresses(host: str) -> frozenset[str]:
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(host, None)) if host else frozenset()
    except OSError:
        return frozenset()  # the agent does not reach it either


def forget_own_settings() -> None:
    """Make fsspec use nothing of this account's own settings: its options could add a credential, or another session.

    It reads them when it is loaded, and adds them to what each file system is given.
    """
    for name in [name for name in os.environ if name.startswith("FSSPEC_")]:
        del os.environ[name]
    os.environ["FSSPEC_CONFIG_DIR"] = os.devnull
    from fsspec.config import conf  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    cast("dict[str, Any]", conf).clear()


def resolver(guard: AddressGuard) -> Any:
    """Return the class of the system's resolver, without the addresses to which an agent does not connect."""
    import aiohttp  # slow to load, and not needed for a file

    class Resolver(aiohttp.ThreadedResolver):
        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> Any:
            found = await super().resolve(host, port, family)
            for each in found:
                guard.check(host, each["host"])
            return found

    return Resolver


def socket_factory(guard: AddressGuard) -> Any:
    """Return a function that makes aiohttp's sockets: a host that is an address itself is not resolved, but checked."""

    def make(address: Any) -> socket.socket:
        family, kind_of_socket, protocol, _, place = address
        guard.check(str(place[0]), str(place[0]))
        return socket.socket(family, kind_of_socket, protocol)

    return make


def check_redirect(url: str, target: str, allowed: Sequence[str], use: allowed_urls.Use) -> None:
    """Raise `MayNot` if a server that is asked by HTTPS must not lead from one URL to the other."""
    reason = allowed_urls.refusal(target, allowed, use)
    if not reason and allowed_urls.location(target).scheme != "https":
        reason = "a server must not lead to a file of the node"
    if reason:
        raise MayNot(f"{allowed_urls.shown(url)} is redirected, and {reason}")


def too_many_redirects(url: str) -> MayNot:
    """Return the error for a URL that leads on and on."""
    return MayNot(f"{allowed_urls.shown(url)} is redirected more than {MOST_REDIRECTS} times")


def one_line(error: Exception) -> str:
    """Return an error of a library in one line, or its name if it says nothing."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def sign_in(url: str, credential: Credential | None) -> dict[str, str]:
    """Return the header with the credential. After a redirect to another place the server gets none."""
    if credential is None or not credential.is_for(url):
        return {}
    if kind(credential.url, credential.value) is CredentialKind.TOKEN:
        return {"Authorization": f"Bearer {credential.value}"}
    return {"Authorization": f"Basic {b64encode(credential.value.encode()).decode()}"}


def raise_status(url: str, status: int, credential: Credential | None) -> NoReturn:
    """Raise `MayPass` or `MayNot` for a server's answer that is no success."""
    wants_to_know = status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    line = f"{allowed_urls.shown(url)}: the server answers {status}{advice(url, credential) if wants_to_know else ''}"
    raise (MayPass if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _ASK_LATER else MayNot)(line)


def advice(url: str, credential: Credential | None) -> str:
    """Return what the group can do about a server that does not let it in, after a colon."""
    if credential is None:
        return ": the group has no secret for it (`glean secret set`)"
    if not credential.is_for(url):
        return f": the group's secret is only for what is below {credential.url}"
    return f": it does not take the group's secret for {credential.url}"
