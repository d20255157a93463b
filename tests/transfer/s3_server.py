"""A server of S3 with one object, in a process of its own: moto takes much memory."""

import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from tests.transfer.bad_server import CONTENT
from tests.transfer.processes import client
from werkzeug.serving import make_server

BUCKET, KEY = "bucket", "a/b.lhe"


class Misbehaving:
    """The application, but that nobody may write without keys, and that a second part of a `busy` file fails."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __call__(self, environ: Any, start: Any) -> Iterable[bytes]:
        name = environ["PATH_INFO"].rpartition("/")[2]
        if environ["REQUEST_METHOD"] != "GET" and "HTTP_AUTHORIZATION" not in environ:
            start("403 Forbidden", [("Content-Length", "0")])
            return []
        if "HTTP_X_AMZ_SECURITY_TOKEN" in environ:  # only this account's own settings could have one
            start("400 Bad Request", [("Content-Length", "0")])
            return []
        if "partNumber=2" in environ["QUERY_STRING"] and name.startswith("busy"):
            start("503 Service Unavailable", [("Content-Length", "0")])
            return []
        answer: Iterable[bytes] = self.app(environ, start)
        return answer


def main(certificate: str, key: str) -> None:
    """Serve until the standard input ends. The port is on the first line of the output."""
    app = Misbehaving(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, ssl_context=(certificate, key))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made = client(server.server_port, Path(certificate))
    made.create_bucket(Bucket=BUCKET)
    made.put_object(Bucket=BUCKET, Key=KEY, Body=CONTENT)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
