"""The harness of the tests of the shim: containers of its runtime, and agents that run inside of a node."""

import contextlib
import select
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
from demo import nsenter
from tests.runtime.nodes_harness import IMAGE, Node, our_labels, wait_for

from gleaner.agent.privileged.shim.main import ANNOTATION_END, ANNOTATION_HANDSHAKE, ANNOTATION_RESTORE
from gleaner.agent.runtime.docker_raw import request
from gleaner.agent.runtime.docker_runtime import RUNTIME

PYTHON = "/opt/gleaner/bin/python"
OWN = Path("/run/gleaner-root")
HANDSHAKES = Path("/run/gleaner-agent")

TICKER = """
import os, time
memory = os.urandom(8 << 20)
count = 0
while True:
    os.write(1, b"%d\\n" % count)  # in one write: a number that is cut in two would count as none
    count += 1
    time.sleep(0.05)
"""


class Engine:
    """Docker's API, with the names that these tests use."""

    def __init__(self, url: str) -> None:
        self._api = docker.APIClient(base_url=url, version="auto", timeout=120)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)

    def create(self, name: str, *, host: Mapping[str, Any], annotations: Any = None, **config: Any) -> str:
        host_config = self._api.create_host_config(network_mode="none", **host)
        host_config |= {"Annotations": annotations} if annotations else {}
        return str(self._api.create_container(name=name, host_config=host_config, **config)["Id"])

    def wait(self, container: str) -> int:
        return int(self._api.wait(container)["StatusCode"])

    def inspect(self, container: str) -> Any:
        return self._api.inspect_container(container)

    def stats(self, container: str) -> Any:
        return self._api.stats(container, stream=False)

    def remove(self, container: str) -> None:
        self._api.remove_container(container, force=True)

    def create_checkpoint(self, container: str, name: str) -> None:
        body = {"CheckpointID": name, "CheckpointDir": "", "Exit": False}
        request(self._api, "POST", container, "checkpoints", json=body)


class Shimmed:
    """One node, and its engine with the shim."""

    def __init__(self, node: Node, name: str) -> None:
        self.node, self.name = node, name
        self.engine = Engine(f"unix://{node.root}/run/docker.sock")

    def run(self, *words: str, user: str = "root", text: str | None = None, timeout_s: float = 60) -> str:
        """Run a command inside the node; what it printed."""
        said = subprocess.run(
            nsenter.words(self.name, *words, user=user),
            input=text, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr + said.stdout
        return said.stdout

    def create(self, name: str, *, restored: bool = False, end_s: float = 3600) -> str:
        """A container as the agent makes it; its agent ends in `end_s` seconds."""
        end = str(int(time.time() + end_s))
        annotations = {ANNOTATION_HANDSHAKE: name, ANNOTATION_END: end}
        if restored:
            annotations[ANNOTATION_RESTORE] = "yes"
        return self.engine.create(
            name,
            host={"runtime": RUNTIME, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "init": False},
            annotations=annotations,
            image=IMAGE,
            command=[TICKER],
            user="4200:4200",
            labels=our_labels(end_s),
            hostname="gleaner",
        )

    def count(self, container: str) -> int:
        """Return the number that the container has counted to; -1 before its first."""
        lines = self.node.engine.logs(container, stderr=False, tail=1).split()
        return int(lines[-1]) if lines else -1

    def exit_code_of_exec(self, container: str, program: str) -> int:
        """Run a Python program in the container by exec and return its exit code.

        Its output proves nothing: on a busy node Docker may drop what an exec prints just before its end
        (https://github.com/moby/moby/issues/27289).
        """
        engine = self.node.engine
        made = engine.exec_create(container, ["python3", "-c", program])["Id"]
        engine.exec_start(made)
        wait_for(lambda: not engine.exec_inspect(made)["Running"], "the exec ends")
        return int(engine.exec_inspect(made)["ExitCode"])

    def until_it_counts_on(self, container: str) -> None:
        """Wait until the container has counted further."""
        before = self.count(container)
        wait_for(lambda: self.count(container) > before, "it counts")

    def left_by_us(self) -> list[str]:
        """Return the files in the folder of root's own."""
        folder = self.node.outside(OWN)
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def processes(self, *sought: str) -> list[str]:
        """The command lines in the node that have one of these words."""
        said = self.run("ps", "-eo", "args").splitlines()
        return [line for line in said if any(word in line for word in sought)]

    def kill(self, *pids: str) -> None:
        """Kill processes of the node, by their numbers there; those that have ended are no error."""
        subprocess.run(nsenter.words(self.name, "kill", "-9", *pids), capture_output=True, check=False)

    @contextlib.contextmanager
    def agent(self, *words: str) -> Iterator["Pretending"]:
        """An agent inside the node (see pretender.py)."""
        process = subprocess.Popen(
            nsenter.words(self.name, PYTHON, "-u", "-", *words, user="gleaner"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write((Path(__file__).parent / "pretender.py").read_text())
        process.stdin.close()
        pretending = Pretending(process)
        pid = pretending.until("pid")[-1].split()[1]
        try:
            yield pretending
        finally:
            self.kill(pid)  # to kill the client would not end what it has started in the node
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()


class Pretending:
    """A pretender at work."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def is_there(self) -> bool:
        """Return True if it has not ended."""
        return self._process.poll() is None

    def until(self, step: str) -> list[str]:
        """Wait until it has got there; all lines until then."""
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            lines.append(line.strip())
            if lines[-1].split()[0] == step:
                return lines
        assert self._process.stderr is not None
        raise AssertionError(f"it ended before {step}: {lines} {self._process.stderr.read()}")

    def has_said_more(self, within_s: float) -> bool:
        """Return True if the agent says anything more within that time."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], within_s)[0])
