"""A small certificate authority for a site that has none. openssl makes the keys, in a temporary folder.

The authority's key stays on control's machine, root's alone: so a new certificate needs no change on other machines.
"""

import ssl
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gleaner.agent.privileged.common import system_programs
from gleaner.control.input_errors import one_line
from gleaner.control.setup import reading
from gleaner.control.setup.facts import Certificate, Output
from gleaner.control.setup.steps.answers import CA_FILE, ServiceAccount, address_in
from gleaner.control.setup.steps.changes import Ownership, SetupRefused
from gleaner.control.setup.steps.machine import MachineReader
from gleaner.control.setup.steps.step_types import FileStep, MadeStep, SetupStep

CA_KEY = "/etc/gleaner/tls/ca.key"
CERTIFICATE = "/etc/gleaner/tls/cert.pem"
KEY = "/etc/gleaner/tls/key.pem"
AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 824
RENEW_DAYS = 30
_DAY_S = 86_400
_WITHIN_S = 60.0
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def certificates(hosts: Sequence[str], account: ServiceAccount) -> tuple[SetupStep, ...]:
    """Return the steps for an authority, and for a certificate of these names and addresses that it has signed."""
    return (
        MadeStep(
            CA_FILE,
            f"make a certificate authority: {CA_FILE}, and its key {CA_KEY}, which stays here",
            lambda machine: _has_authority(machine) or _has_certificate(machine, hosts),
            lambda _machine: _new_authority(),
        ),
        MadeStep(
            CERTIFICATE,
            f"make a certificate for {', '.join(hosts)}, good for {CERTIFICATE_DAYS} days: {CERTIFICATE}, {KEY}",
            lambda machine: _has_certificate(machine, hosts),
            lambda machine: _new_certificate(machine, hosts, account),
        ),
    )


def _has_authority(machine: MachineReader) -> bool:
    """Return True if both files of the authority are there and belong together."""
    key, certificate = machine.file(CA_KEY), machine.file(CA_FILE)
    if key is None or certificate is None:
        return False
    with _Workshop() as at_work:
        at_work.put("ca.key", key.content)
        at_work.put("ca.pem", certificate.content)
        return at_work.is_pair("ca.key", "ca.pem")


def _has_certificate(machine: MachineReader, hosts: Sequence[str]) -> bool:
    """Return True if the certificate is the authority's, the key's and that of all hosts, and does not end soon."""
    names = {"ca.pem": CA_FILE, "cert.pem": CERTIFICATE, "key.pem": KEY}
    found = {name: machine.file(path) for name, path in names.items()}
    with _Workshop() as at_work:
        for name, file in found.items():
            if file is None:
                return False
            at_work.put(name, file.content)
        certificate, key, ca = (at_work.at(name) for name in ("cert.pem", "key.pem", "ca.pem"))
        shown = [reading.certificate_file(certificate, key, ca_file=ca, host=host) for host in hosts]
    least_s = time.time() + RENEW_DAYS * _DAY_S
    return all(isinstance(one, Certificate) and one.ends_s > least_s for one in shown)


def _new_authority() -> tuple[FileStep, ...]:
    with _Workshop() as at_work:
        at_work.run(
            "req", "-x509", *_CURVE, "-days", str(AUTHORITY_DAYS), "-subj", "/CN=Gleaner CA",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", "ca.key", "-out", "ca.pem",
        )  # fmt: skip
        return (
            FileStep(CA_KEY, at_work.get("ca.key"), Ownership(0o600)),
            FileStep(CA_FILE, at_work.get("ca.pem")),
        )


def _new_certificate(machine: MachineReader, hosts: Sequence[str], account: ServiceAccount) -> tuple[FileStep, ...]:
    names = [f"IP:{host}" if address_in(host) else f"DNS:{host}" for host in (*hosts, "localhost", "127.0.0.1")]
    extensions = (
        f"subjectAltName={','.join(names)}\nextendedKeyUsage=serverAuth\n"
        "basicConstraints=CA:FALSE\nauthorityKeyIdentifier=keyid\n"
    )
    with _Workshop() as at_work:
        for name, path in (("ca.key", CA_KEY), ("ca.pem", CA_FILE)):
            found = machine.file(path)
            if found is None:
                raise SetupRefused(f"{path} is gone: run this again")
            at_work.put(name, found.content)
        at_work.put("extensions", extensions.encode())
        at_work.run("req", *_CURVE, "-subj", "/CN=Gleaner control", "-keyout", "key.pem", "-out", "csr")
        at_work.run(
            "x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", str(CERTIFICATE_DAYS), "-extfile", "extensions", "-out", "cert.pem",
        )  # fmt: skip
        return (
            FileStep(KEY, at_work.get("key.pem"), Ownership(0o600, account.uid, account.gid)),
            FileStep(CERTIFICATE, at_work.get("cert.pem"), restarts=("gleaner-control",)),
        )


class _Workshop:
    """A folder that only this account can enter, in which openssl works; it is gone afterwards."""

    def __enter__(self) -> "_Workshop":
        self._folder = tempfile.TemporaryDirectory(prefix="gleaner-setup-")
        return self

    def __exit__(self, *_error: object) -> None:
        self._folder.cleanup()

    def at(self, name: str) -> Path:
        """Return where a file lies."""
        return Path(self._folder.name, name)

    def put(self, name: str, content: bytes) -> None:
        """Write a file."""
        self.at(name).write_bytes(content)

    def get(self, name: str) -> bytes:
        """Return a file."""
        return self.at(name).read_bytes()

    def run(self, *words: str) -> str:
        """Run openssl, and return what it has printed. Raises `SetupRefused`."""
        done = self._openssl(words)
        if done.status != 0:
            raise SetupRefused(one_line(f"openssl {words[0]} failed: {done.complaint}"))
        return done.stdout

    def is_pair(self, key: str, certificate: str) -> bool:
        """Return True if a key is that of a certificate."""
        try:
            # With no password at all, a key that needs one would be asked for at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.at(certificate), self.at(key), password="")
        except OSError:  # ssl's own errors, too
            return False
        return True

    def _openssl(self, words: tuple[str, ...]) -> Output:
        try:
            done = system_programs.run(
                ("openssl", *words), within_s=_WITHIN_S, environment=reading.environment(), folder=self._folder.name
            )
        except FileNotFoundError:
            raise SetupRefused(
                "there is no program openssl here: install it, or name --certificate and --key"
            ) from None
        except OSError as error:
            raise SetupRefused(one_line(f"openssl cannot be run: {error.strerror or error}")) from error
        return Output(done.status, done.stdout, done.stderr)
