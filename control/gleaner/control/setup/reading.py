"""Ways to read one fact for setup, none of which raises: what cannot be read is `Unread`, with one line why."""

import os
import ssl
from collections.abc import Sequence
from pathlib import Path

from gleaner.agent.privileged.common import system_programs
from gleaner.control.input_errors import one_line
from gleaner.control.setup.facts import Certificate, Output, Unread

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PASSED = ("SLURM_CONF", "PYTHONPATH")
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's `ssl` has no name for."""


def environment() -> dict[str, str]:
    """Return the environment of the programs that are run: few variables, and the folders of system programs."""
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".strip(":")
    return {name: os.environ[name] for name in _PASSED if name in os.environ} | {"PATH": path, "LC_ALL": "C"}


def run(words: Sequence[str], *, within_s: float) -> Output | Unread:
    """Run a program to its end, and return what it has printed."""
    try:
        done = system_programs.run(words, within_s=within_s, environment=environment())
    except FileNotFoundError:
        return Unread(f"there is no program {words[0]} here", is_missing=True)
    except TimeoutError:
        return Unread(f"{words[0]} did not answer within {within_s:g} s")
    except OSError as error:
        return Unread(f"{words[0]} cannot be run: {error.strerror}")
    return Output(done.status, done.stdout, done.stderr)


def _certificate_of(connection: ssl.SSLSocket | ssl.SSLObject) -> Certificate | None:
    shown = connection.getpeercert()
    if not shown:
        return None
    names = tuple(str(entry[1]) for entry in shown.get("subjectAltName", ()))
    return Certificate(names, ssl.cert_time_to_seconds(str(shown["notAfter"])))


def certificate_file(certificate: Path, key: Path, *, ca_file: Path | None, host: str) -> Certificate | Unread:
    """Return the certificate as a client would be shown it: a handshake within this program, without a network.

    `host` is the name that the client asks for; empty for any.
    """
    for path in (certificate, key):
        try:
            path.open("rb").close()
        except FileNotFoundError:
            return Unread(f"there is no {path}", is_missing=True)
        except OSError as error:
            return Unread(f"{path} cannot be read: {error.strerror}")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With no password at all, a key that needs one would be asked for at the terminal.
        server.load_cert_chain(certificate, key, password="")
    except (OSError, ssl.SSLError) as error:
        return Unread(one_line(f"{certificate} and {key} cannot be used together: {error}"))
    try:
        client = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        return Unread(one_line(f"ca_file {ca_file}: {error}"))
    client.check_hostname = bool(host)
    client.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)  # a check judges the time
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host or None)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (ours, theirs, ours, theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        return _certificate_of(ours) or Unread(f"{certificate} names nobody")
    except ssl.SSLCertVerificationError as error:
        return Unread(f"{certificate} is not taken: {one_line(error.verify_message)}")
    except (ssl.SSLError, ValueError) as error:
        return Unread(one_line(f"{certificate}: {error}"))
