"""Internet sockets, which an older CRIU does not save on a newer Linux.

CRIU before 4.2 asks each socket for SO_PASSCRED, and Linux since 6.16 answers that for sockets of a few families only.
A save then fails whenever the job has an internet socket open, of whatever kind.
"""

import errno
import socket

from gleaner.agent.node.compatibility import version

SAVED_SINCE = "4.2"


def warning(criu: str, kernel: str, *, is_asked_in_vain: bool) -> str:
    """Return a line for the admin if this CRIU cannot save internet sockets; "" if it can, or if there is no CRIU.

    >>> warning("4.1.1", "6.18.1", is_asked_in_vain=True)
    'CRIU 4.1.1 saves no job that has an internet socket open on Linux 6.18.1: install CRIU 4.2 or newer'
    >>> warning("4.2", "6.18.1", is_asked_in_vain=True), warning("4.1.1", "6.1", is_asked_in_vain=False)
    ('', '')
    """
    if not criu or not is_asked_in_vain or version(criu) >= version(SAVED_SINCE):
        return ""
    return (
        f"CRIU {criu} saves no job that has an internet socket open on Linux {kernel}: "
        f"install CRIU {SAVED_SINCE} or newer"
    )


def is_asked_in_vain() -> bool:
    """Return True if this node's kernel does not tell whether an internet socket passes credentials."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
    except OSError as error:
        return error.errno == errno.EOPNOTSUPP
    return False
