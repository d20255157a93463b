"""One replay by the real Slurm, in a container whose clocks run faster. This file is run as a program under `faketime`.

The driver needs only Python. It reads the task as one line of JSON from stdin, and writes events as lines of JSON to
stdout. When stdin ends, because the program that started the driver is gone, the driver also ends. The container ends
with the driver, and all daemons and jobs end with the container. All times in this file are measured by the faster
clocks.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_JOB = """#!/bin/sh
# The run counts from the start that Slurm wrote down, however long the launch took.
left=$(( (SLURM_JOB_START_TIME + {run_s}) * 1000 - $(date +%s%3N) ))
[ $left -le 0 ] || exec sleep $((left / 1000)).$(printf %03d $((left % 1000)))
"""


class SlurmFailed(Exception):
    """The error for a Slurm program that failed. The message contains the end of its output."""


def main() -> None:
    """Carry out the task on stdin."""
    task: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        _say("done", **World(Path(tempfile.mkdtemp()), task).replay())
    except SlurmFailed as error:
        _say("failed", why=str(error))


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(1)


class World:
    """Slurm's daemons, which all run in this container, as one user and in one folder."""

    def __init__(self, folder: Path, task: Mapping[str, Any]) -> None:
        self._folder = folder
        self._task = task
        self._patience_s: float = task["patience_s"]
        self._began_s = 0.0
        os.environ.update(SLURM_CONF=str(folder / "slurm.conf"), TZ="UTC")
        os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"

    def replay(self) -> dict[str, Any]:
        """Start Slurm, submit every job at its time, wait until all have ended, and return Slurm's record."""
        self._configure()
        self._start()
        # The task sets the phase of the first submission in the backfilling cycle, which began when slurmctld started.
        cycle_s: float = self._task["cycle_s"]
        first_s = self._began_s + self._task["offset_s"]
        while first_s < time.time() + self._task["lead_s"]:
            first_s += cycle_s
        origin_s = float(int(first_s))
        ids = self._submit(origin_s)
        self._wait(len(ids))
        return {"origin_s": origin_s, "ids": ids, "jobs": self._text("jobs")}

    def _configure(self) -> None:
        for name, text in self._task["files"].items():
            (self._folder / name).write_text(text.replace("@FOLDER@", str(self._folder)), encoding="utf-8")
        (self._folder / "state").mkdir()
        for node in range(1, self._task["nodes"] + 1):
            (self._folder / f"spool-n{node}").mkdir()
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)

    def _start(self) -> None:
        inside = self._folder
        names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={inside}/munge.{name}" for option, name in names.items()]
        # munged runs by the true clock, because it checks only the age of a credential, and drops clients that take
        # over 2 s.
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._daemon("munged", "--foreground", "--force", "--num-threads=4", *options, environment=plain)
        self._until("munged", (inside / "munge.socket").exists)
        self._began_s = time.time()
        self._daemon("slurmctld", "-D")
        self._until("slurmctld", lambda: self._answers("scontrol", "ping"))
        for node in range(1, self._task["nodes"] + 1):
            self._daemon("slurmd", "-D", "-N", f"n{node}")
        self._until("the nodes", self._is_idle)

    def _submit(self, origin_s: float) -> list[int]:
        ids: list[int] = []
        for job in self._task["jobs"]:
            left_s = origin_s + job["submit_s"] - time.time()
            if left_s > 0:
                time.sleep(left_s)
            options = (f"--nodes={job['nodes']}", f"--time={job['minutes']}", "--output=/dev/null", "--chdir=/")
            said = self._run("sbatch", "--parsable", "--no-requeue", *options, stdin=_JOB.format(run_s=job["run_s"]))
            ids.append(int(said.split(";")[0]))
        return ids

    def _wait(self, jobs: int) -> None:
        """Wait until Slurm's record of complete jobs contains all of them. Raise `SlurmFailed` after `wait_s`
        seconds."""
        end_s = time.time() + self._task["wait_s"]
        done = 0
        while (found := self._text("jobs").count("JobId=")) < jobs:
            if time.time() > end_s:
                raise SlurmFailed(f"after {self._task['wait_s']:.0f} s of Slurm's time {jobs - found} jobs still run")
            if found > done:
                done = found
                _say("ended", jobs=done)
            time.sleep(self._patience_s / 50)

    def _is_idle(self) -> bool:
        states = self._run("sinfo", "--noheader", "--format=%D %t").split()
        return states == [str(self._task["nodes"]), "idle"]

    def _answers(self, *words: str) -> bool:
        try:
            self._run(*words)
        except SlurmFailed:
            return False
        return True

    def _daemon(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        with (self._folder / f"{words[0]}.out").open("ab") as out:
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)

    def _run(self, *words: str, stdin: str = "") -> str:
        try:
            done = subprocess.run(
                words,
                input=stdin,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=self._patience_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmFailed(f"{words[0]} did not answer") from None
        if done.returncode:
            raise SlurmFailed(f"{words[0]}: {_last(done.stderr + done.stdout)}")
        return done.stdout

    def _until(self, what: str, is_there: Callable[[], bool]) -> None:
        end_s = time.time() + self._patience_s
        while not is_there():
            if time.time() > end_s:
                outs = sorted(self._folder.glob("*.out")) + sorted(self._folder.glob("*.log"))
                words = (_last(path.read_text(errors="replace")) for path in outs)
                raise SlurmFailed(f"{what} did not come up: {' | '.join(one for one in words if one)}")
            time.sleep(self._patience_s / 300)

    def _text(self, name: str) -> str:
        path = self._folder / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _last(text: str) -> str:
    """Return the last lines that are not empty, as one line."""
    return "; ".join([line.strip() for line in text.splitlines() if line.strip()][-3:])[-600:]


def _say(kind: str, **facts: object) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
