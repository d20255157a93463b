"""A kill in the middle of a save leaves the checkpoint before it; one in the middle of a restore leaves nothing."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.escapes import mounts, replaced
from tests.runtime.nodes_harness import Node, Work, wait_for

from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.interface import BytesLike, Part, Published
from gleaner.agent.checkpoints.pack_writer import PartWriter
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.runtime.interface import CannotCheckpoint, CannotRestore, ContainerId, RuntimeFault

pytestmark = [pytest.mark.nodes, pytest.mark.extended, pytest.mark.timeout(300)]

TICKER = """
import os, time
memory = os.urandom(64 << 20)
count = 0
while True:
    print(count)
    count += 1
    time.sleep(0.02)
"""


OURS, CRIU, NOTIFY = "bin/criu swrk", "^/usr/sbin/criu (dump|restore)", "notify.sh$"
"""Command lines: of what hears CRIU's notifications, of CRIU, of its action script."""
GO = "/run/criu-may-go-on"
RUNC, SHIM = "^/usr/sbin/runc .* checkpoint", "/gleaner-runc .* checkpoint"
RESTORING = ["^/usr/sbin/runc .* restore", "/gleaner-runc .* create"]
KILLED = [(OURS,), (CRIU,), (OURS, CRIU), *((one,) for one in RESTORING), tuple(RESTORING)]


@pytest.fixture
def kind() -> str:
    return "shim"


class Gate:
    """A draft that takes no memory until it is let."""

    def __init__(self, draft: FolderDraft) -> None:
        self._draft = draft
        self.reached, self.opened = threading.Event(), threading.Event()

    def part(self, name: str) -> "GatedWriter":
        return GatedWriter(self._draft.part(name), self if "pages" in name else None)

    def add(self, name: str, chunks: Any) -> Part:
        return self._draft.add(name, chunks)


class GatedWriter:
    def __init__(self, inner: PartWriter, gate: Gate | None) -> None:
        self._inner, self._gate = inner, gate

    def __enter__(self) -> "GatedWriter":
        self._inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)

    def write(self, chunk: BytesLike) -> None:
        if self._gate is not None:
            self._gate.reached.set()
            assert self._gate.opened.wait(60)
        self._inner.write(chunk)

    def close(self) -> Part:
        return self._inner.close()


def save_interrupted(
    node: Node, work: Work, container: ContainerId, interrupt: Callable[[], object]
) -> list[Exception]:
    """Begin to save, do something when the first memory arrives, and let the save come to its end; what it raised."""
    raised: list[Exception] = []
    with work.storage.draft(f"jobs/{work.job}/interrupted") as draft:
        gate = Gate(draft)

        def save() -> None:
            try:
                node.runtime.checkpoint(container, gate)
            except (RuntimeFault, CannotCheckpoint) as error:
                raised.append(error)

        node.runtime.pause(container)
        saving = threading.Thread(target=save)
        saving.start()
        assert gate.reached.wait(60)
        interrupt()
        gate.opened.set()
        saving.join(120)
        assert not saving.is_alive(), "the save hangs"
    return raised


def saved_once(node: Node, work: Work) -> tuple[ContainerId, Published]:
    container = work.start(node, TICKER)
    work.until("10")
    good = work.save(node, container)
    node.runtime.unpause(container)
    return container, good


def test_a_process_that_is_killed_while_it_is_saved_leaves_the_checkpoint_before(
    pair: tuple[Node, Node], work: Work
) -> None:
    here, there = pair
    container, good = saved_once(here, work)
    pid = here.engine.inspect_container(container)["State"]["Pid"]
    raised = save_interrupted(here, work, container, lambda: here.run("kill", "-9", str(pid)))
    assert len(raised) == 1, "what was killed cannot have been saved"
    assert "\n" not in str(raised[0])
    here.runtime.kill(container)
    here.runtime.remove(container)
    goes_on(there, work, good)
    assert here.containers() == []


def goes_on(node: Node, work: Work, good: Published) -> None:
    assert work.storage.keys("") == [good.key]
    reached = len(work.lines)
    work.restore(node, good, TICKER)
    wait_for(lambda: len(work.lines) > reached + 20, "the restored process to go on")


@pytest.mark.parametrize("killed", [(OURS,), (CRIU,), (RUNC,), (OURS, RUNC), (SHIM,)])
@pytest.mark.parametrize("kind", ["shim", "criu"])
def test_a_save_of_which_a_part_is_killed_fails_and_the_job_can_be_saved_again(
    node: Node, work: Work, killed: tuple[str, ...]
) -> None:
    container, good = saved_once(node, work)
    raised = save_interrupted(node, work, container, lambda: kill(node, *killed))
    assert len(raised) == 1
    reached = len(work.lines)
    node.runtime.unpause(container)
    wait_for(lambda: len(work.lines) > reached + 20, "the job to go on")
    assert work.storage.keys("") == [good.key]
    again = work.save(node, container)
    work.end(node, container)
    work.storage.delete(good.key)
    reached = len(work.lines)
    goes_on(node, work, again)
    assert int(work.lines[reached]) == int(work.lines[reached - 1]) + 1, "it stood still from the save on"


@pytest.mark.parametrize(
    ("action", "killed"),
    [
        ("post-setup-namespaces", (OURS, CRIU)),
        *((action, killed) for action in ("post-restore", "pre-resume") for killed in KILLED),
        ("post-resume", (OURS, CRIU)),
    ],
)
@pytest.mark.parametrize("kind", ["shim", "criu"])
def test_a_restore_of_which_a_part_is_killed_leaves_nothing(
    node: Node, work: Work, action: str, killed: tuple[str, ...]
) -> None:
    before = mounts(node)
    container, good = saved_once(node, work)
    work.end(node, container)
    with stopped_at(node, action):
        raised: list[Exception] = []

        def restore() -> None:
            try:
                work.restore(node, good, TICKER)
            except (RuntimeFault, CannotRestore) as error:
                raised.append(error)

        restoring = threading.Thread(target=restore)
        restoring.start()
        wait_for(lambda: node.run("find", "/run/gleaner-root", "-name", "stopped") != "", "CRIU to be at its end")
        assert processes(node) != ""
        kill(node, *killed)
        node.run("touch", GO)
        restoring.join(60)
        assert not restoring.is_alive(), "the restore hangs"
    assert len(raised) == 1
    wait_for(lambda: processes(node) == "", "all processes to be gone", timeout_s=30)
    assert mounts(node) == before


def kill(node: Node, *killed: str) -> None:
    """Of each, the oldest."""
    node.run("sh", "-c", "; ".join(f"pkill -9 -o -f '{one}'" for one in killed))


def processes(node: Node) -> str:
    """Those of the job, and those that save or restore it."""
    return node.run("pgrep", "-f", f"os.urandom.64|{OURS}|{CRIU}|{NOTIFY}", check=False)


@contextmanager
def stopped_at(node: Node, action: str) -> Iterator[None]:
    """CRIU goes no further than this notification until `GO` is there."""
    place = Path(Config(1).notify)
    shebang, text = node.outside(place).read_text().split("\n", 1)
    stop = f"""
if [ "$CRTOOLS_SCRIPT_ACTION" = {action} ]; then
    : >"$GLEANER_OWN/work"/stopped
    while [ ! -e {GO} ]; do sleep 0.05; done
fi
"""
    try:
        with replaced(node, place, f"{shebang}{stop}{text}"):
            yield
    finally:
        node.run("rm", "-f", GO)
