"""Node containers for tests/runtime: the node image of the demo's cluster, without Slurm and beside that cluster.

python -m tests.suite.node_containers up | down [SUITE]
With the name of another suite of Debian, the nodes are of that one, beside the first: for GLEANER_TEST_NODES.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.suite import cleaner
from tests.suite.cleaner import DOCKER, ROOT

NAMES = ("test-node1", "test-node2")
PLACE = Path("/var/lib/gleaner/test-nodes")
"""Each node's disk. What its engine has of the images stays, so that they are loaded once."""

MOUNTS = ("/opt/site/calib", "/opt/software")
"""The folders that jobs may mount there."""


def names_of(suite: str) -> list[str]:
    """Return the names of the nodes of a suite; "" is that of the cluster's nodes."""
    return [f"{name}-{suite}" if suite else name for name in NAMES]


def options(name: str, suite: str) -> list[str]:
    """Return docker's options for one node: those of the cluster's nodes, with folders of its own."""
    node: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["x-node"]
    words = [
        "--detach",
        "--init",
        f"--name={name}",
        f"--hostname={name}",
        f"--label={cleaner.of_this_run()}",
        "--env=WITHOUT_SLURM=1",
    ]
    words += ["--network=none"]
    words += [f"--cap-add={capability}" for capability in node["cap_add"]]
    words += [f"--security-opt={option}" for option in node["security_opt"]]
    words += [f"--device-cgroup-rule={rule}" for rule in node["device_cgroup_rules"]]
    words += [f"--tmpfs={point}" for point in node["tmpfs"]]
    words += ["--volume=/sys/fs/cgroup:/sys/fs/cgroup:rw", f"--volume={_settings_of(suite)}:/etc/gleaner"]
    words += [f"--volume={PLACE / name}:/var/lib/gleaner", f"--volume={PLACE / f'{name}-docker'}:/var/lib/docker"]
    return [*words, node["image"].replace(":demo", f":{suite or 'demo'}")]


def _settings_of(suite: str) -> Path:
    return PLACE / f"etc{suite}"


def up(suite: str = "") -> None:
    """Start the nodes anew and wait until each has an engine, a helper and the workloads' images."""
    down(suite)
    etc = _settings_of(suite)
    etc.mkdir(parents=True, exist_ok=True)
    for name in ("privileged.json", "user-jobs.key"):
        (etc / name).unlink(missing_ok=True)
    settings = json.loads((ROOT / "deploy" / "settings" / "privileged.json").read_bytes())
    (etc / "privileged.json").write_text(json.dumps(settings | {"mounts": list(MOUNTS)}))
    (etc / "user-jobs.key").touch(mode=0o600)
    (etc / "user-jobs.key").write_bytes(b"of the tests" * 6)
    for name in names_of(suite):
        for folder in (PLACE / name, PLACE / f"{name}-docker"):
            folder.mkdir(exist_ok=True)
        _run(*DOCKER, "run", *options(name, suite))
    _run(str(ROOT / "deploy" / "cluster.sh"), "load-images", *names_of(suite))


def down(suite: str = "") -> None:
    """Remove the containers."""
    for name in names_of(suite):
        cleaner.remove_containers(f"label={cleaner.LABEL}", f"name=^/{name}$")


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout


if __name__ == "__main__":
    {"up": up, "down": down}[sys.argv[1]](*sys.argv[2:])
