"""`gleaner-steward`: the one program that does to Slurm what an ordinary user may not.

It listens at a unix socket for the account of the control program alone (SO_PEERCRED, by the kernel). Each connection
carries one request and its answer, a line of JSON each. What may be asked is `request`, what is done for it is `rules`,
and no more. It looks at the job or the nodes itself, each time: what control believes does not count. It writes each
act, and each refusal, as one line of JSON to stderr.

A request carries the epoch by which its control program leads. One that is lower than any before is of a program that
does not lead any more, however it came to ask, and is refused. The highest is kept in a file beside the heartbeat, so
that it outlives this program. Only a request that names none is not compared: one that is typed by hand.
"""

import argparse
import json
import os
import pwd
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gleaner.agent.privileged.meeting import peer
from gleaner.agent.privileged.request import Refused
from gleaner.control.cluster import programs, slurm_records
from gleaner.control.cluster.gateway import GatewayError, GatewayUnavailable
from gleaner.control.steward import conf, request, rules
from gleaner.control.steward.conf import Governed, Misconfigured
from gleaner.control.steward.request import Alive, Awake, Drain, JobRequest, Resume

PATIENCE_S = 10.0
"""For a request to arrive, and for an answer to be taken."""
COMMAND_LIMIT_S = 15.0
_AT_ONCE = 16
_AGAIN_S = 0.5
_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}

Run = Callable[[rules.Command], str]
"""Runs a program of Slurm's; what it printed. Raises `GatewayError`."""


class Steward:
    """The requests, one after the other; only the heartbeats wait for nobody.

    What is governed is read for each, as slurmctld's script reads it for each job: else that one could hold jobs that
    this one refuses to release.
    """

    def __init__(self, heartbeat: Path, account: str, run: Run, settings: Callable[[], Governed]) -> None:
        self._heartbeat = heartbeat
        self._account = account
        self._run = run
        self._settings = settings
        self._one_at_a_time = threading.Lock()
        self._epochs = Epochs(heartbeat.with_name(heartbeat.name + ".epoch"))
        self._drained: list[tuple[float, int]] = []
        """When nodes were drained within the last hour, and how many; forgotten when this program is started anew."""

    def do(self, asked: request.Request, now_s: float, epoch: int | None = None) -> list[rules.Command]:
        """Do it; what was run. Raises `Refused`, `Misconfigured`, `GatewayError`."""
        self._epochs.check(epoch)
        if isinstance(asked, Alive):
            rules.check_governs(asked.partitions, self._settings())
            write_heartbeat(self._heartbeat, now_s)
            return []
        if isinstance(asked, Awake):
            write_heartbeat(for_nodes(self._heartbeat), now_s)
            return []
        with self._one_at_a_time:
            self._epochs.check(epoch)  # a later leader may have asked while this one waited
            commands = self._commands(asked)
            if isinstance(asked, Drain):
                self._count(len(asked.nodes), now_s)
            for command in commands:
                self._run(command)
        return commands

    def _commands(self, asked: JobRequest | Drain | Resume) -> list[rules.Command]:
        if isinstance(asked, Drain | Resume):
            ask = slurm_records.ask_all_nodes() if isinstance(asked, Drain) else slurm_records.ask_nodes(asked.nodes)
            found = slurm_records.nodes(self._run(ask))
            return rules.commands_for_nodes(asked, found, self._settings(), self._account)
        answer = self._run(slurm_records.ask_job(asked.job))
        job = slurm_records.job(answer, asked.job)
        if job is None and "_" not in asked.job and slurm_records.is_array(answer):
            raise Refused(f"job {asked.job} is an array: name one task of it, as in {asked.job}_1")
        if job is None:
            raise Refused(f"Slurm knows no job {asked.job}, or has forgotten it")
        return rules.commands_for_job(asked, job, self._settings())

    def _count(self, nodes: int, now_s: float) -> None:
        rules.check_rate(nodes, self._drained, self._settings(), now_s)
        recent = [(at_s, count) for at_s, count in self._drained if abs(now_s - at_s) < rules.HOUR_S]
        self._drained = [*recent, (now_s, nodes)]


class Epochs:
    """The highest epoch of all requests, in this file too, if that can be written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._highest = _number_in(path)

    def check(self, epoch: int | None) -> None:
        """Raise `Refused` if a later leader has asked before."""
        if epoch is None:
            return
        with self._lock:
            if epoch < self._highest:
                raise Refused(
                    f"this control program has led in epoch {epoch}, and another one leads since, in {self._highest}"
                    f" (if there is none: remove {self._path}, and restart the steward)"
                )
            if epoch > self._highest:
                self._highest = epoch
                self._keep()

    def _keep(self) -> None:
        try:
            write_number(self._path, self._highest)
        except OSError as error:
            _log({"why": f"the epoch is not kept: {error}"})


def for_nodes(heartbeat: Path) -> Path:
    """The heartbeat that counts for drained nodes only: without the other one no job is held."""
    return heartbeat.with_name(heartbeat.name + ".nodes")


def write_heartbeat(path: Path, now_s: float) -> None:
    """Whole seconds since 1970; whoever reads meanwhile sees the last ones or these."""
    write_number(path, int(now_s))


def write_number(path: Path, number: int) -> None:
    """Write it so that whoever reads meanwhile sees the last one or this one."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(f"{number}\n", encoding="ascii")
    fresh.chmod(0o644)
    fresh.replace(path)


def _number_in(path: Path) -> int:
    """The number that was written there; 0 if there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def run_slurm(command: rules.Command) -> str:
    """Run one of Slurm's programs as this account. Raises `GatewayUnavailable`, `GatewayError`."""
    return programs.run(command, _ENVIRONMENT, timeout_s=COMMAND_LIMIT_S)


def answer(steward: Steward, line: bytes, now_s: float, log: Callable[[dict[str, object]], None]) -> dict[str, object]:
    """The answer to one line."""
    asked: request.Request | None = None
    try:
        heard = request.parse(line)
        asked = heard.request
        done = steward.do(asked, now_s, heard.epoch)
    except Refused as error:
        return _refused(log, asked, "refused", error)
    except (GatewayUnavailable, Misconfigured, OSError) as error:
        return _refused(log, asked, "away", error)
    except GatewayError as error:
        return _refused(log, asked, "refused", error)
    if not isinstance(asked, Alive | Awake):
        log({"asked": repr(asked), "done": [" ".join(command) for command in done]})
    return {"ok": True}


def _refused(
    log: Callable[[dict[str, object]], None], asked: request.Request | None, kind: str, error: Exception
) -> dict[str, object]:
    why = " ".join(str(error).split())[:500]
    log({"asked": repr(asked), "kind": kind, "why": why})
    return {"ok": False, "kind": kind, "why": why}


def _log(line: dict[str, object]) -> None:
    sys.stderr.write(json.dumps({"at_s": round(time.time(), 3), **line}) + "\n")
    sys.stderr.flush()


class Listener:
    """The socket, and a thread for each that comes."""

    def __init__(self, steward: Steward, listening: socket.socket, only_uid: int) -> None:
        self._steward = steward
        self._listening = listening
        self._only_uid = only_uid
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def serve(self) -> NoReturn:
        """Answer for ever."""
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:  # too many open files: some will be closed
                _log({"why": f"cannot answer: {error}"})
                time.sleep(_AGAIN_S)
                continue
            if (uid := peer(connection)) != self._only_uid:
                _log({"why": f"uid {uid} is not listened to"})
                connection.close()
                continue
            self._places.acquire()
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(PATIENCE_S)
                line = _line(connection)
                said = answer(self._steward, line, time.time(), _log)
                connection.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            _log({"why": f"the other side has gone: {error}"})
        finally:
            self._places.release()


def _line(connection: socket.socket) -> bytes:
    """One line, within the time that is given for all of it. Raises `TimeoutError`."""
    until_s = time.monotonic() + PATIENCE_S
    got = bytearray()
    while not got.endswith(b"\n") and len(got) <= request.LONGEST_BYTES:
        connection.settimeout(max(0.01, until_s - time.monotonic()))
        more = connection.recv(request.LONGEST_BYTES)
        if not more or time.monotonic() > until_s:
            break
        got += more
    return bytes(got[: request.LONGEST_BYTES])


def listen(path: Path) -> socket.socket:
    """The socket. Everybody may connect, since only the kernel's word on who is there counts."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    path.chmod(0o666)
    listening.listen(64)
    return listening


def main() -> NoReturn:
    """Entry point of `gleaner-steward`."""
    parser = argparse.ArgumentParser(prog="gleaner-steward", description="Does to Slurm what control may not.")
    parser.add_argument("--settings", type=Path, default=conf.FILE, help="default: %(default)s")
    os.umask(0o022)
    try:
        _listener(parser.parse_args().settings).serve()
    except Misconfigured as error:
        sys.exit(f"gleaner-steward: {error}")


def _listener(file: Path) -> Listener:
    settings = conf.load(file)
    try:
        only_uid = pwd.getpwnam(settings.control).pw_uid
        listening = listen(settings.socket)
    except KeyError as error:
        raise Misconfigured(f"there is no account {settings.control} here; see the line 'control'") from error
    except OSError as error:
        raise Misconfigured(f"cannot listen at {settings.socket}: {error.strerror}; see the line 'socket'") from error
    _log({"listening": str(settings.socket), "for": settings.control, "partitions": sorted(settings.partitions)})
    account = pwd.getpwuid(os.geteuid()).pw_name
    return Listener(Steward(settings.heartbeat, account, run_slurm, lambda: conf.load(file)), listening, only_uid)
