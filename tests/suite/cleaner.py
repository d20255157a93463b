"""Removes what a run of the tests leaves, also after a run that was killed: a process of its own that outlives it.

    python3 -m tests.suite.cleaner RUN FOLDER

It waits until its standard input ends: the kernel closes that when the run is over, however it ended. Every process
of the run carries GLEANER_TEST_RUN=RUN in its environment, or works or prints below FOLDER, where the run's temporary
files are. What has a terminal and not the mark belongs to a person who looks at these files: it is left alone.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARK = "GLEANER_TEST_RUN"
DOCKER = ("docker", "--host", "unix:///run/gleaner/docker.sock")
LABEL = "org.gleaner.tests"
"""Of the containers that tests start on our engine; its value is the run, or `by-hand`."""
ENGINE = ("dockerd", "containerd")
"""Programs of our engine. They are stopped by engine.sh, which lets their containers end."""
STEP, STEP_MARK = "step.pid", "GLEANER_TEST_STEP"
"""A file and a variable that mark a step of the set-up which must not be broken off, such as one of apt's."""
ENGINE_IS_OURS, CLUSTER_IS_OURS = "engine-is-ours", "cluster-is-ours"
"""Files in the run's folder: the run has started the engine, the cluster."""
STEP_WITHIN_S = 600.0
LONGEST_WORDS = 200
END_WITHIN_S = 10.0


def of_this_run() -> str:
    """Return the label of a container that this run of the tests starts."""
    return f"{LABEL}={os.environ.get(MARK, 'by-hand')}"


def processes_of(run: str, folder: Path) -> Iterator[int]:
    """Yield the processes of the run, without this one."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid() and is_of_run(process, run, folder):
            yield int(process.name)


def is_of_run(process: Path, run: str, folder: Path) -> bool:
    """Return whether a process, named by its folder in /proc, belongs to the run. One that has ended does not."""
    try:
        if f"{MARK}={run}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        has_terminal = (process / "stat").read_bytes().rpartition(b")")[2].split()[4] != b"0"
        return not has_terminal and any(
            f"{(process / name).readlink()}/".startswith(f"{folder}/") for name in ("cwd", "fd/1", "fd/2")
        )
    except OSError:
        return False


def is_engine(process: int) -> bool:
    """Return whether a process is one of a container engine's programs; a script of that name is not."""
    try:
        return Path(f"/proc/{process}/exe").readlink().name.startswith(ENGINE)
    except OSError:
        return False


def words_of(process: int) -> str:
    """Return a process's words, and the test during which it was started."""
    try:
        words, environment = (Path(f"/proc/{process}/{name}").read_bytes() for name in ("cmdline", "environ"))
    except OSError:
        return str(process)
    test = re.search(rb"(?:^|\0)PYTEST_CURRENT_TEST=([^\0]*)", environment)
    said = words.replace(b"\0", b" ")[:LONGEST_WORDS] + (b"of " + test[1] if test else b"")
    return " ".join(said.decode(errors="replace").split())


def end_processes(run: str, folder: Path) -> list[str]:
    """Kill what is left of the run, and what a dying process still starts; return the words of those killed.

    Raises `OSError` if some are still there after END_WITHIN_S.
    """
    ended: dict[int, str] = {}
    give_up_s = time.monotonic() + END_WITHIN_S
    while left := [one for one in processes_of(run, folder) if not is_engine(one)]:
        if time.monotonic() > give_up_s:
            raise OSError(f"processes {', '.join(map(str, left))} do not end")
        for process in left:
            words = words_of(process)
            if _kill(process, run, folder):
                ended.setdefault(process, words)
        time.sleep(0.05)
    return list(ended.values())


def _kill(process: int, run: str, folder: Path) -> bool:
    """Kill a process if it is of the run; return whether it was. Its number may have become another's meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process)
        try:
            if is_of_run(Path(f"/proc/{process}"), run, folder):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                return True
        finally:
            os.close(handle)
    return False


def mounts_in(folder: Path, table: bytes) -> list[str]:
    """Return the mount points at and below the folder, innermost first, from the bytes of /proc/self/mountinfo."""
    escaped = (line.split()[4] for line in table.splitlines())
    points = (os.fsdecode(re.sub(rb"\\(\d{3})", lambda code: bytes([int(code[1], 8)]), point)) for point in escaped)
    return sorted((point for point in points if f"{point}/".startswith(f"{folder}/")), reverse=True)


def unmount(folder: Path) -> int:
    """Detach what is mounted at and below the folder; return how many mounts there were below it.

    Raises `OSError` if something stays. A mount that covers others is detached before these can be.
    """
    number = 0
    while points := mounts_in(folder, Path("/proc/self/mountinfo").read_bytes()):
        # Of a copy of other mounts, these would go together with the copy.
        for point in points:
            _run("mount", "--make-private", point)
        for point in points:
            _run("umount", "--lazy", "--no-canonicalize", point)
        left = mounts_in(folder, Path("/proc/self/mountinfo").read_bytes())
        if len(left) >= len(points):
            raise OSError(f"{left[0]} cannot be unmounted")
        number += sum(point != str(folder) for point in points) - sum(point != str(folder) for point in left)
    return number


def _run(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True, timeout=60)


def _docker(*words: str) -> str:
    done = subprocess.run([*DOCKER, *words], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout


def remove_containers(*filters: str) -> None:
    """Remove the containers that meet docker's filters, also if a killed test has left processes frozen there.

    Raises `OSError` if some are still there after END_WITHIN_S.
    """
    give_up_s = time.monotonic() + END_WITHIN_S
    while containers := _docker(
        "container", "ls", "--all", "--quiet", *(f"--filter={each}" for each in filters)
    ).split():
        if time.monotonic() > give_up_s:
            raise OSError(f"containers {', '.join(containers)} cannot be removed")
        _script("cluster.sh", "thaw", "gleaner-test-")
        with suppress(subprocess.CalledProcessError):  # one may be going already
            _docker("container", "rm", "--force", "--volumes", *containers)


def clean(run: str, folder: Path) -> tuple[list[str], list[str]]:
    """Remove everything of the run. Return what a run that ends by itself would have removed, and what has failed.

    Each step is tried, whatever the steps before it did: an engine that hangs keeps no mount. But a folder with a mount
    in it stays, because what is mounted there may be somebody's.
    """
    leftovers: list[str] = []
    errors: list[str] = []

    def attempt(step: Callable[[], int | list[str] | None], what: str = "") -> bool:
        try:
            found = step()
            if isinstance(found, list):
                leftovers.extend([f"{len(found)} {what} ({'; '.join(found)})"] if found else [])
            elif found:
                leftovers.append(f"{found} {what}")
        except (OSError, subprocess.SubprocessError) as error:
            errors.append(str(error))
            return False
        return True

    # First: what is still to become a step that must not be broken off carries the mark until it is one.
    attempt(lambda: end_processes(run, folder), "processes")
    attempt(lambda: wait_for_step(run, folder))
    attempt(lambda: remove_containers(f"label={LABEL}={run}") if engine_runs() else None)
    if (folder / CLUSTER_IS_OURS).exists():
        attempt(lambda: _script("cluster.sh", "down") if engine_runs() else None)
    if (folder / ENGINE_IS_OURS).exists():
        attempt(stop_engine)
    if attempt(lambda: unmount(folder), "mounts"):
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            errors.append(f"{folder} cannot be removed")
    return leftovers, errors


def wait_for_step(run: str, folder: Path) -> None:
    """Wait until the step that must not be broken off has ended, if there is one.

    Raises `OSError` after STEP_WITHIN_S.
    """
    give_up_s = time.monotonic() + STEP_WITHIN_S
    while step := step_of(run, folder):
        if time.monotonic() > give_up_s:
            raise OSError(f"process {step}, a step of the set-up, does not end")
        time.sleep(0.2)


def step_of(run: str, folder: Path) -> int | None:
    """Return the process that must not be broken off. Another process that has its number by now is none."""
    try:
        process = int((folder / STEP).read_text())
        marks = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return process if f"{STEP_MARK}={run}".encode() in marks else None


def stop_engine() -> None:
    """Stop our engine, unless somebody has started a demo on it meanwhile."""
    if not (engine_runs() and cluster_runs()):
        _script("engine.sh", "stop")


def engine_runs() -> bool:
    """Return whether our engine answers. Raises `TimeoutExpired` if it hangs: then nobody knows what is on it."""
    try:
        return bool(_docker("version", "--format", "{{.Server.Version}}").strip())
    except (OSError, subprocess.CalledProcessError):
        return False


def cluster_runs() -> bool:
    """Return whether the demo's cluster is there, whole or in part.

    Raises `SubprocessError` if the engine does not say: a cluster that is not seen would be taken for the run's own.
    """
    return bool(_docker("ps", "--all", "--quiet", "--filter", "label=org.gleaner.cluster=demo").strip())


def _script(*words: str) -> None:
    subprocess.run([ROOT / "deploy" / words[0], *words[1:]], check=True, capture_output=True, timeout=300)


def main() -> int:
    """Wait for the end of the run, and clean; 1 if something is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    leftovers, errors = clean(arguments.run, arguments.folder)
    if leftovers:
        print(f"cleaner: the run left {' and '.join(leftovers)}; they are gone", flush=True)
    for one in errors:
        print(f"cleaner: {one}", flush=True)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
