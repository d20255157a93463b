"""The answers that setup asks for, a record for each role, and the file that carries some of them to other machines."""

import ipaddress
import json
import re
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from gleaner.control.setup.steps.changes import SetupRefused

CA_FILE = "/etc/gleaner/tls/ca.pem"
JOIN_FILE = "/etc/gleaner/join.json"
_NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}\Z")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?\Z")
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+\Z")
_PATH = re.compile(r"(/[A-Za-z0-9._@+-]+)+\Z")


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """The service account, the same on all machines."""

    name: str = "gleaner"
    uid: int = 4200
    gid: int = 4200


@dataclass(frozen=True, slots=True)
class ClientAnswers:
    """A login node: control's address, and its authority (PEM; empty if the system trusts the certificate)."""

    url: str
    ca: str = ""


@dataclass(frozen=True, slots=True)
class ControlAnswers:
    """The machine of the control program."""

    host: str
    """The name or address by which nodes and users reach it; it stands in the certificate."""
    more_hosts: tuple[str, ...] = ()
    """Its other names and addresses, which stand in the certificate, too."""
    port: int = 8642
    storage: str = "/srv/gleaner"
    account: ServiceAccount = ServiceAccount()
    certificate: str = ""
    """The site's own certificate, with `key` and `ca`; empty: an authority is made here."""
    key: str = ""
    ca: str = ""
    slurm_conf: str = "/etc/slurm/slurm.conf"
    memory_per_cpu_mib: int = 1024
    """The memory of a job that names none, if slurm.conf does not say so already."""
    grace_s: int = 120
    """The time that a preempted agent has to save its jobs, if slurm.conf has no partition of the agents already."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All names and addresses of the certificate."""
        return (self.host, *self.more_hosts)

    @property
    def url(self) -> str:
        """Control's address."""
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def has_ca(self) -> bool:
        """True if others need an authority to trust the certificate."""
        return not self.certificate or bool(self.ca)

    @property
    def listens_at(self) -> str:
        """The address at which control listens: all of IPv4; with an address of IPv6, `::`, which is both."""
        return "::" if any(":" in host for host in self.hosts) else "0.0.0.0"  # noqa: S104 - with TLS


@dataclass(frozen=True, slots=True)
class NodeAnswers:
    """A compute node."""

    url: str
    ca: str = ""
    storage: str = "/srv/gleaner"
    account: ServiceAccount = ServiceAccount()
    runtime: str = "helper"
    """`helper`: containers without Docker. `docker`: with the node's Docker Engine."""
    images_allowed: tuple[str, ...] = ("gleaner/*",)


@dataclass(frozen=True, slots=True)
class JoinFile:
    """The facts that control's machine tells the others. There is no secret in it."""

    url: str
    ca: str
    storage: str
    account: ServiceAccount

    def text(self) -> bytes:
        """Return the file's content."""
        return (TypeAdapter(JoinFile).dump_json(self, indent=2).decode() + "\n").encode()


def read_join(name: str, content: bytes) -> JoinFile:
    """Return what a join file says. Raises `SetupRefused`."""
    try:
        found = TypeAdapter(JoinFile).validate_json(content)
    except (ValidationError, ValueError) as error:
        raise SetupRefused(
            f"{name} is no file of glean setup control: copy {JOIN_FILE} from control's machine"
        ) from error
    if found.ca:
        check_authority(f"the ca of {name}", found.ca)
    return found


def check_host(host: str) -> str:
    """Return a host's name, or its address of IPv4 or IPv6 in the usual form. Raises `SetupRefused`."""
    if address := address_in(host):
        return str(address)
    return _checked(host, _HOST, "is no name or address of a machine")


def address_in(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a host is named by; None for a name. One of a single link (`fe80::1%eth0`) is none."""
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None


def check_url(url: str) -> str:
    """Return an address of control. Raises `SetupRefused`."""
    return _checked(url.rstrip("/"), _URL, "is no address: it must be like https://HOST:8642")


def check_path(path: str) -> str:
    """Return an absolute path of usual letters, which needs no quotes in any file. Raises `SetupRefused`."""
    return _checked(path, _PATH, "must be an absolute path of letters, digits and . _ @ + -")


def check_account(account: ServiceAccount) -> ServiceAccount:
    """Return an account that is ordinary. Raises `SetupRefused`."""
    _checked(account.name, _NAME, "is no name of an account")
    if account.uid <= 0 or account.gid <= 0:
        raise SetupRefused("the service account cannot be root: name an ordinary account, with numbers above 0")
    return account


def check_authority(name: str, text: str) -> str:
    """Return a certificate authority in PEM. Raises `SetupRefused`."""
    if "-----BEGIN CERTIFICATE-----" not in text or "PRIVATE KEY" in text:
        raise SetupRefused(f"{name} is no certificate in PEM, or holds a key, which must stay where it is")
    return text


def _checked(text: str, pattern: re.Pattern[str], rule: str) -> str:
    if not pattern.match(text):
        raise SetupRefused(f"{json.dumps(text)} {rule}")
    return text
