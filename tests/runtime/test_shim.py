"""The shim on a real engine: Docker's API stays whole, and an agent that stalls, dies or lies harms nobody else."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.errors import APIError
from tests.effort import a_few
from tests.runtime import nodes_harness
from tests.runtime.nodes_harness import IMAGE, Node, our_labels, wait_for
from tests.runtime.pretender import STEPS
from tests.runtime.shim_harness import HANDSHAKES, PYTHON, TICKER, Shimmed

from gleaner.agent.privileged.shim.main import ANNOTATION_HANDSHAKE, ANNOTATION_RESTORE
from gleaner.agent.runtime.docker_runtime import RUNTIME

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

IMAGES = "/tmp/pretended"
BOTH = pytest.mark.parametrize("runtime", [RUNTIME, "runc"])


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


@BOTH
def test_run_logs_and_wait(shimmed: Shimmed, runtime: str) -> None:
    container = shimmed.create("gleaner-a", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
                               runtime=runtime)  # fmt: skip
    shimmed.engine.start(container)
    assert shimmed.engine.wait(container) == 3
    assert shimmed.node.engine.logs(container, stderr=False) == b"out\n"
    assert shimmed.node.engine.logs(container, stdout=False) == b"err\n"
    assert shimmed.engine.inspect(container)["State"]["ExitCode"] == 3


@BOTH
def test_exec_stats_top_pause_kill_and_stop(shimmed: Shimmed, runtime: str) -> None:
    engine = shimmed.node.engine
    container, beside = (shimmed.create(name, runtime=runtime) for name in ("gleaner-b", "gleaner-beside"))
    for each in (container, beside):
        shimmed.engine.start(each)
    wait_for(lambda: shimmed.count(container) > 1, "it counts")
    assert shimmed.exit_code_of_exec(container, "raise SystemExit(5)") == 5
    assert shimmed.engine.stats(container)["pids_stats"]["current"] >= 1
    assert len(engine.top(container)["Processes"]) == (2 if runtime == "gleaner" else 1), "the program, below our init"
    shimmed.engine.pause(container)
    assert shimmed.stands_still(container, beside)
    shimmed.engine.unpause(container)
    shimmed.until_it_counts_on(container)
    engine.update_container(container, mem_limit="300m", memswap_limit="300m")
    engine.stop(container, timeout=1)
    assert engine.inspect_container(container)["State"]["ExitCode"] in (137, 143)
    engine.start(container)
    shimmed.until_it_counts_on(container)
    shimmed.engine.kill(container)
    assert shimmed.engine.wait(container) == 137
    engine.remove_container(container)


def test_a_container_of_another_runtime_never_meets_us(shimmed: Shimmed) -> None:
    """Even if it carries our words: it is the engine's runc that runs it."""
    container = shimmed.engine.create(
        "gleaner-c", host={"runtime": "runc"}, annotations={ANNOTATION_HANDSHAKE: "x", ANNOTATION_RESTORE: "yes"},
        image=IMAGE, command=[TICKER], labels=our_labels(),
    )  # fmt: skip
    shimmed.engine.start(container)
    shimmed.until_it_counts_on(container)


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


def test_two_at_once_do_not_disturb_each_other(shimmed: Shimmed, ticking: str) -> None:
    """One stalls, and the other is saved meanwhile."""
    other = shimmed.create("gleaner-other", end_s=12)
    shimmed.engine.start(other)
    wait_for(lambda: shimmed.count(other) > 3, "it counts")  # before, it has no megabyte of pages to stall in
    shimmed.engine.pause(other)
    with shimmed.agent("save", "gleaner-other", IMAGES, "pages", "stall") as stalled:
        stalled.until("listening")
        saving = save_meanwhile(shimmed, other)
        stalled.until("pages")
        assert len(shimmed.left_by_us()) == 1
        with shimmed.agent("save", "gleaner-ticking", IMAGES) as agent:
            agent.until("listening")
            shimmed.engine.create_checkpoint(ticking, "c1")
            assert agent.until("status")[-1] == "status 0"
        assert len(shimmed.left_by_us()) == 1
    saving.join(30)
    assert shimmed.left_by_us() == []


@pytest.mark.parametrize("victim", ["gleaner-runc", "criu dump"])
def test_a_save_of_which_the_privileged_side_is_killed_fails_and_the_next_one_cleans_up(
    shimmed: Shimmed, victim: str
) -> None:
    container = shimmed.create("gleaner-killed", end_s=15)
    shimmed.engine.start(container)
    wait_for(lambda: shimmed.count(container) > 3, "it counts")
    shimmed.engine.pause(container)
    with shimmed.agent("save", "gleaner-killed", IMAGES, "pages", "stall") as agent:
        agent.until("listening")
        saving = save_meanwhile(shimmed, container)
        agent.until("pages")
        victims = shimmed.pids(container, victim)
        assert len(victims) == 1
        shimmed.kill(*victims)
    saving.join(30)
    assert not saving.is_alive()
    shimmed.engine.remove(container)
    again = shimmed.create("gleaner-again")
    shimmed.engine.start(again)
    wait_for(lambda: shimmed.count(again) > 3, "it counts")
    shimmed.engine.pause(again)
    with shimmed.agent("save", "gleaner-again", IMAGES) as agent:
        agent.until("listening")
        shimmed.engine.create_checkpoint(again, "c2")
    wait_for(lambda: shimmed.left_by_us() == [], "nothing is left")
    shimmed.engine.unpause(again)
    shimmed.until_it_counts_on(again)


def test_forged_descriptors_reach_neither_runc_nor_criu(shimmed: Shimmed, saved: int) -> None:
    forged = json.dumps(["/dev/null", "pipe:[1]/../../etc/shadow", "pipe:[2]"])
    shimmed.run("sh", "-c", f"cat >{IMAGES}/descriptors.json", user="gleaner", text=forged)
    container = shimmed.create("gleaner-back", restored=True)
    with shimmed.agent("restore", "gleaner-back", IMAGES) as agent:
        agent.until("listening")
        with pytest.raises(APIError, match="which is no pipe"):
            shimmed.engine.start(container)
    assert shimmed.left_by_us() == []


def test_the_privileged_side_needs_no_way_to_the_storage_and_a_forged_checkpoint_never_gets_to_it(
    shimmed: Shimmed,
) -> None:
    """More than squashed rights: where the engine, the shim and CRIU run, the storage is not even mounted."""
    program = (Path(__file__).parent / "hidden_storage.py").read_text()
    script = (
        "mkdir -p /srv/hidden && mount -t tmpfs -o mode=0700,uid=4200,gid=4200 hidden /srv/hidden && "
        "install -d -o gleaner -g gleaner /var/lib/gleaner/runtime-tests/hidden && "
        "exec setpriv --reuid gleaner --regid gleaner --init-groups "
        f"{PYTHON} -u - /srv/hidden /var/lib/gleaner/runtime-tests/hidden {IMAGE}"
    )
    said = shimmed.run("unshare", "-m", "sh", "-c", script, text=program, timeout_s=120)
    expected = ["way True", "forged: refused", "flipped: refused", "left 0", "went on", "uid 4200"]
    assert [line for line in said.splitlines() if line in expected] == expected, said
    assert shimmed.run("ls", "-A", "/srv/hidden") == ""
    assert shimmed.left_by_us() == []
