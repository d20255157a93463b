"""The shim on a real engine: Docker's API stays whole, and an agent that stalls, dies or lies harms nobody else."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator

import pytest
from docker.errors import APIError
from tests.effort import a_few
from tests.runtime import nodes_harness
from tests.runtime.nodes_harness import IMAGE, Node, our_labels, wait_for
from tests.runtime.pretender import STEPS
from tests.runtime.shim_harness import HANDSHAKES, TICKER, Shimmed

from gleaner.agent.privileged.shim.main import ANNOTATION_HANDSHAKE, ANNOTATION_RESTORE
from gleaner.agent.runtime.docker_runtime import RUNTIME

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

IMAGES = "/tmp/pretended"


@pytest.fixture
def shimmed(node: Node) -> Iterator[Shimmed]:
    place = Shimmed(node, nodes_harness.NAMES[0])
    place.run("install", "-d", "-o", "gleaner", IMAGES)
    yield place
    node.clear()
    place.run("rm", "-rf", IMAGES)


@pytest.fixture
def ticking(shimmed: Shimmed) -> str:
    """A container that has been started and counts."""
    container = shimmed.create("gleaner-ticking")
    shimmed.engine.start(container)
    wait_for(lambda: shimmed.count(container) > 3, "it counts")
    return container


@pytest.fixture
def saved(shimmed: Shimmed, ticking: str) -> int:
    """Its images are saved and it is gone; how far it had counted."""
    shimmed.engine.pause(ticking)
    with shimmed.agent("save", "gleaner-ticking", IMAGES) as agent:
        agent.until("listening")
        shimmed.engine.create_checkpoint(ticking, "c1")
        assert agent.until("status")[-1] == "status 0"
    count = shimmed.count(ticking)
    shimmed.engine.remove(ticking)
    return count


def test_a_restored_container_has_the_whole_api_too(shimmed: Shimmed, saved: int) -> None:
    container = shimmed.create("gleaner-back", restored=True)
    with shimmed.agent("restore", "gleaner-back", IMAGES) as agent:
        agent.until("listening")
        shimmed.engine.start(container)
        assert agent.until("status")[-1] == "status 0"
    wait_for(lambda: shimmed.count(container) > saved, "it goes on")
    engine = shimmed.node.engine
    first = int(engine.logs(container, stderr=False).split()[0])
    assert saved <= first <= saved + 1
    seen = "(os.getuid(), os.uname().nodename) == (4200, 'gleaner')"
    assert shimmed.exit_code_of_exec(container, f"import os; raise SystemExit(7 if {seen} else 1)") == 7
    assert shimmed.engine.stats(container)["memory_stats"]["usage"] > 8 << 20
    shimmed.engine.pause(container)
    shimmed.engine.unpause(container)
    shimmed.until_it_counts_on(container)
    shimmed.engine.kill(container)
    assert shimmed.engine.wait(container) == 137
    with pytest.raises(APIError, match="no agent waits"):  # it never starts from the beginning instead
        engine.start(container)


def test_an_image_and_an_environment_cannot_ask_for_a_restore(shimmed: Shimmed) -> None:
    engine = shimmed.node.engine
    asking = {ANNOTATION_HANDSHAKE: "gleaner-bait", ANNOTATION_RESTORE: "yes"}
    made = engine.create_container(IMAGE, ["x"], labels=our_labels())["Id"]
    changes = [f"LABEL {key}={value}" for key, value in asking.items()]
    image = engine.commit(made, repository="gleaner/bait", changes=[*changes, "ENV org.gleaner.restore=yes"])["Id"]
    engine.remove_container(made)
    with shimmed.agent("restore", "gleaner-bait", IMAGES, "accepted", "stall") as agent:
        agent.until("listening")
        container = shimmed.engine.create(
            "gleaner-d", host={"runtime": RUNTIME}, image=image, command=[TICKER],
            environment=asking | {"GLEANER_OWN": "/tmp", "PATH": "/tmp:/usr/local/bin:/usr/bin:/bin"},
            labels=our_labels() | asking,
        )  # fmt: skip
        shimmed.engine.start(container)
        wait_for(lambda: shimmed.count(container) > 3, "it counts")
        assert engine.logs(container, stderr=False).startswith(b"0\n")
        shimmed.engine.remove(container)
        engine.remove_image("gleaner/bait")
        assert not agent.has_said_more(within_s=1)  # nobody has come to it


@pytest.mark.parametrize("name", ["../docker.sock", "/run/docker.sock", "a/b", "x" * 200, "", "docker"])
def test_a_handshake_that_is_somewhere_else_is_refused(shimmed: Shimmed, name: str) -> None:
    if name == "docker":
        shimmed.run("ln", "-sf", "/run/docker.sock", f"{HANDSHAKES}/docker", user="gleaner")
    container = shimmed.engine.create(
        "gleaner-e", host={"runtime": RUNTIME}, annotations={ANNOTATION_HANDSHAKE: name, ANNOTATION_RESTORE: "yes"},
        image=IMAGE, command=[TICKER], labels=our_labels(),
    )  # fmt: skip
    with pytest.raises(APIError, match=r"is no name of a handshake|is no socket"):
        shimmed.engine.start(container)
    assert shimmed.engine.inspect(container)["State"]["Running"] is False
    assert shimmed.left_by_us() == []
    shimmed.run("rm", "-f", f"{HANDSHAKES}/docker")


def save_meanwhile(shimmed: Shimmed, container: str) -> threading.Thread:
    def save() -> None:
        with contextlib.suppress(APIError):
            shimmed.engine.create_checkpoint(container, f"c{time.time_ns()}")

    thread = threading.Thread(target=save)
    thread.start()
    return thread


@pytest.mark.parametrize("step", a_few(STEPS["save"][::-1], 3))
def test_an_agent_that_dies_in_a_save_leaves_a_container_that_goes_on(
    shimmed: Shimmed, ticking: str, step: str
) -> None:
    shimmed.engine.pause(ticking)
    with shimmed.agent("save", "gleaner-ticking", IMAGES, step, "die") as agent:
        agent.until("listening")
        saving = save_meanwhile(shimmed, ticking)
        if step != "listening":
            agent.until(step)
    saving.join(30)
    assert not saving.is_alive()
    assert shimmed.left_by_us() == []
    shimmed.engine.unpause(ticking)
    shimmed.until_it_counts_on(ticking)


@pytest.mark.parametrize("step", a_few(STEPS["restore"][::-1], 3))
def test_an_agent_that_dies_in_a_restore_leaves_nothing_that_runs(shimmed: Shimmed, saved: int, step: str) -> None:
    """Unless it dies when all is done: then its container is one more that the watchdog has to remove."""
    container = shimmed.create("gleaner-back", restored=True)
    with shimmed.agent("restore", "gleaner-back", IMAGES, step, "die") as agent:
        agent.until("listening")
        if step == "images":
            shimmed.engine.start(container)
            shimmed.until_it_counts_on(container)
        else:
            with pytest.raises(APIError):
                shimmed.engine.start(container)
            assert shimmed.engine.inspect(container)["State"]["Running"] is False
    assert shimmed.left_by_us() == []
    shimmed.engine.remove(container)
    assert shimmed.processes("criu restore", "import os, time") == []


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        pytest.param("save", "accepted", marks=pytest.mark.extended),
        ("save", "pages"),
        pytest.param("restore", "named", marks=pytest.mark.extended),
        ("restore", "pages"),
    ],
)
def test_an_agent_that_does_nothing_for_ever_holds_its_container_to_its_end_only(
    shimmed: Shimmed, request: pytest.FixtureRequest, kind: str, step: str
) -> None:
    if kind == "restore":
        request.getfixturevalue("saved")
    container = shimmed.create("gleaner-stalled", restored=kind == "restore", end_s=8)
    if kind == "save":
        shimmed.engine.start(container)
        wait_for(lambda: shimmed.count(container) > 3, "it counts")
        shimmed.engine.pause(container)
    with shimmed.agent(kind, "gleaner-stalled", IMAGES, step, "stall") as agent:
        agent.until("listening")
        with pytest.raises(APIError, match="the agent's end has come"):
            if kind == "save":
                shimmed.engine.create_checkpoint(container, "c1")
            else:
                shimmed.engine.start(container)
        shimmed.engine.remove(container)  # what the watchdog does, while that agent is still there
        assert agent.is_there()
        assert shimmed.left_by_us() == []
        assert shimmed.processes("criu dump", "criu restore", "gleaner-runc --root", "import os, time") == []


def test_forged_descriptors_reach_neither_runc_nor_criu(shimmed: Shimmed, saved: int) -> None:
    forged = json.dumps(["/dev/null", "pipe:[1]/../../etc/shadow", "pipe:[2]"])
    shimmed.run("sh", "-c", f"cat >{IMAGES}/descriptors.json", user="gleaner", text=forged)
    container = shimmed.create("gleaner-back", restored=True)
    with shimmed.agent("restore", "gleaner-back", IMAGES) as agent:
        agent.until("listening")
        with pytest.raises(APIError, match="which is no pipe"):
            shimmed.engine.start(container)
    assert shimmed.left_by_us() == []
