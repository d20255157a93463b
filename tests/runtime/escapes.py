"""A job that holds deleted files open behind symbolic links, and who it may run as: an agent's job or a user job."""

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.privileged import slurm
from tests.runtime.account_harness import AsAccount
from tests.runtime.nodes_harness import IMAGE, Node, Work, _SeenFromOutside

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.runtime.helper_client import HelperClient
from gleaner.agent.runtime.helper_runtime import RuncRuntime
from gleaner.agent.runtime.interface import ContainerId, ContainerSpec

LIBRARY = Path(Config(1).library) / "gleaner/agent/privileged"
TARGET = "/node-dir"
"""A folder of the node's, in which nothing may ever appear."""
ALICE = (4301, 4301)
SLURM_JOB = 990_001
NAME = f"own-{ALICE[0]}-{SLURM_JOB}"

HOLDER = """
import os, sys, time
held = []
def hold(place, what, target):
    folder = place + "/d"
    os.mkdir(folder)
    if what == "file":
        file = open(folder + "/x", "w+b", buffering=0)
        file.write(b"payload")
        os.fchmod(file.fileno(), 0o755)
        os.unlink(file.name)
        held.append(file.fileno())
        keep.append(file)
    else:
        os.mkdir(folder + "/system-generators")
        held.append(os.open(folder + "/system-generators", os.O_RDONLY))
        os.rmdir(folder + "/system-generators")
    os.rmdir(folder)
    os.symlink(target, folder)
keep = []
print("start")
for number, words in enumerate(sys.argv[1:]):
    while number and not os.path.exists("/job/next-%d" % number):
        time.sleep(0.02)
    place, what, target = words.split(",")
    hold(place, what, target)
    print("held", number)
    if number + 2 <= len(sys.argv[1:]):
        while not os.path.exists("/job/next-%d" % (number + 1)):
            time.sleep(0.02)
        os.unlink(place + "/d")
while not os.path.exists("/job/stop"):
    time.sleep(0.02)
print("end")
"""


FORGER = """
import os, struct, time
memory = os.open("/proc/self/mem", os.O_RDWR)
def area(name):
    line = next(line for line in open("/proc/self/maps") if name in line)
    start, end = (int(one, 16) for one in line.split()[0].split("-"))
    return start, os.pread(memory, end - start, start)
mark, mine = os.urandom(16), bytearray(1024)
mine[:16] = mark
start, heap = area("[heap]")
target = start + heap.index(mark) + 64
vdso, found = area("[vdso]")
table = bytearray(found)
segments_at, segments = struct.unpack_from("<Q", table, 32)[0], struct.unpack_from("<H", table, 56)[0]
for number in range(segments):
    kind, _, at, _, _, size = struct.unpack_from("<IIQQQQ", table, segments_at + 56 * number)
    if kind == 2:
        said = dict(struct.unpack_from("<QQ", table, at + 16 * one) for one in range(size // 16))
for at in range(said[6], said[5] - 23, 24):
    if table.startswith(b"__vdso_", said[5] + struct.unpack_from("<I", table, at)[0]):
        struct.pack_into("<Q", table, at + 8, target - vdso & (1 << 64) - 1)
os.pwrite(memory, bytes(table), vdso)
os.close(memory)
print("ready")
while not os.path.exists("/job/stop"):
    time.sleep(0.02)
print("written by root" if any(mine[16:]) else "whole")
"""
"""It says of the kernel's functions in its memory that they lie in a place of its choice."""


class UserWork(Work):
    """Alice's user job under `glean run`, as the node's helper sees it."""

    owner = ALICE

    def spec(self, *command: str, memory_mib: int = 200, image: str = IMAGE) -> ContainerSpec:
        made = super().spec(*command, memory_mib=memory_mib, image=image)
        place = Path(Config(1).users_work) / NAME / "job"
        return dataclasses.replace(made, name=NAME, folder=place, labels={})

    def folder(self, node: Node) -> Path:
        node.runtime.admit()
        return node.outside(Path(Config(1).users_work) / NAME / "job")


class _UserRuntime(RuncRuntime):
    """The runtime of `glean run`."""

    def __init__(self, root: Path) -> None:
        self._asked = HelperClient(f"{root}{Config(1).helper_socket}")
        super().__init__(self._asked, handshakes=root / Config(1).users_work.strip("/") / NAME / "handshakes")

    def admit(self) -> None:
        self._asked.ask("admit", slurm_job=str(SLURM_JOB))


@contextlib.contextmanager
def user_jobs(node: Node) -> Iterator[None]:
    """The node's helper serves Alice, whose job Slurm says runs there; what she has is removed after it."""
    place = Path("/tmp/slurm-of-tests")  # the node's
    outside = node.outside(place)
    outside.mkdir(exist_ok=True)
    said = slurm.job(job_id=SLURM_JOB, user_id=ALICE[0], parts=[(node.name, 2, 1000)])
    program = Path(slurm.answering(outside, said))
    program.write_text(program.read_text().replace(str(outside), str(place)))
    runtime = node.runtime
    node.run("mount", "--bind", f"{place}/scontrol", Config(1).scontrol)
    try:
        node.runtime = AsAccount(lambda: _SeenFromOutside(_UserRuntime(node.root), node.root), ALICE)
        yield
    finally:
        with contextlib.suppress(Exception):
            node.runtime.remove(ContainerId(NAME))
        node.runtime = runtime
        node.run("umount", Config(1).scontrol)
        node.run("rm", "-rf", str(place))


@contextlib.contextmanager
def without(node: Node, module: str, *names: str) -> Iterator[None]:
    """One of root's modules does nothing there meanwhile: so what else holds is seen."""
    place = LIBRARY / f"{module}.py"
    text = node.outside(place).read_text() + "".join(f"\n{name} = lambda *_, **__: None\n" for name in names)
    with replaced(node, place, text):
        yield


@contextlib.contextmanager
def replaced(node: Node, place: Path, content: str | bytes) -> Iterator[None]:
    """Put another content in the place of one of the node's files."""
    changed = Path("/tmp") / f"changed-{place.name}"
    node.outside(changed).write_bytes(content.encode() if isinstance(content, str) else content)
    shutil.copymode(node.outside(place), node.outside(changed))
    node.run("mount", "--bind", str(changed), str(place))
    try:
        yield
    finally:
        node.run("umount", str(place))
        node.run("rm", str(changed))


def tree(node: Node) -> str:
    """The node's own files: names, kinds, owners, modes, and of files when each was last changed.

    A folder changes when the programs in it are compiled for the first time.
    """
    places = [TARGET, "/etc", "/usr", "/opt", "/root", "/home"]
    compiled = ["-name", "__pycache__", "-prune", "-o"]
    folders = ["-type", "d", "-printf", r"%p %y %U %G %m\n", "-o"]
    return node.run("find", *places, "-xdev", *compiled, *folders, "-printf", r"%p %y %U %G %m %s %C@\n")


def mounts(node: Node) -> list[str]:
    """Return what is mounted in the node, in its own namespace."""
    return sorted(line.split(" ", 3)[-1] for line in node.run("cat", "/proc/1/mountinfo").splitlines())
