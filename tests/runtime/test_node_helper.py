"""Properties of the node helper alone: it may end at any time, and what it keeps has an end and a limit."""

import dataclasses
import json
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.account_harness import acting_as
from tests.runtime.nodes_harness import IMAGE, USER, Node, Work, wait_for
from tests.runtime.shim_harness import Engine

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.runtime.criu_streams import during_handshake, save
from gleaner.agent.runtime.interface import (
    LABEL_END,
    LABEL_SLURM_JOB,
    CannotRestore,
    ContainerKilled,
    RuntimeFault,
)
from gleaner.control.setup import shipped

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(180)]
EPILOG = shipped.content(shipped.EPILOG).decode()
HELPER = "^/usr/bin/python3 -IS /usr/local/sbin/gleaner-helper$"
TICKER = """
import os, time
count = 0
while not os.path.exists("/job/stop"):
    print(count, flush=True)
    count += 1
    time.sleep(0.02)
raise SystemExit(7)
"""


@pytest.fixture
def kind() -> str:
    return "criu"


def kill_helper(node: Node) -> None:
    """It comes back by itself, as with systemd."""
    node.run("pkill", "-9", "-f", HELPER)


def answers(node: Node) -> bool:
    try:
        node.runtime.facts()
    except RuntimeFault:
        return False
    return True


def test_containers_and_their_ends_outlive_the_helper(node: Node, work: Work) -> None:
    container = work.start(node, TICKER)
    work.until("5")
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(node.runtime.wait(container).exit_code))
    waiting.start()
    time.sleep(0.3)
    for _ in range(2):
        kill_helper(node)
        work.until(str(len(work.lines) + 20))
        wait_for(lambda: answers(node), "the helper is back")
    node.runtime.pause(container)
    node.runtime.unpause(container)
    kill_helper(node)
    (work.folder(node) / "stop").touch()
    waiting.join(60)
    assert codes == [7]
    work.read_to_end()
    assert work.lines == [str(number) for number in range(len(work.lines))]
    wait_for(lambda: answers(node), "the helper is back")
    assert node.runtime.wait(container).exit_code == 7


def test_a_container_whose_monitor_is_killed_can_still_be_removed(node: Node, work: Work) -> None:
    container = work.start(node, TICKER)
    work.until("5")
    node.run("pkill", "-9", "-f", f"gleaner-helper monitor {container} ")
    with pytest.raises(ContainerKilled):
        node.runtime.wait(container)
    work.read_to_end()
    node.runtime.remove(container)
    assert node.containers() == []
    wait_for(lambda: container not in node.run("ps", "-eo", "args"), "all of it has ended")


def spec(work: Work, *command: str, end_s: float) -> Any:
    made = work.spec(*command)
    return dataclasses.replace(made, labels={**made.labels, LABEL_END: str(int(end_s))})


def test_a_container_whose_agent_has_to_be_gone_is_removed(node: Node, work: Work) -> None:
    work.folder(node)
    node.runtime.start(spec(work, TICKER, end_s=time.time() - 55))
    assert len(node.containers()) == 1
    wait_for(lambda: node.containers() == [], "the watchdog has removed it", timeout_s=30)


def test_the_epilog_removes_what_the_agent_of_its_job_left(node: Node, work: Work) -> None:
    other = Work(work.storage)
    for one, slurm_job in ((work, "77"), (other, "78")):
        one.folder(node)
        made = one.spec(TICKER)
        node.runtime.start(dataclasses.replace(made, labels={**made.labels, LABEL_SLURM_JOB: slurm_job}))
    assert len(node.containers()) == 2
    node.run("gleaner-helper", "clear", "77")
    assert len(node.containers()) == 1
    node.run("env", "SLURM_JOB_ID=78", "sh", "-c", EPILOG)
    assert node.containers() == []


def test_there_is_one_helper_on_a_node(node: Node) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        node.run("gleaner-helper")
    assert "another gleaner-helper" in refused.value.stderr
    assert answers(node)


@pytest.fixture
def limited(node: Node) -> Any:
    """The helper with a limit of 30 MB; as it was, afterwards."""
    path = "/etc/gleaner/privileged.json"
    before = node.run("cat", path)

    def write(content: str) -> None:
        node.outside(Path(path)).write_text(content)
        kill_helper(node)
        time.sleep(0.2)
        wait_for(lambda: answers(node), "the helper is back")

    write(json.dumps(json.loads(before) | {"most_container_bytes": 30_000_000}))
    yield
    write(before)


@pytest.mark.usefixtures("limited")
def test_the_nodes_disk_is_not_a_jobs_to_fill(node: Node, work: Work) -> None:
    hog = """
import time
with open("/var/tmp/big", "wb", buffering=0) as file:
    while True:
        file.write(b"x" * 2**20)
        time.sleep(0.05)
"""
    ended = work.start(node, "open('/var/tmp/big', 'wb').write(bytes(10_000_000))")
    assert node.runtime.wait(ended).exit_code == 0
    other = Work(work.storage)
    container = other.start(node, hog)
    assert node.runtime.wait(container).exit_code == 137  # an end by itself, as for memory
    assert node.containers() == [container], "what had ended before went first"


def test_a_job_may_write_more_lines_than_are_read_at_once(node: Node, work: Work) -> None:
    container = work.start(node, "for number in range(200_000): print(number, 'x' * 50)")
    assert node.runtime.wait(container).exit_code == 0
    work.read_to_end()
    assert [line.split()[0] for line in work.lines] == [str(number) for number in range(200_000)]


@pytest.mark.parametrize(
    ("rights", "why"),
    [({"security_opt": ["no-new-privileges"]}, "capabilities"), ({"cap_drop": ["ALL"]}, "gain privileges")],
)
@pytest.mark.parametrize("into", ["criu", "shim"])
def test_a_forged_checkpoint_gains_no_rights(
    node: Node, work: Work, rights: dict[str, list[str]], why: str, into: str
) -> None:
    """A process that ran with more rights than a job's, saved as if it were one: it does not come back."""
    engine = Engine(f"unix://{node.root}/run/docker.sock")
    settings = Config(USER[0], handshakes=f"{node.root}{Config(1).handshakes}")
    made = work.spec(TICKER)
    work.folder(node)
    container = engine.create(
        made.name,
        host={
            "binds": {str(made.folder): {"bind": "/job", "mode": "rw"}},
            "runtime": "gleaner",
            "init": False,
        }
        | rights,
        annotations={"org.gleaner.handshake": made.name},
        image=IMAGE,
        command=list(made.command),
        user=f"{USER[0]}:{USER[1]}",
        hostname="gleaner",
        labels=dict(made.labels),
    )

    def saved(act: Callable[[], None]) -> Any:
        with work.storage.draft("jobs/1/forged") as draft, acting_as(*USER):
            during_handshake(Path(settings.handshakes), made.name, lambda handshake: save(handshake, draft), act)
            draft.add("folder.tar", [bytes(10240)])
            return draft.publish({"image_id": engine.inspect(container)["Image"]})

    try:
        engine.start(container)
        wait_for(lambda: "5" in node.engine.logs(container).decode().split(), "it counts")
        engine.pause(container)
        forged = saved(lambda: engine.create_checkpoint(container, "forged"))
    finally:
        engine.remove(container)
    with pytest.raises(CannotRestore, match=f"not what a job of ours.*{why}"):
        work.restore(Node(node.name, into), forged, TICKER)
    assert Node(node.name, into).containers() == []
    assert node.containers() == []
