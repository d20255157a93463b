"""Explain CRIU's log in plain words: why a job cannot be saved, and what its owner can do about it. Pure.

`KINDS` is the table of all kinds of failures, which is also in the docs (docs/user/saving.md).
"""

import re
from dataclasses import dataclass

from gleaner.agent.messages import ReturnReason
from gleaner.agent.privileged.shim import unsavable
from gleaner.agent.runtime.interface import CannotCheckpoint, CannotRestore

_LONGEST = 300
_ERROR = re.compile(
    r"^(?:\(\d+\.\d+\))?\s*(?:pie: *)?(?:\d+:\s*)?Error \((?P<file>[\w./-]+):\d+\):\s*(?P<text>.+?)\s*$", re.MULTILINE
)
_WHY_OF_OWN = {unsavable.LASTS: ReturnReason.UNSAVABLE, unsavable.PASSES: ReturnReason.SAVE_FAILED}
_NODE_LACKS = re.compile(r"required by image is not supported on host|Can't restore 0x\w+ mapping with 0xf+4$")
"""Errors of a restore when the node lacks something, either a feature of its processor or room for huge pages."""
_HARMLESS = re.compile(r"RLIMIT_NOFILE for self|Unable to create tun|exited, status=")
"""Errors that CRIU reports although nothing is wrong."""


@dataclass(frozen=True, slots=True)
class CriuFault:
    """One kind of failure."""

    pattern: str
    """A regular expression for CRIU's text. Its named groups can be used in `reason`."""
    reason: str
    """The rest of a sentence that begins with "it"."""
    advice: str
    why: ReturnReason = ReturnReason.UNSAVABLE
    """SAVE_FAILED if the next try might succeed, and NODE_LACKS if a try on another node might."""


_NO_NETWORK = "let its processes talk through pipes or Unix sockets"
_NO_QUEUE = "use a pipe or a Unix socket instead"
_BY_ITSELF = "let the program save itself (saves_itself)"

KINDS = (
    CriuFault(
        r"sockets: Can't get 1:(16|34) opt: Operation not supported",
        "has an internet socket open, and this node's CRIU is too old to save one with Linux 6.16 or newer",
        f"{_NO_NETWORK}, or ask an admin for CRIU 4.2",
    ),
    CriuFault(r"inet: Connected TCP socket", "has an open TCP connection", _NO_NETWORK, ReturnReason.SAVE_FAILED),
    CriuFault(
        r"inet: (Unsupported|Unknown|Can't dump)|sockets: (Unknown|Sockets .* are not collected)|Unknown socket family",
        "has a socket open of a kind that cannot be saved",
        _NO_NETWORK,
    ),
    CriuFault(
        r"inet: In-flight connection|unix: .*[Ii]n-flight",
        "has a connection that waits to be accepted",
        "accept connections at once",
        ReturnReason.SAVE_FAILED,
    ),
    CriuFault(
        r"unix: (External socket is used|Can't dump half of stream|Can't dump name-less external)",
        "is connected to a program outside of its container",
        "close the connection",
    ),
    CriuFault(
        r"fsnotify: ",
        "watches a file or a folder outside of /job (inotify)",
        "let it watch only what lies in /job, or look now and then instead",
    ),
    CriuFault(
        r"netlink: The socket has data to read",
        "has a netlink socket with an answer that it has not read",
        "read the answer at once",
        ReturnReason.SAVE_FAILED,
    ),
    CriuFault(r"path=/anon_hugepage", "has memory in huge pages (MAP_HUGETLB)", "use ordinary memory"),
    CriuFault(
        r"Can't lookup mount=\S+ for fd=\S+ path=(?P<path>\S+)",
        "has {path} open, which lies on no disk of its container, as a POSIX message queue (mq_open) does",
        _NO_QUEUE,
    ),
    CriuFault(r"mqueue isn't empty", "has a POSIX message queue (mq_open)", _NO_QUEUE),
    CriuFault(
        r"Can't dump ghost file (?P<path>.+) of (?P<size>\d+) size",
        "holds {path} open, a deleted file of {size} bytes, and at most 1 GiB is saved of such a file",
        "delete the file only when it is closed",
    ),
    CriuFault(
        r"Can't dump file \d+ of that type \[\d+\] \((?P<what>[^)]*)\)|non-regular mapping|handle_device_vma",
        "has something open or mapped that cannot be saved ({what}), such as a device or a file of the kernel",
        f"close it, or {_BY_ITSELF}",
    ),
    CriuFault(r"Unknown file lock: .* LEASE", "has a lease on a file (F_SETLEASE)", "release the lease, or use a lock"),
    CriuFault(
        r"Unable to convert the notify thread id",
        "has a timer that sends its signal to one thread (timer_create with SIGEV_THREAD_ID)",
        "let the timer signal the whole process (SIGEV_SIGNAL)",
    ),
    CriuFault(
        r"pagemap-cache: (pmc_init: Can't allocate|Can't read)",
        "has reserved more addresses for memory than CRIU can look through",
        "let the program reserve less",
    ),
    CriuFault(r"packetized mode for pipes", "has a pipe in packet mode (O_DIRECT)", "make the pipe without O_DIRECT"),
    CriuFault(
        r"ctty inheritance detected",
        "has a process that has opened its terminal by the name /dev/tty, as an interactive shell does",
        "run the program without a terminal",
    ),
    CriuFault(
        r"Command 66 for daemon failed|Can't splice all pages",
        "has memory that CRIU cannot read, such as the guard pages of threads with glibc 2.42",
        "ask an admin for CRIU 4.2, or use an older image",
    ),
    CriuFault(
        r"Can't set FPU registers|has rseq but kernel lacks|execvp\(.* failed: No such file",
        "cannot be saved by this node's CRIU, which is too old for the node, or lacks a program that it calls",
        "ask an admin for a newer CRIU, or for that program",
        ReturnReason.NODE_LACKS,
    ),
    CriuFault(r"running in 32-bit mode", "runs a program for 32-bit processors", "build the program for 64 bit"),
    CriuFault(
        r"Unable to freeze cgroup|Timeout reached|Unseizable non-zombie|task not interrupted after seize",
        "did not stand still in time, for example while it waits for a slow disk",
        "let it write less at once, or ask an admin if the node is overloaded",
        ReturnReason.SAVE_FAILED,
    ),
    CriuFault(
        r"^not all processes could be stopped within",
        "has a process that cannot be stopped, such as one that waits for a disk or a file system that does not answer",
        f"ask an admin if a disk hangs; if other nodes report the same, {_BY_ITSELF}",
    ),
)


def cannot_checkpoint(log: str, otherwise: str) -> CannotCheckpoint:
    """Return the error for a save after which CRIU left this log. `otherwise` is the reason if the log contains none.

    The shim's own reasons are already in plain words and are used unless the table has a better one.

    >>> str(cannot_checkpoint("(00.1) Error (criu/filesystems.c:650): mqueue isn't empty", ""))
    "it has a POSIX message queue (mq_open): use a pipe or a Unix socket instead (CRIU: mqueue isn't empty)"
    """
    errors = _errors(log)
    for file, text in errors:
        for kind in KINDS:
            if (match := re.search(kind.pattern, text)) is not None:
                reason = kind.reason.format(**match.groupdict(default="a device"))
                return CannotCheckpoint(f"it {reason}: {kind.advice} (CRIU: {text})", kind.why)
        if file in _WHY_OF_OWN:
            return CannotCheckpoint(text, _WHY_OF_OWN[file])
    first = errors[0][1] if errors else _one_line(otherwise)  # later errors are consequences
    return CannotCheckpoint(f"CRIU cannot save it: {first}")


def cannot_restore(log: str, otherwise: str) -> CannotRestore:
    """Return the error for a restore, as `cannot_checkpoint` does for a save.

    >>> str(cannot_restore("(00.0) Error (gleaner/passes:0): its written files cannot be put back: no", ""))
    'its written files cannot be put back: no'
    """
    file, text = next(iter(_errors(log)), ("", _one_line(otherwise)))
    if file in _WHY_OF_OWN:
        return CannotRestore(text)
    why = ReturnReason.INCOMPATIBLE if _NODE_LACKS.search(text) else ReturnReason.CANNOT_RESTORE
    return CannotRestore(f"CRIU cannot restore it: {text}", why)


def _errors(log: str) -> list[tuple[str, str]]:
    """Return CRIU's source file and the text of each error that matters."""
    errors = [(error["file"], _one_line(error["text"])) for error in _ERROR.finditer(log)]
    return [(file, text) for file, text in errors if not _HARMLESS.search(text)]


def _one_line(text: str) -> str:
    r"""Return a text without control characters, truncated if it is long.

    >>> _one_line("fsnotify: \tCan't\x1b[31m")
    "fsnotify: Can't [31m"
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(plain.split())[:_LONGEST]
