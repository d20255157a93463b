"""An engine that hangs: nothing of an agent's outlives its end for that, and nothing else is touched."""

import dataclasses
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from demo import nsenter
from tests.runtime.nodes_harness import AGENT, IMAGE, Node, Work, wait_for

from gleaner.agent.runtime.interface import LABEL_AGENT, LABEL_END, LABEL_SLURM_JOB, ContainerId
from gleaner.control.setup import shipped

WATCHDOG = shipped.content(shipped.WATCHDOG).decode()
EPILOG = shipped.content(shipped.EPILOG).decode()
PLACE = "/tmp/gleaner-watchdog-under-test"

pytestmark = [pytest.mark.nodes, pytest.mark.slow]


class Sleepers:
    """Containers on one node, each a process that only sleeps; they are looked at without the engine."""

    def __init__(self, node: Node, work: Work) -> None:
        self.node, self.work = node, work

    def start(self, name: str, *, end_s: float = 3600, slurm_job: int = 1, **environment: str) -> ContainerId:
        """Its end is so many seconds from now: the node's own watchdog has a grace of a minute."""
        self.work.folder(self.node)
        labels = {LABEL_AGENT: AGENT, LABEL_END: str(int(time.time() + end_s)), LABEL_SLURM_JOB: str(slurm_job)}
        program = f"import time; '{name}-{self.work.job}'; time.sleep(3600)"
        spec = dataclasses.replace(self.work.spec(program), labels=labels, environment=environment)
        return self.node.runtime.start(spec)

    def run(self, name: str) -> bool:
        return bool(self.node.run("pgrep", "-f", f"[t]ime; '{name}-{self.work.job}'", check=False))


@pytest.fixture
def sleepers(node: Node, work: Work) -> Sleepers:
    return Sleepers(node, work)


@contextmanager
def hanging_engine(node: Node) -> Iterator[None]:
    node.run("pkill", "-STOP", "-x", "dockerd")
    try:
        yield
    finally:
        node.run("pkill", "-CONT", "-x", "dockerd")
        wait_for(node.engine.ping, "the engine answers")


@contextmanager
def programs(node: Node) -> Iterator[None]:
    """Ours as they are in the repository, on the node."""
    epilog = EPILOG.replace("/usr/local/libexec/gleaner/watchdog", f"{PLACE}/watchdog")
    for name, text in (("watchdog", WATCHDOG), ("epilog.sh", epilog)):
        put = f"mkdir -p {PLACE} && cat >{PLACE}/{name} && chmod 755 {PLACE}/{name}"
        subprocess.run(nsenter.words(node.name, "sh", "-c", put), input=text, text=True, check=True)
    try:
        yield
    finally:
        node.run("sh", "-c", f"pkill -f [/]{PLACE[1:]}/watchdog; rm -rf {PLACE}")


@pytest.mark.extended
def test_while_the_engine_hangs_what_is_past_its_end_is_killed_and_nothing_else(sleepers: Sleepers) -> None:
    node = sleepers.node
    end_s = time.time() + 1
    late, paused = sleepers.start("late", end_s=1), sleepers.start("paused", end_s=1)
    lying = 'x,"org.gleaner.end-s":"1"'
    sleepers.start("current", LIE=lying)
    sleepers.start("unlimited", end_s=10_000_000, A='{"org.gleaner.end-s":"1"}')
    other = node.engine.create_container(IMAGE, [f"import time; 'other-{sleepers.work.job}'; time.sleep(3600)"])["Id"]
    node.engine.start(other)
    node.runtime.pause(paused)
    for name in ("late", "paused", "current", "unlimited", "other"):
        wait_for(lambda name=name: sleepers.run(name), f"{name} runs")  # type: ignore[misc]
    try:
        with programs(node), hanging_engine(node):
            wait_for(lambda: time.time() > end_s + 1, "the end")
            settings = "GLEANER_WATCHDOG_GRACE_S=0 GLEANER_WATCHDOG_PATIENCE_S=2 GLEANER_WATCHDOG_PERIOD_S=1"
            node.run("sh", "-c", f"{settings} setsid {PLACE}/watchdog >/dev/null 2>&1 </dev/null &")
            wait_for(lambda: not sleepers.run("late") and not sleepers.run("paused"), "what is late is killed")
            assert all(sleepers.run(name) for name in ("current", "unlimited", "other"))
        assert not node.engine.inspect_container(late)["State"]["Running"]
    finally:
        node.engine.remove_container(other, force=True)


def test_the_epilog_ends_a_jobs_containers_and_itself_also_when_the_engine_hangs(
    sleepers: Sleepers,
) -> None:
    node = sleepers.node
    sleepers.start("ended", slurm_job=4711)
    sleepers.start("other", slurm_job=47110)
    for name in ("ended", "other"):
        wait_for(lambda name=name: sleepers.run(name), f"{name} runs")  # type: ignore[misc]
    with programs(node), hanging_engine(node):
        node.run("env", "SLURM_JOB_ID=4711", f"{PLACE}/epilog.sh")  # the engine answers nothing as long as this runs
        assert not sleepers.run("ended")
        assert sleepers.run("other")
