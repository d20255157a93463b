"""Save and restore as one would without Gleaner, as root: raw CRIU, runc, podman, Docker's own checkpoints.

`others.py WAY MIB KIND COUNT REPEAT PLACE` prints a JSON line with the times of each repetition. Every save ends with
a sync of what it wrote.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

IMAGE = "hog"
USER = 4200
"""In containers, the process has the uid that our jobs have."""
CRIU = "/usr/sbin/criu"
ROOTFS = Path("/data/rootfs")
DOCKER_DATA = Path("/var/lib/docker")


def main() -> None:
    way, size_mib, kind, count, repeat, place = sys.argv[1:]
    place_ = Path(place)
    shutil.rmtree(place_, ignore_errors=True)
    ways = [WAYS[way](place_ / str(number), int(size_mib), kind, number) for number in range(int(count))]
    saves, restores = [], []
    with ThreadPoolExecutor(len(ways)) as pool:
        for one in ways:
            one.job.mkdir(parents=True)
            os.chown(one.job, USER, USER)
        list(pool.map(lambda one: one.start(), ways))
        for one in ways:
            await_tick(one.job, 0)
        for turn in range(int(repeat)):
            began = time.monotonic()
            list(pool.map(lambda one, turn=turn: one.save(turn), ways))
            saves.append(time.monotonic() - began)
            ticks = [tick(one.job) for one in ways]
            began = time.monotonic()
            list(pool.map(lambda one, turn=turn: one.restore(turn), ways))
            restores.append(time.monotonic() - began)
            for one, before in zip(ways, ticks, strict=True):
                await_tick(one.job, before)
        for one in ways:
            one.end()
    shutil.rmtree(place_, ignore_errors=True)
    print(json.dumps({"save_s": saves, "restore_s": restores}))


class Way(Protocol):
    """One process, saved and restored in some way."""

    job: Path

    def start(self) -> None: ...
    def save(self, turn: int) -> None: ...
    def restore(self, turn: int) -> None: ...
    def end(self) -> None: ...


class Raw:
    """CRIU's own command line, on a plain process."""

    def __init__(self, place: Path, size_mib: int, kind: str, number: int) -> None:
        self.place, self.job = place, place / "job"
        self.command = ["python3", "/hog.py", str(size_mib), kind, str(self.job)]
        self.pid = 0

    def start(self) -> None:
        nothing = subprocess.DEVNULL
        self.pid = subprocess.Popen(
            self.command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True
        ).pid

    def save(self, turn: int) -> None:
        images = self.place / f"images{turn}"
        images.mkdir()
        run(CRIU, "dump", "-t", str(self.pid), "-D", str(images), "-o", "dump.log")
        with contextlib.suppress(ChildProcessError):  # a child of ours keeps its number until it is reaped
            os.waitpid(self.pid, 0)
        synced(images)

    def restore(self, turn: int) -> None:
        images = self.place / f"images{turn}"
        run(CRIU, "restore", "-d", "-D", str(images), "-o", "restore.log")
        shutil.rmtree(images)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Runc:
    """runc's checkpoint and restore."""

    def __init__(self, place: Path, size_mib: int, kind: str, number: int) -> None:
        self.place, self.job, self.name = place, place / "job", f"bench{number}"
        self.command = ["python3", "/hog.py", str(size_mib), kind, "/job"]

    def start(self) -> None:
        run("runc", "spec", "-b", str(self.place))
        config = json.loads((self.place / "config.json").read_text())
        config["root"] = {"path": str(ROOTFS), "readonly": False}
        config["process"].update(terminal=False, args=self.command, user={"uid": USER, "gid": USER})
        config["linux"]["cgroupsPath"] = f"/gleaner-bench/{self.name}"
        config["linux"]["resources"].pop("memory", None)
        config["mounts"] = [m for m in config["mounts"] if m["type"] != "cgroup"]
        config["mounts"].append(
            {"destination": "/job", "type": "bind", "source": str(self.job), "options": ["bind", "rw"]}
        )
        (self.place / "config.json").write_text(json.dumps(config))
        run("sh", "-c", f"runc run -d -b {self.place} {self.name} </dev/null >/dev/null 2>&1")

    def save(self, turn: int) -> None:
        images = self.place / f"images{turn}"
        run("runc", "checkpoint", "--image-path", str(images), "--work-path", str(self.place), self.name)
        synced(images)

    def restore(self, turn: int) -> None:
        images = self.place / f"images{turn}"
        words = f"runc restore -d -b {self.place} --image-path {images} --work-path {self.place} {self.name}"
        run("sh", "-c", f"{words} </dev/null >/dev/null 2>&1")
        shutil.rmtree(images)

    def end(self) -> None:
        run("runc", "delete", "-f", self.name)


class Podman:
    """podman's export and import, uncompressed, with runc."""

    WORDS = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "overlay")

    def __init__(self, place: Path, size_mib: int, kind: str, number: int) -> None:
        self.place, self.job, self.name = place, place / "job", f"bench{number}"
        self.command = ["/hog.py", str(size_mib), kind, "/job"]

    def start(self) -> None:
        run(
            *self.WORDS, "run", "-d", "--name", self.name, "--network", "none", "--user", f"{USER}:{USER}",
            "-v", f"{self.job}:/job", IMAGE, *self.command,
        )  # fmt: skip

    def save(self, turn: int) -> None:
        file = self.place / "export.tar"
        run(*self.WORDS, "container", "checkpoint", "--compress", "none", "--export", str(file), self.name)
        synced(file)

    def restore(self, turn: int) -> None:
        run(*self.WORDS, "rm", "-f", self.name)
        run(*self.WORDS, "container", "restore", "--import", str(self.place / "export.tar"))

    def end(self) -> None:
        run(*self.WORDS, "rm", "-f", "-t", "0", self.name)


class Docker:
    """Docker's own checkpoints."""

    def __init__(self, place: Path, size_mib: int, kind: str, number: int) -> None:
        self.place, self.job, self.name = place, place / "job", f"bench{number}"
        self.command = ["/hog.py", str(size_mib), kind, "/job"]
        self.id = ""

    def start(self) -> None:
        run("docker", "rm", "-f", self.name)
        self.id = run(
            "docker", "run", "-d", "--name", self.name, "--network", "none", "--user", f"{USER}:{USER}",
            "-v", f"{self.job}:/job", IMAGE, *self.command,
        ).strip()  # fmt: skip

    def save(self, turn: int) -> None:
        run("docker", "checkpoint", "create", self.name, f"turn{turn}")
        synced(self.folder(turn))

    def restore(self, turn: int) -> None:
        # Without a change, containerd refuses what it still holds from the save ("already exists").
        (self.folder(turn) / "nonce").write_text(str(time.time_ns()))
        run("docker", "start", "--checkpoint", f"turn{turn}", self.name)

    def folder(self, turn: int) -> Path:
        return DOCKER_DATA / "containers" / self.id / "checkpoints" / f"turn{turn}"

    def end(self) -> None:
        run("docker", "rm", "-f", self.name)
        for left in (DOCKER_DATA / "gleaner-tmp").glob("ctrd-checkpoint*"):
            shutil.rmtree(left, ignore_errors=True)


WAYS: dict[str, Callable[[Path, int, str, int], Way]] = {
    "criu": Raw,
    "runc": Runc,
    "podman": Podman,
    "docker": Docker,
}


def run(*words: str) -> str:
    """A command's output. Its failure ends the benchmark, with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0 and words[:3] != ("docker", "rm", "-f"):
        raise SystemExit(f"{' '.join(words)[:200]}: {done.stderr[-500:]}")
    return done.stdout


def synced(path: Path) -> None:
    """Wait until a file, or all of a folder, is on the disk."""
    for one in [path, *path.rglob("*")] if path.is_dir() else [path]:
        if one.is_file() or one.is_dir():
            file = os.open(one, os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def tick(job: Path) -> int:
    path = job / "tick"
    return int(path.read_text()) if path.exists() else 0


def await_tick(job: Path, more_than: int) -> None:
    until = time.monotonic() + 300
    while tick(job) <= more_than:
        if time.monotonic() > until:
            raise SystemExit(f"{job} does not count on from {more_than}")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
