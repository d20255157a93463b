"""One kind of process, and what its program may use.

A program says `rest()` where it is saved and restored on another node; what follows must hold then.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gleaner.agent.node.compatibility import version

PREAMBLE = """
import ctypes, fcntl, hashlib, mmap, multiprocessing, os, select, signal, socket, struct, subprocess, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def rest():
    print("ready", flush=True)
    while not os.path.exists("/job/stop"):
        time.sleep(0.02)
def within(is_so):
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "too late"
        time.sleep(0.01)
def child(do):
    pid = os.fork()
    if pid == 0:
        os._exit(do() or 0)
    return pid
def code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def file(path, content, mode="w+b"):
    made = open(path, mode, buffering=0)
    made.write(content)
    made.seek(0)
    return made
def mapped(path, content, **options):
    made = file(path, content)
    return mmap.mmap(made.fileno(), len(content), **options)
"""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions on a node that decide which kinds are saved there."""

    linux: str
    criu: str
    cgroups: int
    """1, also where version 2 is there but does not freeze containers; else 2."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the versions of a node, also in words."""

    words: str
    is_met: Callable[[Versions], bool]


CGROUPS_1 = Condition("cgroups of version 1", lambda node: node.cgroups == 1)
PASSCRED = Condition(
    "Linux 6.16 or newer and CRIU older than 4.2",
    lambda node: version(node.linux) >= version("6.16") and version(node.criu) < version("4.2"),
)
GUARDS = Condition(
    "Linux 6.13 to 6.15, or with a newer one and CRIU older than 4.2",
    lambda node: (
        version(node.linux) >= version("6.13")
        and (version(node.linux) < version("6.16") or version(node.criu) < version("4.2"))
    ),
)
"""Linux has guard pages since 6.13. Since 6.16 it tells of them all that CRIU needs, which asks since 4.2 (CRIU pull
request 2652)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of process."""

    what: str
    """A few words: a job has this."""
    program: str
    refused: str = ""
    """A part of the reason why it is not saved; "" if it is saved."""
    only_with: Condition | None = None
    """The condition under which a node refuses it; other nodes save it. None: every node refuses it."""
    but: str = ""
    """The difference from before; "" if there is none."""
    brief: bool = False
    """True for a kind that `make test` tries, too."""
    exit_code: int = 0
    """The program ends with it after the restore."""
    both_ways: bool = False
    """True for a kind that is also saved by the node helper and restored by Docker, not only the other way round."""
    saved_twice: bool = False
    """True for a kind that is saved once before, and goes on: what CRIU leaves of that save could break the next."""

    @property
    def promise(self) -> str:
        """Return the words of the docs."""
        if not self.refused:
            return f"continues, {self.but}" if self.but else "continues"
        return f"not saved{f' with {self.only_with.words}' if self.only_with else ''}"

    def is_refused(self, node: Versions) -> bool:
        """Return True if this node does not save it."""
        return bool(self.refused) and (self.only_with is None or self.only_with.is_met(node))
