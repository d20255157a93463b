"""Runs the tests: sets up what is missing, runs the parts side by side, says what they cost, and leaves nothing behind.

    python3 -m tests.suite.run [--all] [--only PART,...] [--limit-min N] [-- PYTEST'S OPTIONS]

Only the standard library: this program makes the environment in which the tests run. The parts are in PARTS. What it
prints also lies in test-output/: a log and a report for each part, summary.json, flaky.txt.
"""

import argparse
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.suite import cleaner, report
from tests.suite.cleaner import ROOT

OUTPUT = ROOT / "test-output"
BIN = ROOT / ".venv" / "bin"
LIMIT_MIN = 18
SAY_EVERY_S = 30.0
STACKS, STACKS_WITHIN_S = "stacks", 5.0
PR_SET_PDEATHSIG = 1
IN_MEMORY = ("mount", "-t", "tmpfs", "-o", "size=8g", "gleaner-tests")


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that run in one process, beside the other parts."""

    name: str
    marks: str
    """Its tests, as pytest's -m."""
    folders: tuple[str, ...] = ("tests",)
    """Folders of these tests; no other files are read."""
    options: tuple[str, ...] = ()
    needs: str = "venv"
    """The step of the set-up after which the part can begin."""
    niceness: int = 0


PARTS = (
    # What waits for a real cluster comes first to a core; the others fill what it leaves.
    Part("cluster", "cluster", ("tests/real_cluster", "tests/slurm"), needs="cluster"),
    Part("nodes", "nodes", ("tests/runtime", "tests/slurm", "tests/lab"), needs="nodes", niceness=5),
    Part("unit", "not cluster and not nodes", options=("--numprocesses", "3", "--dist", "worksteal"), niceness=10),
)
STATIC = "static"


class SetUpFailed(Exception):
    """A step of the set-up failed; the message says which, and where its output is."""


@dataclass(slots=True)
class Process:
    """A part that runs."""

    part: Part
    process: subprocess.Popen[bytes]
    log: Path
    reported: Path
    began_s: float
    took_s: float = 0.0
    reports: report.Reports = field(default_factory=report.Reports)
    _position: int = 0

    def read(self) -> None:
        """Take over what has been reported since the last look."""
        if not self.reported.exists():
            return
        with self.reported.open() as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._position += len(whole.encode())
        self.reports.read(whole.splitlines())

    @property
    def line(self) -> str:
        """Return how far it is."""
        ended = [test for test in self.reports.tests.values() if test.ended]
        failed = sum(test.failed for test in ended)
        return f"{self.part.name} {len(ended)}" + (f" ({failed} failed)" if failed else "")


class Run:
    """One run of the tests."""

    def __init__(self, told: argparse.Namespace) -> None:
        self.all: bool = told.all
        self.only: tuple[str, ...] = tuple(told.only.split(",")) if told.only else ()
        self.pytest_options: list[str] = told.options
        self.began_s = time.monotonic()
        self.limit_s: float | None = told.limit_min * 60 if told.limit_min else None
        self.id = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="gt", dir="/tmp"))  # short: sockets lie in it
        self.environment = os.environ | {
            cleaner.MARK: self.id,
            "TMPDIR": str(self.folder),
            "GLEANER_TEST_STACKS": str(self.folder / STACKS),
            "GLEANER_TESTS": "all" if told.all else "",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(ROOT / ".venv" / "pycache"),
        }
        self.parts: list[Process] = []
        self.red: list[str] = []
        self.interrupted = False
        self._cleaner: subprocess.Popen[str] | None = None

    # ── set-up ────────────────────────────────────────────────────────────────────────────────────────────

    def start_cleaner(self) -> None:
        """Start what removes everything when this process ends, however it ends."""
        words = [sys.executable, "-m", "tests.suite.cleaner", self.id, str(self.folder)]
        words += ["--keep-engine"] if cleaner.engine_runs() else []
        words += ["--keep-cluster"] if cleaner.cluster_runs() else []
        self._cleaner = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def prepare_folder(self) -> None:
        """Make the folder of all temporary files: in memory where that can be had, so that no test waits for a disk."""
        subprocess.run([*IN_MEMORY, self.folder], check=False, stderr=subprocess.DEVNULL)
        self.folder.chmod(0o1777)  # as /tmp itself: tests have users of their own
        (self.folder / STACKS).mkdir()

    def wants(self, name: str) -> bool:
        """Return whether a part is asked for."""
        return not self.only or name in self.only

    def step(self, name: str, *words: str, whole: bool = False) -> None:
        """Run one step of the set-up. Raises `SetUpFailed`. A `whole` one is not broken off when the run is."""
        log = OUTPUT / "setup.log"
        began_s = time.monotonic()
        environment = {k: v for k, v in self.environment.items() if not (whole and k in {cleaner.MARK, "TMPDIR"})}
        with log.open("ab") as out:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            if whole:
                (self.folder / cleaner.STEP).write_text(str(process.pid))
            process.wait()
            (self.folder / cleaner.STEP).unlink(missing_ok=True)
        if process.returncode:
            raise SetUpFailed(f"{shlex.join(words)} failed; the end of {log.relative_to(ROOT)}:\n{tail_of(log, 25)}")
        took_s = time.monotonic() - began_s
        if took_s > 3:
            self.say(f"{name}: ready after {took_s:.0f} s")

    def set_up_environment(self) -> None:
        """Install the machine's packages and the Python environment."""
        self.step("packages", "deploy/setup.sh", "--tests", whole=True)
        self.step("environment", "make", "--no-print-directory", "venv")

    def set_up_containers(self) -> None:
        """Build the images, and bring up node containers and the cluster."""
        try:
            self.step("engine", "deploy/engine.sh", "start", whole=True)
            self.step("images", "images/build.sh")
            if self.all:
                self.step("PySlurm's image", "images/build.sh", "--only", "slurm-pyslurm")
            if self.wants("nodes"):
                self.step("node containers", str(BIN / "python"), "-m", "tests.suite.node_containers", "up")
                self.begin("nodes")
            if self.wants("cluster"):
                self.step("cluster", "deploy/cluster.sh", "up")
                self.begin("cluster")
        except SetUpFailed as error:
            self.red.append(str(error))

    # ── the parts ─────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, need: str) -> None:
        """Start the parts that waited for this step."""
        for part in PARTS:
            if part.needs == need and self.wants(part.name) and not self.interrupted:
                marks = part.marks if self.all else f"({part.marks}) and not extended"
                where = [] if any("/" in option for option in self.pytest_options) else part.folders
                self.parts.append(self._start(part, [*part.options, "-m", marks, *self.pytest_options, *where]))

    def _start(self, part: Part, options: Sequence[str], *, suffix: str = "") -> Process:
        log, reported = OUTPUT / f"{part.name}{suffix}.log", OUTPUT / f"{part.name}{suffix}.jsonl"
        reported.unlink(missing_ok=True)
        folder = self.folder / f"{part.name[0]}{suffix}"
        words = ["nice", "-n", str(part.niceness)]
        words += [str(BIN / "pytest"), f"--report-log={reported}", f"--basetemp={folder}", *options]
        with log.open("wb") as out:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return Process(part, process, log, reported, time.monotonic())

    def static(self) -> "subprocess.Popen[bytes] | None":
        """Start the static checks beside the tests."""
        if not self.wants(STATIC):
            return None
        out: IO[bytes] = (OUTPUT / "static.log").open("wb")
        words = ["nice", "-n", "5", "make", "--no-print-directory", "static"]
        return subprocess.Popen(words, cwd=ROOT, env=self.environment, stdout=out, stderr=out, start_new_session=True)

    def wait(self, preparing: threading.Thread, static: "subprocess.Popen[bytes] | None") -> None:
        """Wait for everything, say how far it is, and end what takes longer than the limit."""
        said_s = time.monotonic()
        while True:
            running = [one for one in self.parts if one.process.poll() is None]
            for one in self.parts:
                one.read()
                if one not in running and not one.took_s:
                    one.took_s = time.monotonic() - one.began_s
                    self.say(f"{one.part.name}: ended after {one.took_s:.0f} s ({one.line} tests)")
            if static and static.poll() is not None:
                self._judge_static(static)
                static = None
            if not running and not preparing.is_alive() and not static:
                return
            if self.limit_s and time.monotonic() - self.began_s > self.limit_s:
                self._over(running)
                return
            if time.monotonic() - said_s > SAY_EVERY_S:
                said_s = time.monotonic()
                self.say(", ".join(one.line for one in running) or "preparing")
            time.sleep(0.2)

    def _judge_static(self, static: "subprocess.Popen[bytes]") -> None:
        self.say(f"static checks: {'passed' if static.returncode == 0 else 'FAILED'}")
        if static.returncode:
            self.red.append("static checks:\n" + tail_of(OUTPUT / "static.log", 40))

    def _over(self, running: Sequence[Process]) -> None:
        """Say what was running when the limit passed, with the stacks of its threads, and end it."""
        self.red.append(f"the run took longer than {(self.limit_s or 0) / 60:g} min")
        for one in running:
            began = [test.id for test in one.reports.tests.values() if not test.ended]
            self.red.append(f"{one.part.name} was in {', '.join(began) or 'a set-up'}")
        for stacks in (self.folder / STACKS).iterdir():  # each process that has loaded tests/conftest.py has one
            with suppress(ProcessLookupError):
                os.kill(int(stacks.name), signal.SIGUSR1)
        time.sleep(STACKS_WITHIN_S)
        for stacks in (self.folder / STACKS).iterdir():
            self.red.append(f"the threads of process {stacks.name}:\n{stacks.read_text()}")
        for one in running:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.process.wait()

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────

    def judge(self) -> list[str]:
        """Run again what may be run again; return the ids of the tests that failed once."""
        tests = [test for one in self.parts for test in one.reports.tests.values()]
        broken = [error for one in self.parts for error in one.reports.broken]
        for one in self.parts:
            # 0: passed, 1: tests failed, 5: nothing was selected. Else pytest itself has ended early.
            if one.process.returncode not in {0, 1, 5}:
                self.red.append(f"{one.part.name} ended with {one.process.returncode}:\n{tail_of(one.log, 40)}")
        verdict = report.judge(tests, broken)
        self.red += verdict.red
        if self.red:
            return []
        flaky: list[str] = []
        for one in self.parts:
            for name in (id for id in one.reports.tests if id in verdict.again):
                self.say(f"again, alone: {name}")
                again = self._start(one.part, ["-p", "no:xdist", name], suffix="-again")
                again.process.wait()
                (flaky if again.process.returncode == 0 else self.red).append(name)
        return flaky

    def say_all(self, flaky: Sequence[str]) -> None:
        """Write the summary, and print it."""
        tests = [test for one in self.parts for test in one.reports.tests.values()]
        for test in tests:
            if test.failed:
                print(f"\n═══ {test.id}\n{test.error}", flush=True)
        rows, slow = report.table(tests), report.slowest(tests)
        summary = {
            "seconds": round(time.monotonic() - self.began_s, 1),
            "parts": {one.part.name: round(one.took_s, 1) for one in self.parts},
            "folders": rows,
            "slowest": [{"test": test.id, "seconds": round(test.seconds, 2)} for test in slow],
            "failed_once": list(flaky),
            "red": self.red,
        }
        (OUTPUT / "summary.json").write_text(json.dumps(summary, indent=1))
        errors = [f"═══ {test.id}\n{test.error}\n" for test in tests if test.id in flaky]
        (OUTPUT / "flaky.txt").write_text("\n".join(errors))
        print(f"\n{report.as_text(rows, slow)}\n")
        for name in flaky:
            print(f"failed once: {name} (its first error is in test-output/flaky.txt; mend it)")
        for reason in self.red:
            print(f"FAILED: {reason}")
        failed = sum(test.failed for test in tests) - len(flaky)
        skipped = sum(test.skipped for test in tests)
        passed = sum(test.ended for test in tests) - failed - skipped
        self.say(f"the whole run: {'red' if self.red or self.interrupted else 'green'}")
        print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)

    def say(self, words: str) -> None:
        """Print a line with the time since the beginning."""
        passed_s = time.monotonic() - self.began_s
        print(f"{int(passed_s // 60):3}:{int(passed_s % 60):02}  {words}", flush=True)

    def end(self) -> None:
        """End what still runs, and wait until everything is removed."""
        for one in self.parts:
            if one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM):  # once more does not help: all of it is ending
            signal.signal(number, signal.SIG_IGN)
        if self._cleaner and self._cleaner.stdin:
            self._cleaner.stdin.close()
            self._cleaner.wait()


def tail_of(log: Path, lines: int) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def main() -> int:
    """Run the tests; 0 where all is well."""
    parser = argparse.ArgumentParser(prog="tests.suite.run", description=__doc__)
    parser.add_argument("--all", action="store_true", help="the extended tests, too")
    parser.add_argument("--only", default="", help="of static,unit,nodes,cluster")
    parser.add_argument("--limit-min", type=float, default=LIMIT_MIN, help="0 for no limit")
    parser.add_argument("options", nargs="*", help="files, and pytest's own options, behind --")
    run = Run(parser.parse_args())
    # Whoever ends what started this run ends the run.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    OUTPUT.mkdir(exist_ok=True)
    for old in OUTPUT.iterdir():
        old.unlink()
    run.start_cleaner()
    run.prepare_folder()
    flaky: list[str] = []
    try:
        run.set_up_environment()
        preparing = threading.Thread(target=run.set_up_containers, daemon=True)
        if run.wants("nodes") or run.wants("cluster"):
            preparing.start()
        run.begin("venv")
        run.wait(preparing, run.static())
        flaky = run.judge()
    except SetUpFailed as error:
        run.red.append(str(error))
    except KeyboardInterrupt:
        run.interrupted = True
        print("\ninterrupted; everything that was started is removed", flush=True)
    try:
        run.say_all(flaky)
    finally:
        run.end()
    return 1 if run.red or run.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
