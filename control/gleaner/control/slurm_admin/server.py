"""`gleaner-slurm-admin`: the only program that executes Slurm commands which an ordinary user is not allowed to
execute.

The program listens on a Unix socket, and accepts only the account of the control program (SO_PEERCRED, set by the
kernel). Each connection carries one request and its answer, each as one line of JSON. `request` lists all possible
requests, and `rules` all actions for them. The program reads the job or the nodes itself each time, and never relies on
control's knowledge. It writes each action and each refusal as one line of JSON to stderr.

A request carries the epoch of its control program. If the epoch is lower than an earlier one, that program no longer
leads, and the request is refused. The highest epoch is stored in a file beside the heartbeat, so that it survives a
restart. A request without an epoch is not compared, because it comes from a person and not from a control program.
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

from gleaner.agent.privileged.common.request import Refused
from gleaner.agent.system import atomic, ipc
from gleaner.agent.system.ipc import Refusal, Server
from gleaner.control.slurm import parse
from gleaner.control.slurm import run as programs
from gleaner.control.slurm.interface import ClusterError, ClusterUnavailable
from gleaner.control.slurm_admin import request, rules
from gleaner.control.slurm_admin import settings as admin_settings
from gleaner.control.slurm_admin.request import Alive, Awake, Drain, JobRequest, Resume
from gleaner.control.slurm_admin.settings import SlurmAdminSettings, WrongSettings

PATIENCE_S = 10.0
"""The time limit for receiving a request, and for sending an answer."""
COMMAND_LIMIT_S = 15.0
_AT_ONCE = 16

Run = Callable[[rules.Command], str]
"""A function that runs one of Slurm's programs and returns its output. Raises `ClusterError`."""


class SlurmAdmin:
    """The execution of requests, one after the other. Only heartbeats do not have to wait their turn.

    The settings are read again for each request, as slurmctld's script reads them for each job. Otherwise that script
    could hold jobs that this program refuses to release.
    """

    def __init__(self, heartbeat: Path, account: str, run: Run, settings: Callable[[], SlurmAdminSettings]) -> None:
        self._heartbeat = heartbeat
        self._account = account
        self._run = run
        self._settings = settings
        self._one_at_a_time = threading.Lock()
        self._epochs = Epochs(heartbeat.with_name(heartbeat.name + ".epoch"))
        self._drained: list[tuple[float, int]] = []
        """The times of the drains within the last hour, each with its number of nodes. They are lost at a restart."""

    def do(self, asked: request.Request, now_s: float, epoch: int | None = None) -> list[rules.Command]:
        """Execute a request, and return the commands that were run.

        Raises `Refused`, `WrongSettings`, `ClusterError`.
        """
        self._epochs.check(epoch)
        if isinstance(asked, Alive):
            rules.check_partitions(asked.partitions, self._settings())
            write_heartbeat(self._heartbeat, now_s)
            return []
        if isinstance(asked, Awake):
            write_heartbeat(for_nodes(self._heartbeat), now_s)
            return []
        with self._one_at_a_time:
            self._epochs.check(epoch)  # a later leader might have sent a request while this one waited
            commands = self._commands(asked)
            if isinstance(asked, Drain):
                self._count(len(asked.nodes), now_s)
            for command in commands:
                self._run(command)
        return commands

    def _commands(self, asked: JobRequest | Drain | Resume) -> list[rules.Command]:
        word = parse.new_word()
        if isinstance(asked, Drain | Resume):
            named = asked.nodes if isinstance(asked, Resume) else ()  # for a drain, all drained nodes count
            found = parse.parse_tables(self._run(parse.ask_nodes(word, named)), "", word)
            if found.gaps:  # a missing node might be a drained one, which would count
                raise Refused(found.gaps)
            return rules.commands_for_nodes(asked, found.nodes, self._settings(), self._account)
        answer = self._run(parse.ask_job(word, asked.job))
        job = parse.parse_job(answer, word, asked.job)
        if job is None and answer.startswith(f"{asked.job}_"):
            raise Refused(f"job {asked.job} is an array: name one task of it, as in {asked.job}_1")
        if job is None:
            raise Refused(f"Slurm knows no job {asked.job}, or has forgotten it")
        return rules.commands_for_job(asked, job, self._settings())

    def _count(self, nodes: int, now_s: float) -> None:
        rules.check_rate(nodes, self._drained, self._settings(), now_s)
        recent = [(at_s, count) for at_s, count in self._drained if abs(now_s - at_s) < rules.HOUR_S]
        self._drained = [*recent, (now_s, nodes)]


class Epochs:
    """The highest epoch of all requests. It is also stored in a file if the file is writable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._highest = _number_in(path)

    def check(self, epoch: int | None) -> None:
        """Raise `Refused` if a later leader has already sent a request."""
        if epoch is None:
            return
        with self._lock:
            if epoch < self._highest:
                raise Refused(
                    f"this control program has led in epoch {epoch}, and another one leads since, in {self._highest}"
                    f" (if there is none: remove {self._path}, and restart the Slurm admin service)"
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
    """Return the file of the heartbeat for drained nodes only. As long as only this heartbeat is written, no job is
    held."""
    return heartbeat.with_name(heartbeat.name + ".nodes")


def write_heartbeat(path: Path, now_s: float) -> None:
    """Write the time in whole seconds since 1970. A concurrent reader sees the old time or the new one."""
    write_number(path, int(now_s))


def write_number(path: Path, number: int) -> None:
    """Write the number to the file. A concurrent reader sees the old number or the new one."""
    atomic.replace(path, f"{number}\n".encode("ascii"), mode=0o644)


def _number_in(path: Path) -> int:
    """Return the number in the file, or 0 if there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def run_slurm(command: rules.Command) -> str:
    """Run one of Slurm's programs as this account, and return its output.

    Raises `ClusterUnavailable` or `ClusterError`.
    """
    return programs.run(command, timeout_s=COMMAND_LIMIT_S)


def answer(
    slurm_admin: SlurmAdmin, line: bytes, now_s: float, log: Callable[[dict[str, object]], None]
) -> dict[str, object]:
    """Execute the request in one line, log it, and return the answer."""
    asked: request.Request | None = None
    try:
        heard = request.parse(line)
        asked = heard.request
        done = slurm_admin.do(asked, now_s, heard.epoch)
    except Refused as error:
        return _refused(log, asked, "refused", error)
    except (ClusterUnavailable, WrongSettings, OSError) as error:
        return _refused(log, asked, "away", error)
    except ClusterError as error:
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
    """The socket, and the only user whose requests are accepted."""

    def __init__(self, slurm_admin: SlurmAdmin, listening: socket.socket, only_uid: int) -> None:
        self._slurm_admin = slurm_admin
        self._listening = listening
        self._only_uid = only_uid
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def serve(self) -> NoReturn:
        """Answer requests forever."""
        Server(
            admit=self._admit,
            converse=self._converse,
            release=lambda _: self._places.release(),
            report=lambda line: _log({"why": line}),
        ).serve(self._listening)

    def _admit(self, uid: int) -> None:
        if uid != self._only_uid:
            raise Refusal(f"uid {uid} is not listened to")
        self._places.acquire()

    def _converse(self, connection: socket.socket, _uid: int) -> None:
        try:
            connection.settimeout(PATIENCE_S)
            line = ipc.line(connection, longest_bytes=request.LONGEST_BYTES, within_s=PATIENCE_S)
            said = answer(self._slurm_admin, line, time.time(), _log)
            connection.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            _log({"why": f"the other side has gone: {error}"})


def listen(path: Path) -> socket.socket:
    """Return the listening socket. All users can connect, because the kernel tells the program who has connected."""
    return ipc.listen(str(path), mode=0o666)


def main() -> NoReturn:
    """Run `gleaner-slurm-admin`."""
    parser = argparse.ArgumentParser(prog="gleaner-slurm-admin", description="Carry out control's orders in Slurm.")
    parser.add_argument("--settings", type=Path, default=admin_settings.FILE, help="default: %(default)s")
    os.umask(0o022)
    try:
        _listener(parser.parse_args().settings).serve()
    except WrongSettings as error:
        sys.exit(f"gleaner-slurm-admin: {error}")


def _listener(file: Path) -> Listener:
    settings = admin_settings.load(file)
    try:
        only_uid = pwd.getpwnam(settings.control).pw_uid
        listening = listen(settings.socket)
    except KeyError as error:
        raise WrongSettings(f"there is no account {settings.control} here; see the line 'control'") from error
    except OSError as error:
        raise WrongSettings(f"cannot listen at {settings.socket}: {error.strerror}; see the line 'socket'") from error
    _log({"listening": str(settings.socket), "for": settings.control, "partitions": sorted(settings.partitions)})
    account = pwd.getpwuid(os.geteuid()).pw_name
    return Listener(
        SlurmAdmin(settings.heartbeat, account, run_slurm, lambda: admin_settings.load(file)), listening, only_uid
    )
