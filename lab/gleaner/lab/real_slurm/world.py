"""The world in which the real Slurm runs: this machine, if it has the programs, else a container.

The driver ends all that it started when its stdin ends, so nothing is left behind if this process dies.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from gleaner.agent.system import untrusted
from gleaner.control.simulation.errors import SimulationError
from gleaner.lab.real_slurm.record import ReplayFailed

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "sinfo", "munged", "faketime")
IMAGE = "gleaner/slurm-lab:demo"
LABEL = "org.gleaner.lab=1"
_OWN_ENGINE = "/run/gleaner/docker.sock"
_ORIGIN = "2026-01-01 00:00:00"
_END_S = 15
"""The time in which the driver must end all that it started."""


class NoSlurm(SimulationError):
    """The error for a machine without a Slurm to compare with."""


@dataclass(frozen=True, slots=True)
class Place:
    """The commands that start the driver, and those that are run when the driver has ended."""

    name: str
    before: tuple[str, ...]
    python: str
    driver: tuple[str, ...]
    after: tuple[str, ...] = ()

    def command(self, speed: float) -> tuple[str, ...]:
        """Return the command that starts the driver in a world whose clocks run `speed` times faster."""
        # Without the setting every process would begin again at the origin.
        world = ("env", "FAKETIME_DONT_RESET=1", "faketime", "-m", "-f", f"@{_ORIGIN} x{speed:g}")
        return (*self.before, *world, self.python, *self.driver)


def find(engine: str | None = None) -> Place:
    """Return the place of Slurm and faketime: this machine if it has them, else a container.

    Raise `NoSlurm` if there is neither.
    """
    driver = Path(__file__).with_name("driver.py")
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if engine is None and not missing:
        return Place("on this machine", (), sys.executable, ("-I", str(driver)))
    host = engine or (f"unix://{_OWN_ENGINE}" if Path(_OWN_ENGINE).exists() else None)
    docker = ("/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker", *(("--host", host) if host else ()))
    if not _has_image(docker):
        lacking = f"{', '.join(missing)} not found on this machine" if missing else "a container was asked for"
        raise NoSlurm(f"{lacking}, and no container engine with the image {IMAGE}: images/build.sh --only slurm-lab")
    name = f"gleaner-lab-{uuid.uuid4().hex[:12]}"
    options = ("--rm", "--interactive", "--init", "--network=none", "--hostname=lab", f"--label={LABEL}")
    return Place(
        "in a container",
        (*docker, "run", *options, f"--name={name}", IMAGE),
        "python3",
        ("-c", driver.read_text(encoding="utf-8")),
        (*docker, "rm", "--force", name),
    )


def _has_image(docker: Sequence[str]) -> bool:
    try:
        done = subprocess.run(
            (*docker, "image", "inspect", IMAGE), capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@dataclass
class _Words:
    """The driver's output, line by line; None at its end."""

    lines: "queue.Queue[str | None]" = field(default_factory=queue.Queue[str | None])

    def listen(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.put(line)
        self.lines.put(None)


def run(
    place: Place, task: Mapping[str, object], *, speed: float, longest_s: float, ended: Callable[[int], None]
) -> dict[str, Any]:
    """Let the driver do its task, and return what Slurm recorded.

    `ended` is told how many jobs have ended. `longest_s` counts real seconds. However the task ends, every process that
    was started is gone afterwards. Raise `ReplayFailed` if the driver or Slurm fails.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            place.command(speed),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us, and we end it
        )
        try:
            answer = _converse(process, task, time.monotonic() + longest_s, ended)
        finally:
            _end(process, place)
        if answer is None:
            errors.seek(0)
            said = " ".join(errors.read().split())[-400:]
            raise ReplayFailed(f"the real Slurm's driver ended without an answer: {said or 'it said nothing'}")
    return answer


def _converse(
    process: "subprocess.Popen[str]", task: Mapping[str, object], until_s: float, ended: Callable[[int], None]
) -> dict[str, Any] | None:
    assert process.stdin is not None  # noqa: S101 - asked for above
    assert process.stdout is not None  # noqa: S101
    words = _Words()
    threading.Thread(target=words.listen, args=(process.stdout,), daemon=True).start()
    try:
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    while True:
        try:
            line = words.lines.get(timeout=max(until_s - time.monotonic(), 0))
        except queue.Empty:
            raise ReplayFailed("the real Slurm took too long; try a lower --speed, or fewer jobs") from None
        if line is None:
            return None
        answer = read_answer(line)
        match answer["kind"]:
            case "failed":
                raise ReplayFailed(f"the real Slurm: {answer.get('why')}")
            case "ended":
                ended(answer["jobs"])
            case "done":
                return answer
            case _:
                pass


def read_answer(line: str) -> dict[str, Any]:
    """Return what the driver says in a line. Raise `ReplayFailed` if that is no message of the driver's."""
    try:
        message = untrusted.json_of(line, for_display=True)
        if not isinstance(message["kind"], str) or (
            message["kind"] == "ended" and not isinstance(message["jobs"], int)
        ):
            raise TypeError("it is no message of the driver's")
    except (ValueError, KeyError, TypeError) as error:
        raise ReplayFailed(f"the real Slurm's driver said {line[:80]!r}: {error}") from error
    return cast("dict[str, Any]", message)


def _end(process: "subprocess.Popen[str]", place: Place) -> None:
    """End the driver: first by its stdin, so that it tidies up; then by force."""
    try:
        if process.stdin is not None:
            process.stdin.close()
    except BrokenPipeError:
        pass
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(_END_S)
    if place.after:
        subprocess.run(place.after, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
