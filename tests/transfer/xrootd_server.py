"""Real servers of XRootD for tests, a relay that breaks off, and tokens that the server believes."""

import base64
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

ISSUER = "https://issuer.example"


@contextmanager
def xrootd(place: Path, name: str, *directives: str) -> Iterator[int]:
    """Serve the folder `place`/files until the end, at a free port, which is returned."""
    home = place / name
    home.mkdir()
    config = home / "config"
    config.write_text("\n".join((
        "xrd.port any", "xrd.network nodnr", f"oss.localroot {place}/files", f"all.adminpath {home}",
        f"all.pidpath {home}", *directives, "",
    )))  # fmt: skip
    as_root = ["-R", "nobody"] if os.geteuid() == 0 else []
    if as_root:
        for each in (home, *place.glob("*.pem"), *place.glob("cache/**/*"), *place.glob("cache")):
            shutil.chown(each, "nobody")
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(place / "cache")}
    with subprocess.Popen(
        ["xrootd", *as_root, "-c", str(config), "-n", name],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
    ) as server:
        try:
            assert server.stderr
            said = list[str]()
            for line in server.stderr:
                said.append(line)
                if f"xrootd {name}@" in line and line.endswith("completed.\n") and "initialization" in line:
                    break
            else:
                raise AssertionError("".join(said))
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield int(said[-1].partition(f"{name}@")[2].split()[0].rpartition(":")[2])
        finally:
            server.kill()


@dataclass
class Relay:
    """Passes bytes on to a server until it has passed so many of the answer; then it breaks off."""

    port: int
    to: int
    """The port of the server."""
    passes_bytes: int = 0
    passes_later_bytes: int = 0
    """As many are passed of each connection after the next one."""
    held: list[socket.socket] = field(default_factory=list[socket.socket])


@contextmanager
def relay_to(port: int, passes_bytes: int = 0) -> Iterator[Relay]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made = Relay(listening.getsockname()[1], port, passes_bytes, passes_bytes)

        def accepting() -> None:
            with suppress(OSError):  # the end
                while True:
                    client, _ = listening.accept()
                    server = socket.create_connection(("127.0.0.1", made.to))
                    made.held.extend((client, server))
                    threading.Thread(target=_pass, args=(client, server, 2**60), daemon=True).start()
                    threading.Thread(target=answering, args=(server, client), daemon=True).start()

        def answering(server: socket.socket, client: socket.socket) -> None:
            passes_bytes, made.passes_bytes = made.passes_bytes, made.passes_later_bytes
            _pass(server, client, passes_bytes)
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=accepting, daemon=True).start()
        try:
            yield made
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for each in made.held:
                each.close()


def _pass(source: socket.socket, target: socket.socket, most_bytes: int) -> None:
    with suppress(OSError):
        while most_bytes > 0 and (block := source.recv(min(2**16, most_bytes))):
            target.sendall(block)
            most_bytes -= len(block)


class Issuer:
    """Signs tokens. Their key is put where the server's library of tokens keeps the keys that it has fetched."""

    def __init__(self, place: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        public, now_s = self._key.public_key().public_numbers(), int(time.time())
        point = {"x": _base64(public.x.to_bytes(32, "big")), "y": _base64(public.y.to_bytes(32, "big"))}
        key = {"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": "one"} | point
        known = {"expires": now_s + 86400, "next_update": now_s + 86400, "jwks": {"keys": [key]}}
        folder = place / "cache" / "scitokens"
        folder.mkdir(parents=True)
        with sqlite3.connect(folder / "scitokens_cpp.sqllite") as cache:
            cache.execute("CREATE TABLE keycache (issuer text UNIQUE PRIMARY KEY NOT NULL, keys text NOT NULL)")
            cache.execute("INSERT INTO keycache VALUES (?, ?)", (ISSUER, json.dumps(known)))
        cache.close()
        (place / "tokens").write_text(f"[Global]\naudience = here\n[Issuer one]\nissuer = {ISSUER}\nbase_path = /\n")

    def token(self, scope: str) -> str:
        now_s = int(time.time())
        times = {"iat": now_s, "nbf": now_s - 60, "exp": now_s + 3600}
        claims = {"iss": ISSUER, "sub": "me", "aud": "here", "scope": scope, "ver": "scitoken:2.0"} | times
        head = {"alg": "ES256", "kid": "one", "typ": "JWT"}
        signed = ".".join(_base64(json.dumps(each).encode()) for each in (head, claims))
        numbers = utils.decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{signed}.{_base64(b''.join(each.to_bytes(32, 'big') for each in numbers))}"


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
