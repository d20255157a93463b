"""Nothing of a job is made outside of its container, whatever it holds open when it is saved, and wherever links lead.

Each guard is tried alone too: with the others taken out of the node's programs.
"""

import contextlib
import threading
from collections.abc import Iterator

import pytest
from tests.effort import a_few
from tests.runtime.escapes import FORGER, HOLDER, TARGET, UserWork, mounts, tree, user_jobs, without
from tests.runtime.nodes_harness import Node, Work

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import Published
from gleaner.agent.runtime.interface import CannotCheckpoint, CannotRestore, RuntimeFault

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(300)]
HARMLESS = """
import fcntl, os, socket, time
lock = open("/job/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
deleted = [open(path, "w+b", buffering=0) for path in ("/job/deleted", "/tmp/deleted")]
for file in deleted:
    file.write(b"x" * (5 << 20))
    os.unlink(file.name)
one, other = socket.socketpair()
reader, writer = os.pipe()
if os.fork() == 0:
    os.close(reader)
    try:
        for count in range(100_000):
            os.write(writer, b"%d\\n" % count)
            time.sleep(0.02)
    except BrokenPipeError:  # the other has ended, and this one is not killed yet
        os._exit(0)
os.close(writer)
counts = os.fdopen(reader)
expected = 0
print("ready")
while not os.path.exists("/job/stop"):
    assert int(counts.readline()) == expected
    expected += 1
    if expected == 10:
        print("10")
again = open("/job/lock")
try:
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    raise SystemExit("the lock is lost")
except BlockingIOError:
    pass
for file in deleted:
    file.seek(0)
    assert len(file.readall()) == 5 << 20
one.send(b"x")
assert other.recv(1) == b"x"
print("end")
"""
EVERYWHERE = [(place, what) for place in ("/job", "/tmp", "/dev/shm") for what in ("file", "folder")]
NOT_MADE = "(Can't create ghost|couldn't mkdirpat) .*"
SOME = [
    ("shim", "/job", "file"),
    ("criu", "/dev/shm", "file"),
    ("user", "/dev/shm", "folder"),
    ("shim", "/tmp", "file"),
    ("shim", "/dev/shm", "folder"),
    ("criu", "/job", "folder"),
    ("user", "/job", "file"),
]


@pytest.fixture(params=["shim", "criu", "user"])
def whose(request: pytest.FixtureRequest) -> str:
    """An agent's job with Docker, or with the helper, or a user job."""
    return str(request.param)


@pytest.fixture
def kind(whose: str) -> str:
    return "criu" if whose == "user" else whose


@pytest.fixture
def job(whose: str, node: Node, storage: FolderStorage) -> Iterator[Work]:
    with contextlib.ExitStack() as opened:
        if whose == "user":
            opened.enter_context(user_jobs(node))
        yield (UserWork if whose == "user" else Work)(storage)


@pytest.fixture
def storage(work: Work) -> FolderStorage:
    return work.storage


@pytest.fixture(autouse=True)
def untouched(node: Node) -> Iterator[None]:
    """The node's own file tree, and what is mounted there, is the same after each test."""
    node.run("mkdir", "-p", "-m", "0777", TARGET)
    before = tree(node), mounts(node)
    yield
    after = tree(node), mounts(node)
    node.run("rm", "-rf", TARGET)
    assert sorted(set(after[0].splitlines()) ^ set(before[0].splitlines())) == []
    assert after[1] == before[1]


def holding(place: str, what: str, target: str = TARGET) -> str:
    return f"{place},{what},{target}"


def saved_before(node: Node, job: Work, *held: str) -> Published:
    """Save as a node did that did not look at what was deleted."""
    with without(node, "shim/unsavable", "refused_files"):
        container = job.start(node, HOLDER, *held)
        job.until(f"held {len(held) - 1}")
        saved = job.save(node, container)
        job.end(node, container)
    return saved


def has_no_links(whose: str, place: str) -> bool:
    """Of a user job they are taken out of the folder and the written layer before CRIU begins."""
    return whose == "user" and place != "/dev/shm"


def test_what_is_deleted_behind_a_link_is_not_saved_and_the_job_goes_on(node: Node, job: Work) -> None:
    container = job.start(node, HOLDER, *(holding(*one) for one in EVERYWHERE))
    for number, (place, what) in enumerate(EVERYWHERE):
        job.until(f"held {number}")
        with pytest.raises(CannotCheckpoint, match=f"'{place}/d' is a symbolic link by now") as refused:
            job.save(node, container)
        assert "\n" not in str(refused.value)
        held = f"{place}/d/{'x' if what == 'file' else 'system-generators'}"
        assert f"it holds '{held}' open, which is deleted" in str(refused.value)
        node.runtime.unpause(container)
        (job.folder(node) / f"next-{number + 1}").touch()
    (job.folder(node) / "stop").touch()
    assert node.runtime.wait(container).exit_code == 0


@pytest.mark.parametrize(("whose", "place", "what"), a_few(SOME, 3))
def test_a_link_in_a_jobs_folder_makes_root_write_nothing_on_the_node(
    node: Node, job: Work, whose: str, place: str, what: str
) -> None:
    """A link to another process's root leads to where the node can be written: no link is followed at all."""
    saved = saved_before(node, job, holding(place, what, f"/proc/1/root{TARGET}"))
    if has_no_links(whose, place):
        container = job.restore(node, saved, HOLDER)
        (job.folder(node) / "stop").touch()
        assert node.runtime.wait(container).exit_code == 0
        return
    with pytest.raises(CannotRestore, match=f"{NOT_MADE}: Too many levels of symbolic links"):
        job.restore(node, saved, HOLDER)


@pytest.mark.parametrize(("whose", "place", "what"), a_few(SOME, 3))
def test_where_criu_restores_the_node_cannot_be_written(
    node: Node, job: Work, whose: str, place: str, what: str
) -> None:
    """With links followed again: the other guard alone."""
    saved = saved_before(node, job, holding(place, what))
    with without(node, "shim/mount_confinement", "follow_no_links"):
        if has_no_links(whose, place):
            node.runtime.remove(job.restore(node, saved, HOLDER))
            return
        with pytest.raises(CannotRestore, match=f"{NOT_MADE}: Read-only file system"):
            job.restore(node, saved, HOLDER)


@pytest.mark.parametrize(("whose", "after_s"), a_few([("shim", 0.1), ("criu", 0.1), ("shim", 0.0), ("user", 0.1)], 2))
def test_criu_killed_in_the_middle_leaves_nothing_on_the_node(node: Node, job: Work, after_s: float) -> None:
    saved = saved_before(node, job, holding("/dev/shm", "folder"))
    killing = threading.Thread(target=kill_criu, args=(node, after_s))
    killing.start()
    with contextlib.suppress(CannotRestore, RuntimeFault):
        job.restore(node, saved, HOLDER)
    killing.join()


def kill_criu(node: Node, after_s: float) -> None:
    """Kill CRIU `after_s` seconds after it appears; a CRIU that has ended by then is as good."""
    begun = "for i in $(seq 200); do pgrep -x criu >/dev/null && break; sleep 0.02; done"
    node.run("sh", "-c", f"{begun}; sleep {after_s}; pkill -9 -x criu", check=False)


def test_a_forged_vdso_makes_criu_write_nothing(node: Node, job: Work) -> None:
    container = job.start(node, FORGER)
    job.until("ready")
    saved = job.save(node, container)
    job.end(node, container)
    with pytest.raises(
        CannotRestore, match=r"the vDSO of process \d+ is not a kernel's: '__vdso_.*' is said to be outside"
    ):
        job.restore(node, saved, FORGER)


def test_without_that_guard_criu_does_so_as_root(node: Node, job: Work) -> None:
    """Else the guard may go: CRIU looks itself by now."""
    container = job.start(node, FORGER)
    job.until("ready")
    saved = job.save(node, container)
    job.end(node, container)
    with without(node, "shim/vdso", "flaw"):
        job.restore(node, saved, FORGER)
        (job.folder(node) / "stop").touch()
        job.read_to_end()
    assert job.lines[-1] == "written by root"


@pytest.mark.parametrize("whose", ["user"])
def test_deleted_files_of_a_users_user_job_still_go_along(node: Node, job: Work) -> None:
    container = job.start(node, HARMLESS)
    job.until("10")
    saved = job.save(node, container)
    job.end(node, container)
    container = job.restore(node, saved, HARMLESS)
    (job.folder(node) / "stop").touch()
    assert node.runtime.wait(container).exit_code == 0
    job.read_to_end()
    assert job.lines == ["ready", "10", "end"]
