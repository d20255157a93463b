"""An https server on this machine, from which the cluster's agents fetch inputs."""

import functools
import http.server
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from demo import cluster

ADDRESS = "10.213.87.1"
"""This machine's address in the cluster's network (deploy/compose.yaml)."""
_PORT = 18443
BASE = f"https://{ADDRESS}:{_PORT}/"
_TRUSTED = "/usr/lib/ssl/cert.pem"
"""The file with the certificates that OpenSSL on the nodes trusts. It does not exist in the nodes' image."""


@dataclass(slots=True)
class WebServer:
    """A server at `BASE`. `asked` contains the requested paths, in order."""

    asked: list[str] = field(default_factory=list[str])


@contextmanager
def serving(folder: Path) -> Iterator[WebServer]:
    """Serve the files of a folder to the cluster's nodes, which trust the server during this time."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        """A handler that logs nothing and records the requested paths."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.asked.append(self.path)
            super().do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    with tempfile.TemporaryDirectory() as place:
        certificate = _certificate(Path(place))
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trust.load_cert_chain(certificate, certificate.with_name("key.pem"))
        pem = certificate.read_text()
    found = WebServer()
    with http.server.ThreadingHTTPServer((ADDRESS, _PORT), functools.partial(Handler, directory=str(folder))) as server:
        server.daemon_threads = True
        server.socket = trust.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            for node in cluster.NODES:
                cluster.run(node, "sh", "-c", f"cat >{_TRUSTED}", stdin=pem)
            yield found
        finally:
            for node in cluster.NODES:
                cluster.run(node, "rm", "-f", _TRUSTED)
            server.shutdown()
            thread.join()


def _certificate(place: Path) -> Path:
    """Make a key and a self-signed certificate for our address. Return the certificate's file."""
    made = place / "cert.pem"
    about = ["-subj", "/CN=demo", "-addext", f"subjectAltName=IP:{ADDRESS}"]
    about += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(place / "key.pem"), "-out", str(made)]
    subprocess.run(["openssl", "req", "-x509", *kind, *about, *files], check=True, capture_output=True, timeout=60)
    return made
