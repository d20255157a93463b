"""The times of a save and a restore, beside what one would use instead. `make bench-checkpoint`.

Everything runs on this machine's disk in one container with the rights of a node of the demo cluster, and in turns.
A save lasts from the order until the checkpoint is durable, digests done; the others' end with a sync. A restore
lasts from the order until the process runs. Each figure is the median of its repetitions.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended, failure

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OUTPUT = Path("bench-output/checkpoint.json")
ENGINE = "unix:///run/gleaner/docker.sock"
PLACE = Path("/var/lib/gleaner/bench")
NAME = "gleaner-bench"
AGENT = "/opt/gleaner/bin/python"

LABELS = {
    "ours": "Gleaner, Docker with the shim",
    "ours-criu": "Gleaner, runc and CRIU (node helper)",
    "ours-lazy": "Gleaner, Docker, lazily",
    "ours-criu-lazy": "Gleaner, node helper, lazily",
    "criu": "criu alone",
    "runc": "runc checkpoint / restore",
    "podman": "podman export / import, uncompressed",
    "docker": "Docker's own checkpoint / start",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to save: `count` processes of `size_mib` each, at once."""

    size_mib: int
    kind: str
    count: int
    ways: tuple[str, ...]
    repeat: int


@dataclass(frozen=True, slots=True)
class Row:
    """One way of doing one case, seconds."""

    size_mib: int
    kind: str
    count: int
    way: str
    save_s: float
    restore_s: float
    whole_s: float | None = None
    work_s: float | None = None
    peak_mib: float | None = None
    stored_mib: float | None = None


FAST = ("criu", "runc", "ours", "ours-criu")
SLOW = ("podman", "docker")
LAZY = ("ours-lazy", "ours-criu-lazy")
SHORT = (
    Case(100, "random", 1, FAST + SLOW, 3),
    Case(100, "half", 1, FAST, 3),
    Case(1000, "random", 1, FAST, 3),
    Case(1000, "random", 1, SLOW, 1),
    Case(1000, "half", 1, FAST, 3),
    Case(1000, "random", 4, ("criu", "ours", "ours-criu"), 2),
    Case(4000, "random", 1, ("criu", "ours"), 1),
    Case(8000, "random", 1, ("criu", "ours", "ours-criu"), 1),
    Case(100, "random", 1, LAZY, 3),
    Case(8000, "random", 1, LAZY, 2),
    Case(150, "random", 24, ("ours", "ours-criu", *LAZY), 1),
)
FULL = (
    *SHORT,
    Case(100, "half", 1, SLOW, 3),
    Case(1000, "half", 1, SLOW, 1),
    Case(1000, "half", 4, ("criu", "ours", "ours-criu"), 2),
    Case(4000, "half", 1, FAST, 1),
    Case(8000, "half", 1, FAST, 1),
)


def main() -> None:
    options = _options()
    console = Console()
    rows: list[Row] = []
    failures: list[str] = []
    figures = StoredFigures(OUTPUT, when=time.strftime("%Y-%m-%d"), rows=[])
    with _node() as node:
        disk_mib_s = _disk(node)
        figures.note(disk_mib_s=disk_mib_s)
        cases = [
            (case, way)
            for case in (FULL if options.full else SHORT)
            for way in case.ways
            if way in options.ways.split(",") and case.size_mib * case.count <= options.most_mib
        ]
        for case, way in track(cases, description="saving and restoring", console=console, transient=True):
            try:
                row = _measured(node, case, way)
            except (SystemExit, Exception) as error:  # one way that fails costs no other its figures
                failures.append(f"{_named(case)}, {LABELS[way]}: {failure(error)}")
                console.print(failures[-1], markup=False, soft_wrap=True)
                figures.note(failures=failures)
                continue
            rows.append(row)
            figures.add("rows", row)
            console.print(
                f"{_named(case)}, {LABELS[way]}: saved in {row.save_s:.2f} s, restored in {row.restore_s:.2f} s"
            )
    console.print(_table(rows))
    console.print(f"the disk takes {disk_mib_s:.0f} MiB/s (4 GiB written and synced)")
    if failures:
        raise SystemExit(f"{len(failures)} of {len(cases)} could not be measured, the first: {failures[0]}")


def _named(case: Case) -> str:
    return f"{f'{case.count} x ' if case.count > 1 else ''}{case.size_mib / 1000:g} GB {case.kind}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--full", action="store_true", help="also the slow ways with half-zero memory, and 8 GB")
    parser.add_argument("--ways", default=",".join(LABELS), help="only these, with commas between")
    parser.add_argument("--most-mib", type=int, default=10**6, help="leave out what is larger, all processes together")
    return parser.parse_args()


class Node:
    """A container with the rights of a node, and an engine of its own."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def run(self, *words: str, user: str = "root") -> str:
        status, (stdout, stderr) = self._container.exec_run(list(words), user=user, demux=True)
        if status != 0:
            raise SystemExit(f"{' '.join(words)[:200]}:\n{(stderr or b'').decode()[-2000:]}")
        return (stdout or b"").decode()


@contextmanager
def _node() -> Iterator[Node]:
    subprocess.run([ROOT / "images/build.sh", "--only", "bench"], check=True)
    engine = docker.DockerClient(base_url=ENGINE, version="auto", timeout=3600)
    rights = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["x-node"]
    _remove(engine)
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    volumes = {
        "/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "rw"},
        str(PLACE): {"bind": "/data", "mode": "rw"},
        str(PLACE / "docker"): {"bind": "/var/lib/docker", "mode": "rw"},
        str(PLACE / "containers"): {"bind": "/var/lib/containers", "mode": "rw"},
        str(HERE / "checkpoints"): {"bind": "/bench", "mode": "ro"},
        str(HERE / "checkpoints/hog.py"): {"bind": "/hog.py", "mode": "ro"},
    }
    container = engine.containers.run(
        "gleaner/bench:demo",
        entrypoint=["/bin/bash", "/bench/node.sh"],
        name=NAME,
        detach=True,
        init=True,
        network_mode="none",
        cap_add=rights["cap_add"],
        security_opt=rights["security_opt"],
        device_cgroup_rules=rights["device_cgroup_rules"],
        tmpfs={"/run": "exec", "/tmp": "exec"},
        volumes=volumes,
        labels={"org.gleaner.cluster": "demo"},
    )
    try:
        node = Node(container)
        image = subprocess.Popen(
            ["docker", "-H", ENGINE, "save", "gleaner/pythia:demo"], stdout=(PLACE / "image.tar").open("wb")
        )
        if image.wait() != 0:
            raise SystemExit("the image gleaner/pythia:demo is missing: run images/build.sh")
        node.run("bash", "/bench/prepare.sh")
        yield node
    finally:
        _remove(engine)
        shutil.rmtree(PLACE, ignore_errors=True)


def _remove(engine: docker.DockerClient) -> None:
    for left in engine.containers.list(all=True, filters={"name": f"^{NAME}$"}):
        left.remove(force=True)


def _disk(node: Node) -> float:
    """Return the rate at which the disk is written from memory, with a sync at the end, in MiB/s."""
    began = time.monotonic()
    node.run("sh", "-c", "dd if=/dev/zero of=/data/written bs=4M count=1024 conv=fsync 2>/dev/null && rm /data/written")
    return 4096 / (time.monotonic() - began)


def _measured(node: Node, case: Case, way: str) -> Row:
    size = [str(case.size_mib), case.kind, str(case.count), str(case.repeat)]
    if way.startswith("ours"):
        runtime = way.replace("ours-criu", "criu").replace("ours", "docker")
        said = node.run(AGENT, "/bench/ours.py", runtime, "hog", *size, "/data/ours", user="gleaner")
    else:
        said = node.run("python3", "/bench/others.py", way, *size, "/data/others")
    found = json.loads(said.splitlines()[-1])
    stored = found.get("stored_bytes")
    return Row(
        size_mib=case.size_mib,
        kind=case.kind,
        count=case.count,
        way=way,
        save_s=statistics.median(found["save_s"]),
        restore_s=statistics.median(found["restore_s"]),
        whole_s=statistics.median(found.get("whole_s", found["restore_s"])),
        work_s=statistics.median(found["work_s"]) if "work_s" in found else None,
        peak_mib=found.get("peak_mib"),
        stored_mib=stored / 2**20 if stored is not None else None,
    )


def _table(rows: list[Row]) -> Table:
    table = Table(title="Seconds to save and to restore")
    for name in ("memory", "way"):
        table.add_column(name)
    for name in ("save", "restore", "all memory", "a second of work", "stored, MiB", "agent's memory, MiB"):
        table.add_column(name, justify="right")
    last: tuple[int, str, int] | None = None
    for row in sorted(rows, key=lambda row: (row.count, row.size_mib, row.kind, row.save_s + row.restore_s)):
        case = (row.size_mib, row.kind, row.count)
        if last not in (None, case):
            table.add_section()
        last = case
        table.add_row(
            f"{f'{row.count} x ' if row.count > 1 else ''}{row.size_mib / 1000:g} GB {row.kind}",
            LABELS[row.way],
            f"{row.save_s:.2f}",
            f"{row.restore_s:.2f}",
            "" if row.whole_s is None else f"{row.whole_s:.2f}",
            "" if row.work_s is None else f"{row.work_s:.2f}",
            "" if row.stored_mib is None else f"{row.stored_mib:.0f}",
            "" if row.peak_mib is None else f"{row.peak_mib:.0f}",
        )
    return table


if __name__ == "__main__":
    sys.exit(ended(main, "make bench-checkpoint", OUTPUT))
