"""A user's `glean`, and the real control program behind it: a real port, a real database."""

import hashlib
import json
import math
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from sqlalchemy import Engine

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import output_key
from gleaner.agent.checkpoints.workdir_tar import pack
from gleaner.agent.messages import (
    Assignment,
    ClaimRequest,
    Completed,
    LogLines,
    NodeFacts,
    Output,
    Registration,
    Returned,
    ReturnReason,
    Slice,
)
from gleaner.control.api.app import create_app
from gleaner.control.cli import app
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import JOIN_S
from gleaner.control.queue import agents, attempt_reports, claims, logs
from gleaner.control.queue.database import connect, transaction
from gleaner.control.settings import QueueSettings, Settings, StorageSettings
from gleaner.control.web.app import with_pages

GLEAN = str(Path(sys.executable).with_name("glean"))


@dataclass
class Node:
    """An agent without containers: it claims through the queue and ends jobs as told."""

    engine: Engine
    storage: FolderStorage
    work: Path
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def claim(self, most: int = 64) -> tuple[Assignment, ...]:
        """Claim what is there, as a new agent."""
        name = f"agent-{next(self.numbers)}"
        now_s = time.time()
        facts = NodeFacts(
            node="node1",
            cpus=64,
            memory_mib=65536,
            runtime="none",
            criu="4.1",
            kernel="6",
            architecture="x86_64",
            fetches=("https", "file"),
        )
        with transaction(self.engine) as db:
            hashed = hashlib.sha256(os.urandom(32)).hexdigest()
            agents.expect(db, name=name, end_s=now_s + 3600, token_hash=hashed, now_s=now_s)
            agents.register(db, name, Registration(facts=facts, end_s=now_s + 3600), lease_s=3600, now_s=now_s)
        with transaction(self.engine) as db:
            return claims.claim(db, name, ClaimRequest(cpus=64, memory_mib=65536, most=most), now_s=now_s).jobs

    def write(self, job: Assignment, first: int, *lines: str) -> None:
        """Lines of the job's output."""
        with transaction(self.engine) as db:
            logs.append(db, job.job, job.attempt, LogLines(first=first, lines=lines), most_bytes=2**26)

    def record_return(self, job: Assignment, why: ReturnReason, detail: str) -> None:
        """Nothing came of the attempt."""
        with transaction(self.engine) as db:
            report = Returned(why=why, detail=detail)
            attempt_reports.record_return(db, job.job, job.attempt, report, now_s=time.time())

    def complete(self, job: Assignment, *, exit_code: int = 0, files: Mapping[str, bytes] | None = None) -> None:
        """The workload's exit, with these files in its folder."""
        output = None
        if files is not None:
            folder = self.work / f"{job.job}-{job.attempt}"
            folder.mkdir(parents=True)
            for name, content in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(content)
            with self.storage.draft(output_key(job.job, job.attempt)) as draft:
                draft.add("folder.tar", pack(folder))
                published = draft.publish({})
            output = Output(digest=published.digest, size_bytes=published.size_bytes)
        report = Completed(exit_code=exit_code, output=output, slice=Slice(started_s=time.time(), compute_s=1.5))
        with transaction(self.engine) as db:
            attempt_reports.record_completion(db, job.job, job.attempt, report, now_s=time.time())


@dataclass
class CliHarness:
    """A user's `glean` as a program of its own, with its settings and token, and the control it talks to."""

    folder: Path
    environment: dict[str, str]
    node: Node
    state: ControlState

    def start(self, *arguments: str, **more: Any) -> "subprocess.Popen[str]":
        """The program, running."""
        return subprocess.Popen(
            [GLEAN, *arguments],
            cwd=self.folder,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """The exit code, stdout and stderr of a command that ends soon; in this process, for speed."""
        out, err = StringIO(), StringIO()
        umask = os.umask(0o022)
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            for variable in [name for name in os.environ if name.startswith("GLEANER_")]:
                patch.delenv(variable)
            for variable, value in self.environment.items():
                patch.setenv(variable, value)
            try:
                code = app.run(list(arguments))
            finally:
                os.umask(umask)
        return code, out.getvalue(), err.getvalue()

    def good(self, *arguments: str) -> str:
        """The program's stdout; it must have succeeded, and said nothing else but that a busy machine takes long."""
        code, out, err = self.run(*arguments)
        usual = ("; still trying", "and the agents that ran last had none")  # no agent of the tests lives before a job
        said = [line for line in err.splitlines() if not any(part in line for part in usual)]
        assert (code, said) == (0, []), (arguments, code, err)
        return out

    def submit(self, *options: str) -> int:
        """Submit one job; return its number."""
        out = self.good("submit", "--image", "gleaner/pi", "--json", *options, "--", "pi", "--samples", "10")
        return int(json.loads(out)["jobs"][0])

    def refused(self, *arguments: str, code: int) -> str:
        """The one line on stderr of a program that must fail, without its `glean: `."""
        found, out, err = self.run(*arguments)
        assert (found, out) == (code, ""), (arguments, found, out, err)
        assert err.startswith("glean: ")
        assert err.count("\n") == 1, err
        return err.removeprefix("glean: ").rstrip()


@dataclass
class Service:
    """The API on a port of this machine, which can be stopped and started again."""

    state: ControlState
    port: int = 0
    server: uvicorn.Server | None = None
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen; the port stays the same over restarts."""
        config = uvicorn.Config(
            with_pages(create_app(self.state)),
            host="127.0.0.1",
            port=self.port,
            log_level="error",
            timeout_graceful_shutdown=JOIN_S,
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            assert self.thread.is_alive()
            time.sleep(0.01)
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Be gone."""
        if self.server and self.thread:
            self.server.should_exit = True
            self.thread.join(timeout=20)


Reply = tuple[int, bytes] | None


@contextmanager
def answering(
    answer: Callable[[str, Message], Reply], *, tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[str]:
    """Yield the URL of a server that is not Gleaner.

    It answers each request by its method and path, and its headers. None breaks the connection.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            reply = answer(f"{self.command} {self.path}", self.headers)
            if reply is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(reply[0])
            self.send_header("Content-Length", str(len(reply[1])))
            self.end_headers()
            self.wfile.write(reply[1])

        do_POST = do_PATCH = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if tls:
        running.socket = tls.wrap_socket(running.socket, server_side=True)
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()


def become_user(patch: pytest.MonkeyPatch, folder: Path, url: str) -> Path:
    """Set the settings of a user in this folder, and no others. Return the file with the token."""
    for variable in [name for name in os.environ if name.startswith("GLEANER_") and name != "GLEANER_TESTS"]:
        patch.delenv(variable)
    token = folder / "token"
    token.write_text("a-secret\n")
    token.chmod(0o600)
    (folder / "gleaner.toml").write_text("")
    patch.setenv("GLEANER_SETTINGS", str(folder / "gleaner.toml"))
    patch.setenv("GLEANER_CLIENT__TOKEN_FILE", str(token))
    patch.setenv("GLEANER_CLIENT__URL", url)
    return token


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(place: Path, url: str) -> Iterator[Service]:
    """Yield a control program on a port of this machine, with this database."""
    queue, storage = QueueSettings(url=url, secret_key_file=place / "secrets.key"), FolderStorage(place / "storage")
    storage.prepare()
    engine = connect(url)
    settings = Settings(queue=queue, storage=StorageSettings(folder=place / "storage"))
    running = Service(ControlState(settings, engine, storage, leads_until_s=math.inf))
    running.start()
    yield running
    running.stop()
    engine.dispose()


def admins_glean(service: Service, place: Path) -> CliHarness:
    """Return the admin's `glean`; the token is made as the first one of a site is."""
    folder = place / "desk"
    folder.mkdir()
    (place / "gleaner.toml").touch()
    environment = {
        "GLEANER_SETTINGS": str(place / "gleaner.toml"),
        "GLEANER_QUEUE__URL": service.state.settings.queue.url,
        "GLEANER_QUEUE__SECRET_KEY_FILE": str(place / "secrets.key"),
        "GLEANER_CLIENT__URL": f"http://127.0.0.1:{service.port}",
        "GLEANER_CLIENT__TOKEN_FILE": str(place / "admin-token"),
        "GLEANER_CLIENT__TIMEOUT_S": "300",  # on a busy machine no test fails for want of patience
    }
    node = Node(service.state.engine, FolderStorage(place / "storage"), place / "work")
    made = CliHarness(folder, environment, node, service.state)
    made.good("token", "create", "--local", "--role", "admin", "--name", "root", "--to", str(place / "admin-token"))
    return made


def users_glean(admin: CliHarness, place: Path) -> CliHarness:
    """Return the `glean` of a user of group `atlas`, with a token that the admin has made."""
    user = ["--role", "user", "--name", "alice", "--group", "atlas"]
    admin.good("token", "create", *user, "--to", str(place / "token"))
    environment = admin.environment | {"GLEANER_CLIENT__TOKEN_FILE": str(place / "token")}
    return CliHarness(admin.folder, environment, admin.node, admin.state)
