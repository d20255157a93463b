"""Removes what a run of the tests leaves, also after a run that was killed: a process of its own that outlives it.

    python3 -m tests.suite.cleaner RUN FOLDER

It waits until its standard input ends: the kernel closes that when the run is over, however it ended. Every process
of the run carries GLEANER_TEST_RUN=RUN in its environment, or works below FOLDER, where the run's temporary files are.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARK = "GLEANER_TEST_RUN"
DOCKER = ("docker", "--host", "unix:///run/gleaner/docker.sock")
LABEL = "org.gleaner.tests"
"""Of the containers that tests start on our engine; its value is the run, or `by-hand`."""
ENGINE = ("dockerd", "containerd")
"""Programs of our engine. They are stopped by engine.sh, which lets their containers end."""
STEP = "step.pid"
"""In the run's folder: a step of the set-up that must not be broken off, such as one of apt's."""
ENGINE_IS_OURS, CLUSTER_IS_OURS = "engine-is-ours", "cluster-is-ours"
"""Files in the run's folder: the run has started the engine, the cluster."""
STEP_WITHIN_S = 600.0
END_WITHIN_S = 10.0


def of_this_run() -> str:
    """Return the label of a container that this run of the tests starts."""
    return f"{LABEL}={os.environ.get(MARK, 'by-hand')}"


def processes_of(run: str, folder: Path) -> Iterator[int]:
    """Yield the processes that carry the run's mark or work below its folder, without this one."""
    mark, below = f"{MARK}={run}".encode(), f"{folder}/"
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal() or int(process.name) == os.getpid():
            continue
        try:
            is_marked = mark in (process / "environ").read_bytes().split(b"\0")
            if is_marked or str((process / "cwd").readlink()).startswith(below):
                yield int(process.name)
        except OSError:
            continue


def is_engine(process: int) -> bool:
    """Return whether a process belongs to a container engine."""
    try:
        return Path(f"/proc/{process}/comm").read_text().startswith(ENGINE)
    except OSError:
        return False


def end_processes(run: str, folder: Path) -> int:
    """Kill what is left of the run, and what a dying process still starts; return how many processes were killed."""
    killed: set[int] = set()
    give_up_s = time.monotonic() + END_WITHIN_S
    while (left := [one for one in processes_of(run, folder) if not is_engine(one)]) and time.monotonic() < give_up_s:
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
                killed.add(process)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    return len(killed)


def mounts_in(folder: Path, table: str) -> list[str]:
    """Return the mount points at and below the folder, innermost first, from the text of /proc/self/mountinfo."""
    points = (line.split()[4].encode().decode("unicode_escape") for line in table.splitlines())
    return sorted((point for point in points if f"{point}/".startswith(f"{folder}/")), reverse=True)


def unmount(folder: Path) -> int:
    """Detach what is mounted at and below the folder; return how many mounts there were below it."""
    points = mounts_in(folder, Path("/proc/self/mountinfo").read_text())
    for point in points:
        subprocess.run(["umount", "--lazy", point], check=False, capture_output=True, timeout=60)
    return len([point for point in points if point != str(folder)])


def _docker(*words: str) -> str:
    done = subprocess.run([*DOCKER, *words], capture_output=True, text=True, check=False, timeout=120)
    return done.stdout


def remove_containers(*filters: str) -> None:
    """Remove the containers that meet docker's filters, also if a killed test has left processes frozen there."""
    found = _docker("container", "ls", "--all", "--quiet", *(f"--filter={each}" for each in filters)).split()
    if found:
        _script("cluster.sh", "thaw", "gleaner-test-")
        _docker("container", "rm", "--force", "--volumes", *found)


def clean(run: str, folder: Path) -> tuple[list[str], list[str]]:
    """Remove everything of the run. Return what a run that ends by itself would have removed, and what has failed.

    Each step is tried, whatever the steps before it did: an engine that hangs keeps no mount.
    """
    found: list[str] = []
    wrong: list[str] = []

    def attempt(step: Callable[[], object]) -> None:
        try:
            step()
        except (OSError, subprocess.SubprocessError) as error:
            wrong.append(str(error))

    wait_for_step(folder)
    if killed := end_processes(run, folder):
        found.append(f"{killed} processes")
    if engine_runs():
        attempt(lambda: remove_containers(f"label={LABEL}={run}"))
        if (folder / CLUSTER_IS_OURS).exists():
            attempt(lambda: _script("cluster.sh", "down"))
    if (folder / ENGINE_IS_OURS).exists() and not cluster_runs():  # somebody may have started a demo meanwhile
        attempt(lambda: _script("engine.sh", "stop"))
    if mounts := unmount(folder):
        found.append(f"{mounts} mounts")
    shutil.rmtree(folder, ignore_errors=True)
    return found, wrong


def wait_for_step(folder: Path) -> None:
    """Wait until the step that must not be broken off has ended, if there is one."""
    try:
        process = Path("/proc", (folder / STEP).read_text())
    except OSError:
        return
    give_up_s = time.monotonic() + STEP_WITHIN_S
    while process.exists() and time.monotonic() < give_up_s:
        time.sleep(0.2)


def engine_runs() -> bool:
    """Return whether our engine answers."""
    try:
        return bool(_docker("version", "--format", "{{.Server.Version}}").strip())
    except (OSError, subprocess.TimeoutExpired):
        return False


def cluster_runs() -> bool:
    """Return whether the demo's cluster is there, whole or in part."""
    try:
        return bool(_docker("ps", "--all", "--quiet", "--filter", "label=org.gleaner.cluster=demo").strip())
    except (OSError, subprocess.TimeoutExpired):
        return False


def _script(*words: str) -> None:
    subprocess.run([ROOT / "deploy" / words[0], *words[1:]], check=True, capture_output=True, timeout=300)


def main() -> int:
    """Wait for the end of the run, and clean; 1 if something is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("folder", type=Path)
    told = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    found, wrong = clean(told.run, told.folder)
    if found:
        print(f"cleaner: the run left {' and '.join(found)}; they are gone", flush=True)
    for one in wrong:
        print(f"cleaner: {one}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
