"""A process whose memory a page server brings, without CRIU: it opens and hands over its userfaultfd itself."""

import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.privileged.waiting import wait_until

from gleaner.agent.privileged.shim.criu_messages import field
from gleaner.agent.privileged.shim.lazy_maps import PAGE
from gleaner.agent.privileged.shim.page_server import BEGIN, BLOCK, COMPLETE
from gleaner.agent.system import ipc

PROCESS = 7
PAGES = 512
JOB = """
import ctypes, os, socket, struct, sys, threading
open(f"{sys.argv[3]}/cgroup.procs", "w").write(str(os.getpid()))
libc = ctypes.CDLL(None, use_errno=True)
for name in ("mmap", "mremap", "munmap", "madvise", "mprotect"):
    getattr(libc, name).argtypes = [ctypes.c_size_t] * {"mmap": 6, "mremap": 5, "munmap": 2}.get(name, 3)
PAGE, PAGES, START, NEW = 4096, int(sys.argv[2]), 0x500000000000, 0x600000000000
SIZE = PAGES * PAGE
libc.mmap(START, SIZE + 16 * PAGE, 3, 0x100022, 2**64 - 1, 0)
fault = libc.syscall({"x86_64": 323, "aarch64": 282}[os.uname().machine], os.O_CLOEXEC | os.O_NONBLOCK)
for number, *words in ((0xC018AA3F, 0xAA, 0x4E), (0xC020AA00, START, SIZE + 16 * PAGE, 1)):
    assert libc.ioctl(fault, ctypes.c_ulong(number), (ctypes.c_uint64 * 4)(*words)) == 0, ctypes.get_errno()
criu = socket.socket(socket.AF_UNIX)
criu.connect(sys.argv[1])
criu.send(struct.pack("<iI", -9, 7))  # a process that has ended, and this one
socket.send_fds(criu, [b"x"], [fault])
os.close(fault)
def check(numbers, at=START, zero=False):
    for number in numbers:
        found = {ctypes.c_uint64.from_address(at + number * PAGE + place).value for place in (0, 4088)}
        assert found == {0 if zero else number + 1}, (number, found)
def in_child(act):
    if (pid := os.fork()) == 0:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
print("there", flush=True)
input()
criu.send(struct.pack("<I", 0x52535446))
input()
"""
"""Page `n` holds `n + 1`. Behind `PAGES` pages follow 16 that the checkpoint lacks."""
RESTORER = """
import socket, sys
from gleaner.agent.privileged.shim import page_watchdog
from gleaner.agent.system import ipc
with page_watchdog.serving(sys.argv[1], sys.argv[2]) as pages:
    pages.note("pagemap-7.img", bytes.fromhex(sys.argv[4]))
    pages.note("pagemap-9.img", bytes(2**18))  # more than a socket holds
    test = socket.socket(fileno=int(sys.argv[3]))
    ipc.send(test, b"x", pages.agents.fileno())
    pages.agents.close()
    if test.recv(1) == b"a":
        pages.arm()
        test.send(b"y")
"""


def image(*entries: bytes) -> bytes:
    """Return a CRIU image of these messages."""
    return bytes(8) + b"".join(len(entry).to_bytes(4, "little") + entry for entry in entries)


def pagemap(*runs: tuple[int, int, int]) -> bytes:
    """Return a page map: the address, the number of pages and the flags of each run."""
    return image(field(1, 1), *(field(1, start) + field(2, count) + field(4, flags) for start, count, flags in runs))


LOOK = "print('runs', flush=True)\ncheck(range(PAGES))\nprint('right', flush=True)\ninput()"
START = 0x500000000000
STACK, OWN = 2, 1 | 1 << 9
"""Bits of a mapping's status: a stack; private memory that no file is behind."""


def mapping(start: int, count: int, flags: int = 0x22, status: int = OWN, advice: int = 0) -> bytes:
    places = {1: start, 2: start + count * PAGE, 6: flags, 7: status, 9: advice}
    return field(14, b"".join(field(*one) for one in places.items()))


def content_of(number: int) -> bytes:
    return (number + 1).to_bytes(8, "little") * (PAGE // 8)


class Restored:
    """A job in a cgroup of its own, its page server and its watchdog, and the agent's end of their connection."""

    def __init__(self, place: Path, program: str) -> None:
        self.cgroup = Path("/sys/fs/cgroup/freezer") / f"gleaner-test-{uuid.uuid4().hex[:8]}"
        self.cgroup.mkdir()
        (place / "state.json").write_text(f'{{"cgroup_paths": {{"freezer": "{self.cgroup}"}}}}')
        ours, theirs = socket.socketpair()
        words = [str(place), str(place), str(theirs.fileno()), pagemap((START, PAGES, 2)).hex()]
        self._restorer = subprocess.Popen([sys.executable, "-c", RESTORER, *words], pass_fds=[theirs.fileno()])
        theirs.close()
        self._ours = ours
        _, descriptor = ipc.receive(ours, 1)
        assert descriptor is not None
        self.agent = socket.socket(fileno=descriptor)
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", JOB + program, f"{place}/lazy-pages.socket", str(PAGES), str(self.cgroup)]
        self.job: Any = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe)
        assert self.read() == "there"
        (self.watchdog,) = _children(self._restorer.pid)
        (self.server,) = _children(self.watchdog)

    def go_on(self, *, is_armed: bool = True) -> None:
        """Let the restore end, and the job run."""
        self.write()
        self._ours.send(b"a" if is_armed else b"n")
        assert not is_armed or self._ours.recv(1) == b"y"
        self._restorer.wait()
        if is_armed:
            self.write()

    def write(self) -> None:
        with suppress(BrokenPipeError):  # it may have ended
            self.job.stdin.write(b"\n")

    def read(self) -> str:
        return str(self.job.stdout.readline(), "ascii").strip()

    def feed(self, *, fills: bool) -> threading.Thread:
        """Answer the page server: 16 pages for each fault, and all at its word if `fills`."""

        def run() -> None:
            with suppress(OSError):
                while len(message := ipc.receive_all(self.agent, BLOCK.size)) == BLOCK.size and message != COMPLETE:
                    if message == BEGIN:
                        for first in range(0, PAGES, 16) if fills else ():
                            self.send(first)
                    else:
                        self.send((BLOCK.unpack(message)[2] - START) // PAGE // 16 * 16)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def send(self, first: int) -> None:
        content = b"".join(map(content_of, range(first, first + 16)))
        self.agent.sendall(BLOCK.pack(PROCESS, len(content), START + first * PAGE) + content)

    def end(self) -> None:
        self.agent.close()
        (self.cgroup / "freezer.state").write_text("THAWED")  # a frozen job would not die where the watchdog fails
        for process in (self.job, self._restorer):
            process.kill()
            with process:
                pass  # closes its pipes, and waits for its end
        self._ours.close()
        wait_until(lambda: not (self.cgroup / "cgroup.procs").read_text(), "the job's processes to end")
        self.cgroup.rmdir()


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@contextmanager
def restored(program: str = LOOK) -> Iterator[Restored]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path has an end
        made = Restored(Path(folder), program)
        try:
            yield made
        finally:
            made.end()
