"""What a save is about, or made with, is killed in the middle: the generation before it is what counts."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from demo import cluster
from docker.errors import DockerException
from tests.runtime.nodes import Node, NoNodes, Work, wait_for

from gleaner.agent.runtime.protocol import CannotCheckpoint, ContainerId, RuntimeFault
from gleaner.agent.storage.protocol import BytesLike, Draft, Part, PartWriter, Published

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TICKER = """
import os, time
memory = os.urandom(64 << 20)
count = 0
while True:
    print(count)
    count += 1
    time.sleep(0.02)
"""


@pytest.fixture
def kind() -> str:
    return "shim"


class Gate:
    """A draft that takes no memory until it is let."""

    def __init__(self, draft: Draft) -> None:
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


def test_a_process_that_is_killed_while_it_is_saved_leaves_the_generation_before(
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


def test_an_engine_that_is_killed_in_a_save_leaves_the_generation_before(pair: tuple[Node, Node], work: Work) -> None:
    here, there = pair
    container, good = saved_once(here, work)
    try:
        raised = save_interrupted(here, work, container, lambda: here.run("pkill", "-9", "-x", "dockerd", check=False))
        assert len(raised) == 1
        goes_on(there, work, good)
    finally:
        cluster.start_node(here.name)  # a node ends with its engine
        wait_for(lambda: is_up(here.name), f"{here.name} to be up again")
        vars(here).update(vars(Node(here.name, here.kind)))


def is_up(name: str) -> bool:
    """Whether the node's engine and its helper answer."""
    try:
        for kind in ("docker", "criu"):
            Node(name, kind).runtime.facts()
    except (NoNodes, RuntimeFault, DockerException):
        return False
    return True


def goes_on(node: Node, work: Work, good: Published) -> None:
    assert work.storage.keys("") == [good.key]
    reached = len(work.lines)
    work.restore(node, good, TICKER)
    wait_for(lambda: len(work.lines) > reached + 20, "the restored process to go on")
