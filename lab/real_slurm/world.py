"""The container in which the real Slurm runs. The driver ends when its stdin ends, and the container ends with it."""

import json
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.real_slurm.configuration import HOST
from lab.real_slurm.record import ReplayFailed

IMAGE = "gleaner/slurm-lab:demo"
LABEL = "org.gleaner.lab=1"
_OWN_ENGINE = "/run/gleaner/docker.sock"
_ORIGIN = "2026-01-01 00:00:00"
_END_S = 15
"""The time within which the container must end."""


@dataclass(frozen=True, slots=True)
class Place:
    """The commands that start the driver, and the command that is run after its end."""

    before: tuple[str, ...]
    driver: tuple[str, ...]
    after: tuple[str, ...] = ()

    def command(self, speed: float) -> tuple[str, ...]:
        """Return the command that starts the driver with clocks that run `speed` times faster."""
        # Without this setting, the time of every process would begin at the origin.
        world = ("env", "FAKETIME_DONT_RESET=1", "faketime", "-m", "-f", f"@{_ORIGIN} x{speed:g}")
        return (*self.before, *world, *self.driver)


def find(engine: str | None = None) -> Place:
    """Return a container in this engine, by default in the demo's engine or in Docker's.

    Raise `ReplayFailed` if no engine has the image.
    """
    host = engine or (f"unix://{_OWN_ENGINE}" if Path(_OWN_ENGINE).exists() else None)
    docker = ("docker", *(("--host", host) if host else ()))
    try:
        subprocess.run((*docker, "image", "inspect", IMAGE), capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        raise ReplayFailed(f"no container engine with the image {IMAGE}: images/build.sh --only slurm-lab") from None
    name = f"gleaner-lab-{uuid.uuid4().hex[:12]}"
    options = ("--rm", "--interactive", "--init", "--network=none", f"--hostname={HOST}", f"--label={LABEL}")
    driver = Path(__file__).with_name("driver.py").read_text(encoding="utf-8")
    return Place(
        (*docker, "run", *options, f"--name={name}", IMAGE),
        ("python3", "-c", driver),
        (*docker, "rm", "--force", name),
    )


def run(
    place: Place, task: Mapping[str, object], *, speed: float, longest_s: float, ended: Callable[[int], None]
) -> dict[str, Any]:
    """Let the driver carry out its task, and return Slurm's record.

    `ended` is called with the number of jobs that have ended. `longest_s` is in real seconds. However the task ends,
    every process that was started is gone afterwards. Raise `ReplayFailed` if the driver or Slurm fails.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            place.command(speed),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # only we receive Ctrl-C, and we end the driver
        )
        assert process.stdin is not None  # noqa: S101 - requested above
        clock = threading.Timer(longest_s, process.stdin.close)  # then the driver ends
        clock.start()
        try:
            with suppress(BrokenPipeError):  # the driver has ended
                process.stdin.write(json.dumps(task) + "\n")
                process.stdin.flush()
            answer = _answer(process, ended)
        finally:
            clock.cancel()
            _end(process, place)
        if answer is None:
            errors.seek(0)
            last = " ".join(errors.read().split())[-400:] or "it took too long; try a lower --speed, or fewer jobs"
            raise ReplayFailed(f"the real Slurm's driver ended without an answer: {last}")
    return answer


def _answer(process: "subprocess.Popen[str]", ended: Callable[[int], None]) -> dict[str, Any] | None:
    for line in process.stdout or ():
        message: dict[str, Any] = json.loads(line)
        if message["kind"] == "done":
            return message
        if message["kind"] == "failed":
            raise ReplayFailed(f"the real Slurm: {message['why']}")
        ended(message["jobs"])
    return None


def _end(process: "subprocess.Popen[str]", place: Place) -> None:
    """End the driver by closing its stdin, and then the container by force."""
    with suppress(BrokenPipeError, subprocess.TimeoutExpired):
        if process.stdin is not None:
            process.stdin.close()
        process.wait(_END_S)
    if place.after:
        subprocess.run(place.after, capture_output=True, timeout=60, check=False)
    process.kill()
    process.wait()
