"""One kind of process, and what its program may use.

A program says `rest()` where it is saved and restored on another node; what follows must hold then.
"""

import platform
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
class Kind:
    """One kind of process."""

    what: str
    """A few words: a job has this."""
    program: str
    refused: str = ""
    """A part of the reason why it is not saved; "" if it is saved."""
    since: str = ""
    """The version of Linux since which it is refused; before that it is saved. "": whatever Linux there is."""
    but: str = ""
    """The difference from before; "" if there is none."""
    brief: bool = False
    """True for a kind that `make test` tries, too."""
    both_ways: bool = False
    """True for a kind that is also saved by the node helper and restored by Docker, not only the other way round."""

    @property
    def promise(self) -> str:
        """Return the words of the docs."""
        if not self.refused:
            return f"goes on, {self.but}" if self.but else "goes on"
        return f"not saved{f' with Linux {self.since} or newer' if self.since else ''}: it {self.refused}"

    def is_refused(self) -> bool:
        """Return True if this node does not save it."""
        return bool(self.refused) and not (self.since and version(platform.release()) < version(self.since))
