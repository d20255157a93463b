"""Change a container's configuration before runc reads it, namely its init, its sockets, Landlock and its user's name.

Init: process 1 is ours (`../init/init.c`). It is mounted over an empty file in /dev, where every container has a file
system that belongs to root. The job's program is a child of process 1. The init runs from a copy in the container's
bundle. A checkpoint contains its init, since CRIU restores a process only together with the very file from which it
ran. So a node whose init is newer or was compiled differently can also restore the checkpoint. Process 1 has the job's
rights, so a job gains nothing by forging it.

Landlock: no job can use it, because CRIU would restore the processes without their restrictions. A program that does
not find Landlock continues without it.

Sockets: seccomp rules restrict a job's sockets to UNIX, INET, INET6, and the routing kind of NETLINK. For other
families the kernel would load modules that are hardly maintained (such as AF_ALG, TIPC, RDS and SMC).

The user's name: the image does not know the uid under which a job runs, so programs that ask for the user's name
(getpwuid(3)) would find none. So a file /etc/passwd that belongs to root is mounted over the image's. The file is the
same on every node, because a process might have it open when it is saved. No file of the image is read.
"""

from __future__ import annotations  # the node may have Python 3.9

import base64
import json
import os
import zlib
from typing import Any

from ...system import atomic, untrusted

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""The errors that Python raises for a malformed file. They are caught only where such a file is read."""
INIT = "/dev/gleaner-init"
"""The path of process 1's program in a container."""
INIT_PROGRAM = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "init", "gleaner-init")
END = "/job/.gleaner-end"
"""The file in a container to which its init writes how the program has ended."""
_USER_FILE, _INIT_FILE = "passwd", "gleaner-init"
_LONGEST_INIT_BYTES = 2**22
_FAMILIES = (1, 2, 10)
"""UNIX, INET, INET6."""
_NETLINK, _ROUTE = 16, 0
_MOST_FAMILIES = 64
"""A number above those of all families in Linux. The filter denies numbers from here on, and every number that looks
like a family only in 32 bits."""
_CALLS = ("socket", "socketpair")
_LANDLOCK, ENOSYS = "landlock_create_ruleset", 38
"""The call with which a program begins to use Landlock, and the error that means "not supported" (landlock(7))."""
_OLD_CALL, _OLD_KINDS = "socketcall", (1, 8)
"""The call with which i386 programs once made sockets, and in which a filter cannot see the family.

Such programs can also use `socket`.
"""


def change(bundle: str, annotation: str) -> None:
    """Change config.json in a container's bundle if the container has the annotation.

    Raises `OSError`, or one of `MALFORMED`.
    """
    path = os.path.join(bundle, "config.json")
    with open(path, "rb") as file:
        config: dict[str, Any] = untrusted.json_of(file.read())
    if annotation not in (config.get("annotations") or ()):
        return
    restrict_calls(config)
    config["process"]["args"] = [INIT, END, *config["process"]["args"]]
    user = config["process"]["user"]
    names, init = (os.path.abspath(os.path.join(bundle, name)) for name in (_USER_FILE, _INIT_FILE))
    with open(INIT_PROGRAM, "rb") as file:
        atomic.replace(init, file.read(), mode=0o555)
    atomic.replace(names, passwd(int(user["uid"]), int(user["gid"])).encode(), mode=0o644)
    config["mounts"] = [
        *config["mounts"],
        _file("/etc/passwd", names, "rbind", "rprivate"),
        _file(INIT, init, "bind", "rprivate", "ro", "nosuid", "nodev"),
    ]
    atomic.replace(path, json.dumps(config).encode(), mode=os.stat(path).st_mode & 0o777)


def _file(destination: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": source, "options": list(options)}


def packed_init(bundle: str) -> str:
    """Return the init of the container in this bundle as text, for its checkpoint."""
    with open(os.path.join(bundle, _INIT_FILE), "rb") as file:
        return base64.b85encode(zlib.compress(file.read(), 1)).decode()


def put_init(bundle: str, packed: object) -> None:
    """Put the init of a checkpoint into the container that is to be restored.

    Raises `ValueError` if the init is malformed.
    """
    unpacking = zlib.decompressobj()
    try:
        program = unpacking.decompress(base64.b85decode(str(packed)), _LONGEST_INIT_BYTES)
    except zlib.error as error:
        raise ValueError(f"the checkpoint's init is not whole: {error}") from error
    if not unpacking.eof:
        raise ValueError(f"the checkpoint's init is not whole, or larger than {_LONGEST_INIT_BYTES} bytes")
    atomic.replace(os.path.join(bundle, _INIT_FILE), program, mode=0o555)


def passwd(uid: int, gid: int) -> str:
    """Return the contents of /etc/passwd (passwd(5)).

    >>> print(passwd(4200, 4200), end="")
    root:x:0:0:root:/root:/bin/sh
    gleaner:x:4200:4200:the job's user:/job:/bin/sh
    nobody:x:65534:65534:nobody:/nonexistent:/bin/false
    """
    return (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"gleaner:x:{uid}:{gid}:the job's user:/job:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    )


def denials() -> list[dict[str, Any]]:
    """Return the denying rules for a filter that allows what it does not name.

    A filter cannot express "all but these", so the rules name each other family and all higher numbers.
    """
    others = [number for number in range(_MOST_FAMILIES) if number not in (*_FAMILIES, _NETLINK)]
    wrong = [*(_is(0, number) for number in others), {"index": 0, "value": _MOST_FAMILIES, "op": "SCMP_CMP_GE"}]
    no_route = {"index": 2, "value": _ROUTE, "op": "SCMP_CMP_NE"}
    return [
        *(_deny(name, one) for name in _CALLS for one in wrong),
        *(_deny(name, _is(0, _NETLINK), no_route) for name in _CALLS),
        *(_deny(_OLD_CALL, _is(0, kind)) for kind in _OLD_KINDS),
        _NO_LANDLOCK,
    ]


def restrict_calls(config: dict[str, Any]) -> None:
    """Restrict sockets and Landlock in the configuration of a container that is about to be made.

    In a filter that allows only what it names, such as Docker's, `socketcall` of i386 stays allowed. libseccomp applies
    a rule that allows `socket` to the old call as well, and then no other rule can deny that call. If the engine is
    configured to use no filter, none is added. A malformed configuration raises the error that it causes.
    """
    linux: dict[str, Any] = config.get("linux") or dict[str, Any]()
    seccomp: dict[str, Any] | None = linux.get("seccomp")
    if seccomp:
        rules: list[dict[str, Any]] | None = seccomp.get("syscalls")
        seccomp["syscalls"] = _restrict(seccomp.get("defaultAction"), rules or [])


def _restrict(default: object, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if default in ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG"):
        return [*rules, *denials()]
    kept_rules: list[dict[str, Any]] = []
    for rule in rules:
        is_let = rule.get("action") in ("SCMP_ACT_ALLOW", "SCMP_ACT_LOG")
        names = [name for name in rule["names"] if not (is_let and name in (*_CALLS, _OLD_CALL, _LANDLOCK))]
        if names:
            kept_rules.append({**rule, "names": names})
    families = [[_is(0, family)] for family in _FAMILIES] + [[_is(0, _NETLINK), _is(2, _ROUTE)]]
    allowing = [{"names": [name], "action": "SCMP_ACT_ALLOW", "args": one} for name in _CALLS for one in families]
    return [*kept_rules, *allowing, _NO_LANDLOCK]


def _is(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _deny(name: str, *arguments: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "args": list(arguments)}


_NO_LANDLOCK: dict[str, Any] = {"names": [_LANDLOCK], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}
