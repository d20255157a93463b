"""CRIU's log in plain words: why a job cannot be saved, and what its owner can do about it. Pure.

`KINDS` is the table. The docs (docs/saving.md) have the same one.
"""

import re
from dataclasses import dataclass

from gleaner.agent.runtime.interface import CannotCheckpoint

_LONGEST = 300
_OURS = "criu.py"
"""The shim writes its own reasons into CRIU's log under this name. They are plain words already."""
_IF_THE_PROGRAM_CHANGES = "it can be saved "
"""These words are in each reason of the shim's that lies in the program. What follows is what to do."""
_ERROR = re.compile(
    r"^\(\d+\.\d+\)\s*(?:pie: *)?(?:\d+:\s*)?Error \((?P<file>[\w./-]+):\d+\):\s*(?P<said>.+?)\s*$", re.MULTILINE
)
_HARMLESS = re.compile(r"RLIMIT_NOFILE for self|Unable to create tun|exited, status=")
"""Errors that CRIU reports although all goes well."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure."""

    said: str
    """CRIU's text, as a regular expression. Its named groups can be used in `reason`."""
    reason: str
    """The rest of a sentence that begins with "it"."""
    advice: str
    lasts: bool = True
    """True if the program itself is the reason, so that every node says the same."""


_NO_NETWORK = "let its processes talk through pipes or Unix sockets"
_NO_QUEUE = "use a pipe or a Unix socket instead"
_BY_ITSELF = "let the program save itself (saves_itself)"

KINDS = (
    Kind(
        r"sockets: Can't get 1:(16|34) opt: Operation not supported",
        "has an internet socket open, and this node's CRIU is too old to save one with Linux 6.16 or newer",
        f"{_NO_NETWORK}, or ask an admin for CRIU 4.2",
    ),
    Kind(r"inet: Connected TCP socket", "has an open TCP connection", _NO_NETWORK),
    Kind(
        r"inet: (Unsupported|Unknown|Can't dump)|sockets: (Unknown|Sockets .* are not collected)|Unknown socket family",
        "has a socket open of a kind that cannot be saved",
        _NO_NETWORK,
    ),
    Kind(
        r"inet: In-flight connection|unix: .*[Ii]n-flight",
        "has a connection that waits to be accepted",
        "accept connections at once",
        lasts=False,
    ),
    Kind(
        r"unix: (External socket is used|Can't dump half of stream|Can't dump name-less external)",
        "is connected to a program outside of its container",
        "close the connection",
    ),
    Kind(
        r"fsnotify: ",
        "watches a file or a folder outside of /job (inotify)",
        "let it watch only what lies in /job, or look now and then instead",
    ),
    Kind(
        r"Can't lookup mount=\S+ for fd=\S+ path=(?P<path>\S+)",
        "has {path} open, which lies on no disk of its container, as a POSIX message queue (mq_open) does",
        _NO_QUEUE,
    ),
    Kind(r"mqueue isn't empty", "has a POSIX message queue (mq_open)", _NO_QUEUE),
    Kind(
        r"Can't link remap to|Unaccessible path opened",
        "holds a file open that is deleted or replaced, and that has another name still (a hard link)",
        "close the file, or delete its other names too",
    ),
    Kind(
        r"Can't dump ghost file (?P<path>.+) of (?P<size>\d+) size",
        "holds {path} open, a deleted file of {size} bytes, and at most 1 GiB is saved of such a file",
        "delete the file only when it is closed",
    ),
    Kind(
        r"Can't dump file \d+ of that type \[\d+\] \((?P<what>[^)]*)\)",
        "has something open that cannot be saved ({what}), as a GPU or another device",
        _BY_ITSELF,
    ),
    Kind(
        r"Can't handle non-regular mapping|handle_device_vma",
        "has mapped the memory of a device, as of a GPU",
        _BY_ITSELF,
    ),
    Kind(
        r"packetized mode for pipes",
        "has a pipe in packet mode (O_DIRECT)",
        "make the pipe without O_DIRECT",
    ),
    Kind(
        r"ctty inheritance detected",
        "has a process that has opened its terminal by the name /dev/tty, as an interactive shell does",
        "run the program without a terminal",
    ),
    Kind(
        r"Command 66 for daemon failed|Can't splice all pages",
        "has memory that CRIU cannot read, as the guard pages of threads with glibc 2.42",
        "ask an admin for CRIU 4.2, or use an older image",
    ),
    Kind(r"running in 32-bit mode", "runs a program for 32-bit processors", "build the program for 64 bit"),
    Kind(
        r"Can't dump nested (?P<what>\w+) namespace",
        "has a process in a {what} namespace of its own (unshare, a sandbox)",
        "run it without the sandbox",
    ),
    Kind(
        r"Unable to freeze cgroup|Timeout reached",
        "did not stand still in time, as while it waits for a slow disk",
        "nothing is to be done unless it happens again",
        lasts=False,
    ),
)


def criu_reason(log: str) -> str:
    r"""Return CRIU's first error that matters, in one bounded line; those after it are consequences. "" if none.

    >>> criu_reason("(00.1) Error (criu/x.c:1): files: no\n(00.2) Error (criu/cr-dump.c:2111): Dumping FAILED.\n")
    'files: no'
    """
    return next((said for _, said in _errors(log)), "")


def cannot_checkpoint(log: str, otherwise: str) -> CannotCheckpoint:
    """Return the error for a save after which CRIU has left this log; `otherwise` says why if the log does not.

    >>> str(cannot_checkpoint("(00.1) Error (criu/filesystems.c:650): mqueue isn't empty", ""))
    "it has a POSIX message queue (mq_open): use a pipe or a Unix socket instead (CRIU: mqueue isn't empty)"
    """
    errors = _errors(log)
    for file, said in errors:
        if file == _OURS:
            return CannotCheckpoint(said, lasts=_IF_THE_PROGRAM_CHANGES in said)
        for kind in KINDS:
            if (found := re.search(kind.said, said)) is not None:
                reason = kind.reason.format(**found.groupdict(default="a file"))
                return CannotCheckpoint(f"it {reason}: {kind.advice} (CRIU: {said})", lasts=kind.lasts)
    said = next((said for _, said in errors), "") or _one_line(otherwise)
    return CannotCheckpoint(f"CRIU cannot save it: {said}")


def _errors(log: str) -> list[tuple[str, str]]:
    """Return the file of CRIU's source and the text of each error that matters."""
    found = [(error["file"], _one_line(error["said"])) for error in _ERROR.finditer(log)]
    return [(file, said) for file, said in found if not _HARMLESS.search(said)]


def _one_line(text: str) -> str:
    r"""Return a text without control characters, cut where it is long.

    >>> _one_line("fsnotify: \tCan't\x1b[31m")
    "fsnotify: Can't [31m"
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:_LONGEST]
