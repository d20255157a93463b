"""The name of a job's user in its container: a file /etc/passwd of root's own, mounted over the image's.

The image does not know the number that a job runs as, so programs that ask for the user's name (getpwuid(3)) would find
none. The file is the same on every node, as a process may have it open when it is saved. Nothing of the image is read.
"""

from __future__ import annotations  # the node may have Python 3.9

from typing import Any

NAME = "gleaner"
FILE = "passwd"
_PLACE = "/etc/passwd"
_HOME = "/job"


def passwd(uid: int, gid: int) -> str:
    """Return the file's content (passwd(5)).

    >>> print(passwd(4200, 4200), end="")
    root:x:0:0:root:/root:/bin/sh
    gleaner:x:4200:4200:the job's user:/job:/bin/sh
    nobody:x:65534:65534:nobody:/nonexistent:/bin/false
    """
    return (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"{NAME}:x:{uid}:{gid}:the job's user:{_HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    )


def mount(source: str) -> dict[str, Any]:
    """Return the mount of such a file for a container's configuration (OCI runtime-spec, config.md)."""
    return {"destination": _PLACE, "type": "bind", "source": source, "options": ["rbind", "rprivate"]}
