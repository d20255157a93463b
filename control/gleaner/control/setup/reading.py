"""Ways to read one fact, none of which waits for long or raises: what cannot be read is `Unread`, with one line why."""

import http.client
import os
import pwd
import queue
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from gleaner.agent.privileged.common import system_programs
from gleaner.agent.system.untrusted import text_of
from gleaner.control.input_errors import one_line
from gleaner.control.settings import LOOPBACK
from gleaner.control.setup.facts import (
    HANGS,
    MISNAMED,
    UNTRUSTED,
    Certificate,
    Folder,
    FolderOnTheWay,
    Output,
    TextFile,
    Unread,
)

Value = TypeVar("Value")

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LARGEST_FILE = 2**20
_LARGEST_ANSWER = 2**20
_PASSED = ("SLURM_CONF", "PYTHONPATH")
_LONGEST_WHY = 200
_ACL = "system.posix_acl_access"
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's `ssl` has no name for."""
_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_START_TIME = 19
"""The place of the start time behind a program's name in `/proc/PID/stat` (proc_pid_stat(5))."""


def age_of_this_program_s() -> float:
    """Return the time since this program was started, by the kernel; 0 if it does not say."""
    try:
        fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        began_s = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)


def side_by_side(readers: Mapping[str, Callable[[], Value]], *, within_s: float) -> dict[str, Value | Unread]:
    """Call all readers at once, and return their answers by the same names, after `within_s` at the latest.

    The threads of readers that hang, for example in a storage, are left alone: they keep no program from its end.
    """
    answers: queue.SimpleQueue[tuple[str, Value | Unread]] = queue.SimpleQueue()

    def call(name: str, reader: Callable[[], Value]) -> None:
        try:
            answers.put((name, reader()))
        except Exception as error:
            answers.put((name, _unread(error)))

    for name, reader in readers.items():
        threading.Thread(target=call, args=(name, reader), daemon=True).start()
    found: dict[str, Value | Unread] = {}
    end_s = time.monotonic() + within_s
    while len(found) < len(readers):
        try:
            name, answer = answers.get(timeout=max(0.0, end_s - time.monotonic()))
        except queue.Empty:
            break
        found[name] = answer
    late = Unread(f"no answer within {within_s:g} s")
    return {name: found.get(name, late) for name in readers}


def _unread(error: Exception) -> Unread:
    if isinstance(error, OSError):
        said = error.strerror or str(error)
        where = f"{error.filename}: " if error.filename else ""
        return Unread(one_line(f"{where}{said}")[:_LONGEST_WHY], isinstance(error, FileNotFoundError))
    return Unread(one_line(f"{type(error).__name__}: {error}")[:_LONGEST_WHY])


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


def text_file(path: Path) -> TextFile | Unread:
    """Return a plain file: its text (a mebibyte at most), owner and mode. A pipe or a device is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                return Unread(f"{path} is no plain file")
            text, mode = text_of(file.read(_LARGEST_FILE)), stat.S_IMODE(facts.st_mode)
            return TextFile(text, facts.st_uid, mode, facts.st_gid, facts.st_mtime, tuple(_folders_to(path)))
    except FileNotFoundError:
        return Unread(f"there is no {path}", is_missing=True)
    except OSError as error:
        whose = owner_and_mode(path) if isinstance(error, PermissionError) else ""
        return Unread(f"{path} cannot be read: {error.strerror}{whose}")


def _folders_to(path: Path) -> Iterator[FolderOnTheWay]:
    """Yield the folders to a file, and to the file that it is a symbolic link to.

    Those with an access control list are left out: their mode does not say who may enter them.
    """
    for one in dict.fromkeys((*reversed(path.absolute().parents), *reversed(path.resolve().parents))):
        facts = one.stat()
        if not _has_access_list(one):
            yield FolderOnTheWay(str(one), facts.st_uid, facts.st_gid, stat.S_IMODE(facts.st_mode))


def _has_access_list(path: Path) -> bool:
    try:
        return _ACL in os.listxattr(path)
    except OSError:  # a file system without such attributes has no lists
        return False


def owner_and_mode(path: Path) -> str:
    """Return a file's owner and mode in brackets; empty if they cannot be seen."""
    try:
        facts = path.stat()
    except OSError:
        return ""
    try:
        owner = pwd.getpwuid(facts.st_uid).pw_name
    except KeyError:
        owner = f"uid {facts.st_uid}"
    return f" ({owner}'s, mode {stat.S_IMODE(facts.st_mode):o})"


def variable_of(program: str, name: str, *, uid: int = 0) -> str | Unread:
    """Return a variable in the environment of this account's program; empty if it is not set there."""
    for process in _processes(program, uid):
        try:
            words = (process / "environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError as error:
            return Unread(f"{process}/environ cannot be read: {error.strerror}")
        values = [text_of(word).partition("=")[2] for word in words if word.startswith(f"{name}=".encode())]
        return values[0] if values else ""
    return Unread(f"{program} does not run", is_missing=True)


def _processes(program: str, uid: int) -> Iterator[Path]:
    """Yield the folders in `/proc` of this account's processes of this name. Any user can give a process any name."""
    for process, name in _named_processes():
        with suppress(OSError):  # it has ended
            if name == program and process.stat().st_uid == uid:
                yield process


def _named_processes() -> Iterator[tuple[Path, str]]:
    """Yield the folder in `/proc` and the name, of 15 letters at most, of each process, the oldest number first."""
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            name = (process / "comm").read_text("utf-8", "replace").strip()
        except OSError:  # it has ended
            continue
        # Debian's slurmd is called slurmd-wlm once it has started itself anew, as it does at a reconfigure.
        yield process, name.removesuffix("-wlm")


def folder(path: Path) -> Folder | Unread:
    """Return a folder and the free space of its file system."""
    try:
        facts, space = path.stat(), os.statvfs(path)
    except FileNotFoundError:
        return Unread(f"there is no {path}", is_missing=True)
    except OSError as error:
        return Unread(f"{path} cannot be looked at: {error.strerror}")
    if not stat.S_ISDIR(facts.st_mode):
        return Unread(f"{path} is no folder")
    # Some file systems have no number of files that they can hold, and say 0 of 0.
    free_files = space.f_favail if space.f_files else sys.maxsize
    return Folder(
        uid=facts.st_uid,
        mode=stat.S_IMODE(facts.st_mode),
        free_bytes=space.f_bavail * space.f_frsize,
        free_files=free_files,
        path=str(path),
        all_bytes=space.f_blocks * space.f_frsize,
        all_files=space.f_files,
    )


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer over HTTP. The times are of this machine's clock, seconds since the epoch."""

    status: int
    body: bytes
    asked_s: float
    answered_s: float
    certificate: Certificate | None
    is_here: bool = False
    """True if the server is on this machine."""


def ask(
    url: str, path: str, ca_file: Path | None, *, within_s: float, token: str = "", padding: int = 0
) -> HttpAnswer | Unread:
    """Ask a server one question, `padding` bytes longer than need be.

    No proxy is used, and a token never travels in the clear off this machine.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 8642
    except ValueError:
        return Unread(f"{url!r} is no address; it must be like https://HOST:8642")
    if parts.scheme not in {"http", "https"} or not host:
        return Unread(f"{url!r} is no address; it must be like https://HOST:8642")
    if token and parts.scheme == "http" and host not in LOOPBACK:
        return Unread(f"{url}: off this machine the token must not travel in the clear; use https://")
    try:
        connection = _connection(parts.scheme, host, port, ca_file, within_s=within_s)
    except (OSError, ssl.SSLError) as error:
        return Unread(one_line(f"ca_file {ca_file}: {getattr(error, 'strerror', None) or error}"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if padding:
        headers["X-Padding"] = "-" * padding
    where = f"{host} port {port}"
    try:
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        where = where if address == host else f"{host} ({address} here) port {port}"
        connection.connect()
        certificate = _certificate_of(connection.sock) if isinstance(connection.sock, ssl.SSLSocket) else None
        # Only a connection within one machine has the same address at both of its ends.
        is_here = connection.sock.getsockname()[0] == connection.sock.getpeername()[0]
        asked_s = time.time()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answered_s = time.time()
        body = answer.read(_LARGEST_ANSWER)
        return HttpAnswer(answer.status, body, asked_s, answered_s, certificate, is_here)
    except ssl.SSLCertVerificationError as error:
        return Unread(f"the certificate of {host} {_refusal(error)}")
    except TimeoutError:
        accepts = f" {HANGS}: it" if connection.sock is not None else ""
        return Unread(f"{where}{accepts} did not answer within {within_s:g} s")
    except (OSError, http.client.HTTPException) as error:
        return Unread(one_line(f"{where}: {getattr(error, 'strerror', None) or error or type(error).__name__}"))
    finally:
        connection.close()


def _connection(
    scheme: str, host: str, port: int, ca_file: Path | None, *, within_s: float
) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=within_s)
    context = ssl.create_default_context(cafile=ca_file)
    return http.client.HTTPSConnection(host, port, timeout=within_s, context=context)


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
        return Unread(f"{certificate} {_refusal(error)}")
    except (ssl.SSLError, ValueError) as error:
        return Unread(one_line(f"{certificate}: {error}"))


def _refusal(error: ssl.SSLCertVerificationError) -> str:
    why = MISNAMED if error.verify_code in _OTHER_NAME else UNTRUSTED
    return f"{why}: {one_line(error.verify_message)}"


def answers(path: Path, *, within_s: float) -> str | Unread:
    """Return an empty text if the program at this socket answers an empty request, or closes the connection."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(within_s)
        try:
            connection.connect(str(path))
        except OSError as error:
            return Unread(f"nobody listens at {path}: {error.strerror or error}", isinstance(error, FileNotFoundError))
        try:
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        except TimeoutError:
            return Unread(f"{path} did not answer within {within_s:g} s")
        except OSError as error:
            return Unread(f"{path} did not answer: {error.strerror or error}")
    return ""


def running(programs: Sequence[str]) -> tuple[str, ...]:
    """Return those of these programs, by path, that run now: their path is one of the first words of a process.

    A process that somebody has stopped does not run.
    """
    found: set[str] = set()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")[:3]
            state = process.with_name("stat").read_bytes().rpartition(b")")[2].split()[:1]
        except OSError:  # it has ended
            continue
        if state != [b"T"]:
            found |= {program for program in programs if program.encode() in words}
    return tuple(sorted(found))


def running_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return those of these names, of 15 letters at most, that a process has for itself now."""
    found = {name for _, name in _named_processes()}
    return tuple(name for name in names if name in found)


def limits_of(program: str, *, uid: int = 0) -> str | Unread:
    """Return the limits of this account's program, as the kernel prints them."""
    for process in _processes(program, uid):
        with suppress(OSError):  # it has ended
            return (process / "limits").read_text("utf-8", "replace")
    return Unread(f"{program} does not run here")
