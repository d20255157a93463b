"""A small certificate authority, created by openssl, for a site that has none.

The authority's key stays on control's machine, where only root can read it. So a new certificate needs no change on
other machines.
"""

import time

from gleaner.control.setup.answers import CA_FILE, ControlAnswers, SetupRefused
from gleaner.control.setup.own_files import Command, OwnFile, TargetMachine, Wanted, read

TLS = "/etc/gleaner/tls"
CERTIFICATE, KEY = f"{TLS}/cert.pem", f"{TLS}/key.pem"
_CA_KEY = f"{TLS}/ca.key"
_ISSUER = "Gleaner CA"
_RENEW_S = 30 * 86_400
_NEW = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
        "-config", "/dev/null")  # fmt: skip


def certificates(machine: TargetMachine, answers: ControlAnswers) -> Wanted:
    """Return an authority and its certificate for all hosts. Valid files are kept. Raises `SetupRefused`."""
    ca_key, ca, key, certificate = (str(machine.at(path)) for path in (_CA_KEY, CA_FILE, KEY, CERTIFICATE))
    for path in (CA_FILE, CERTIFICATE):
        issuer = read("openssl", "x509", "-noout", "-issuer", "-in", str(machine.at(path)))
        if machine.find(path) and _ISSUER not in (issuer or ""):
            raise SetupRefused(f"{path} is foreign: move it and its key away, or name it with --certificate and --key")
    names = (*answers.hosts, "localhost", "127.0.0.1")
    listed = ",".join(f"IP:{name}" if _is_address(name) else f"DNS:{name}" for name in names)
    ends = ("openssl", "verify", "-attime", str(int(time.time() + _RENEW_S)), "-CAfile", ca)
    hosts = [("-verify_ip" if _is_address(name) else "-verify_hostname", name) for name in answers.hosts]
    has_authority = read(*ends, ca) is not None
    is_done = (
        has_authority
        and all(read(*ends, *host, certificate) is not None for host in hosts)
        and read("openssl", "pkey", "-passin", "pass:", "-pubout", "-in", key)
        == read("openssl", "x509", "-noout", "-pubkey", "-in", certificate)
    )
    authority = (
        *_NEW, "-days", "3650", "-subj", f"/CN={_ISSUER}", "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", ca_key, "-out", ca,
    )  # fmt: skip
    make = (
        *_NEW, "-days", "824", "-subj", "/CN=Gleaner control", "-CA", ca, "-CAkey", ca_key, "-passin", "pass:",
        "-addext", "basicConstraints=CA:FALSE", "-addext", "extendedKeyUsage=serverAuth",
        "-addext", f"subjectAltName={listed}", "-keyout", key, "-out", certificate,
    )  # fmt: skip
    own, show = ("chown", f"{answers.uid}:{answers.gid}", key), ("chmod", "0644", ca, certificate)
    return Wanted(
        (OwnFile(TLS, mode=0o755, kind="folder"),),
        (
            Command("authority", (authority,), (("rm", "-f", ca_key, ca),), has_authority),
            Command("certificate", (make, own, show), (("rm", "-f", key, certificate),), is_done),
        ),
    )


def _is_address(host: str) -> bool:
    return set(host) <= set("0123456789.")
