"""Runs the tests: sets up what is missing, runs the parts side by side, says what they cost, and leaves nothing behind.

    python3 -m tests.suite.run [--all] [--only PART,...] [--limit-min N] [-- PYTEST'S OPTIONS]

Only the standard library: this program makes the environment in which the tests run. The parts are in PARTS. What it
prints comes from test-output/, where each part has a log and a report.
"""

import argparse
import ctypes
import fcntl
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.suite import cleaner, report
from tests.suite.cleaner import ROOT

OUTPUT = ROOT / "test-output"
BIN = ROOT / ".venv" / "bin"
LIMIT_MIN = 19
SAY_EVERY_S = 30.0
SCHEMA = "tests/api/test_schema.py"
PR_SET_PDEATHSIG = 1
NO_TESTS = 5
"""pytest's exit status where nothing was selected."""
IN_MEMORY = ("mount", "-t", "tmpfs", "-o", "size=8g", "gleaner-tests")


@dataclass(frozen=True, slots=True)
class Part:
    """Tests that run in one process, beside the other parts; or the static checks."""

    name: str
    marks: str = ""
    """Its tests, as pytest's -m."""
    folders: tuple[str, ...] = ("tests",)
    """Folders of these tests; no other files are read."""
    options: tuple[str, ...] = ()
    needs: str = "venv"
    """The step of the set-up after which the part can begin."""
    niceness: int = 0
    nodes: str = ""
    """The names of its node containers, where they are not the usual ones."""


WITHOUT_SCHEMA = ("-p", "no:schemathesis", f"--ignore={SCHEMA}")
"""To collect the tests of the API's schema draws their cases, six seconds of a core: only one process does it."""
STATIC, TESTING = "static", "testing"
"""`testing` is Debian's suite, whose newer Docker, runc and CRIU the runtimes are tried on in `make test-all`."""
PARTS = (
    # What waits for a real cluster comes first to a core; the others fill what it leaves.
    Part("cluster", "cluster", ("tests/real_cluster", "tests/slurm"), WITHOUT_SCHEMA, needs="cluster"),
    Part("nodes", "nodes", ("tests/runtime", "tests/slurm", "tests/lab"), WITHOUT_SCHEMA, needs="nodes", niceness=5),
    Part(
        TESTING,
        "nodes",
        ("tests/runtime/test_conformance.py", "tests/runtime/test_kinds.py"),
        WITHOUT_SCHEMA,
        needs=TESTING,
        niceness=10,
        nodes=f"test-node1-{TESTING} test-node2-{TESTING}",
    ),
    Part("schema", "schema", (SCHEMA,), niceness=10),
    Part(
        "unit",
        "not cluster and not nodes and not schema",
        options=("--numprocesses", "3", "--dist", "worksteal", *WITHOUT_SCHEMA),
        niceness=10,
    ),
    Part(STATIC, niceness=5),
)
PLACE = Path("/tmp").resolve()
"""Of the run's folder. The path is short, because sockets lie in it."""
LOCK = Path("/tmp/gleaner-tests.lock")
"""Held by a run and by its cleaner: node containers, cluster and engine are one for the machine."""


class CannotBegin(Exception):
    """The run could not begin, for example because another one goes on; the message says why and what to do."""


class SetUpFailed(Exception):
    """A step of the set-up failed; the message says which, and where its output is."""


@dataclass(slots=True)
class Process:
    """A part that runs."""

    part: Part
    process: subprocess.Popen[bytes]
    log: Path
    report_log: Path
    began_s: float
    took_s: float = 0.0

    def kill(self) -> None:
        """Kill it. It is not waited for as long as the kernel may keep a process."""
        os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(cleaner.END_WITHIN_S)

    @property
    def tests(self) -> list[report.Outcome]:
        """Return the tests that have begun."""
        return report.read(self.report_log)[0]

    @property
    def progress(self) -> str:
        """Return how far it is."""
        tests = self.tests
        failed = sum(test.failed for test in tests)
        ended = f" {sum(test.ended for test in tests)}" if tests else ""
        return f"{self.part.name}{ended}" + (f" ({failed} failed)" if failed else "")


class Run:
    """One run of the tests."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.all: bool = arguments.all
        self.only: tuple[str, ...] = tuple(arguments.only.split(",")) if arguments.only else ()
        self.pytest_options: list[str] = arguments.options
        self.began_s = time.monotonic()
        self.limit_s: float | None = arguments.limit_min * 60 if arguments.limit_min else None
        self.id = uuid.uuid4().hex
        self.folder = PLACE / f"gt{secrets.token_urlsafe(6)}"
        self.environment = os.environ | {
            cleaner.MARK: self.id,
            "TMPDIR": str(self.folder),
            "GLEANER_TESTS": "all" if arguments.all else "",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(ROOT / ".venv" / "pycache"),
        }
        self.left_out: set[str] = set() if self.all or TESTING in self.only else {TESTING}
        self.parts: list[Process] = []
        self.red: list[str] = []
        self.interrupted = False
        self.is_over = False
        """The limit has passed, or the run ends: nothing more begins."""
        self.step_now = ""
        """The step of the set-up that is going on."""
        self._cleaner: subprocess.Popen[str] | None = None
        self._starting = threading.Lock()

    # ── set-up ────────────────────────────────────────────────────────────────────────────────────────────

    def start_cleaner(self) -> None:
        """Start what removes everything when this process ends, however it ends."""
        try:
            lock = os.open(LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotBegin("another run of the tests goes on on this machine; wait for its end") from None
        except OSError as error:
            raise CannotBegin(f"{error}; run the tests as root") from None
        words = [sys.executable, "-m", "tests.suite.cleaner", self.id, str(self.folder)]
        self._cleaner = subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, text=True, start_new_session=True, pass_fds=(lock,)
        )

    def prepare_folder(self) -> None:
        """Make the folder of all temporary files: in memory where that can be had, so that no test waits for a disk."""
        self.folder.mkdir(0o700)  # not before there is a cleaner
        subprocess.run([*IN_MEMORY, self.folder], env=self.environment, check=False, stderr=subprocess.DEVNULL)
        self.folder.chmod(0o1777)  # as /tmp itself: tests have users of their own

    def wants(self, name: str) -> bool:
        """Return whether a part is asked for, and can be had."""
        return name not in self.left_out and (not self.only or name in self.only)

    def step(self, name: str, *words: str, whole: bool = False) -> None:
        """Run one step of the set-up. Raises `SetUpFailed`. A `whole` one is not broken off when the run is."""
        log = OUTPUT / "setup.log"
        began_s = time.monotonic()
        # It loses the mark when it is known as such a step. Until then the cleaner may kill it: it has not begun.
        become_whole = f'echo $$ >"$0" && exec env -u {cleaner.MARK} -u TMPDIR {cleaner.STEP_MARK}={self.id} "$@"'
        before = ("sh", "-c", become_whole, str(self.folder / cleaner.STEP)) if whole else ()
        with log.open("ab") as out:
            process = self._popen([*before, *words], out)
            self.step_now = name
            try:
                process.wait(self.left_s())
            except subprocess.TimeoutExpired:
                raise SetUpFailed(f"{name} goes on although the run should be over: see {log.name}") from None
            self.step_now = ""
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
            if not cleaner.engine_runs():
                (self.folder / cleaner.ENGINE_IS_OURS).touch()
            self.step("engine", "deploy/engine.sh", "start", whole=True)
            self.step("images", "images/build.sh")
            if self.all:
                self.step("PySlurm's image", "images/build.sh", "--only", "slurm-pyslurm")
            if self.wants("nodes"):
                self.step("node containers", str(BIN / "python"), "-m", "tests.suite.node_containers", "up")
                self.begin("nodes")
            if self.wants(TESTING):
                self._set_up_testing()
            if self.wants("cluster"):
                if not cleaner.cluster_runs():
                    (self.folder / cleaner.CLUSTER_IS_OURS).touch()
                self.step("cluster", "deploy/cluster.sh", "up")
                self.begin("cluster")
        except SetUpFailed as error:
            self.red.append(str(error))
        except Exception as error:  # this is a thread: nobody else would hear of it
            self.red.append(f"the set-up broke: {error!r}")

    def _set_up_testing(self) -> None:
        """Bring up nodes of Debian testing. Where no mirror has that suite, their part is left out with a line."""
        build = ("images/build.sh", "--suite", TESTING, "--only")
        try:
            self.step(f"Debian {TESTING}", *build, "base")
        except SetUpFailed:
            self.say(f"{TESTING}: left out, since Debian {TESTING} cannot be had (see setup.log)")
            self.left_out.add(TESTING)
            return
        self.step(f"the node of Debian {TESTING}", *build, "node")
        self.step(f"nodes of Debian {TESTING}", str(BIN / "python"), "-m", "tests.suite.node_containers", "up", TESTING)
        self.begin(TESTING)

    # ── the parts ─────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, need: str) -> None:
        """Start the parts that waited for this step."""
        for part in PARTS:
            if part.needs == need and self.wants(part.name) and not (self.interrupted or self.is_over):
                self.parts.append(self._start(part))

    def _start(self, part: Part) -> Process:
        log, report_log = OUTPUT / f"{part.name}.log", OUTPUT / f"{part.name}.jsonl"
        if part.name == STATIC:
            words = ["make", "--no-print-directory", STATIC, *([] if self.all else ["PYRIGHT_READS=nothing"])]
        else:
            marks = part.marks if self.all else f"({part.marks}) and not extended"
            where = [] if any("/" in option for option in self.pytest_options) else part.folders
            words = [str(BIN / "pytest"), f"--report-log={report_log}", f"--basetemp={self.folder / part.name[0]}"]
            words += [*part.options, "-m", marks, *self.pytest_options, *where]
        with log.open("wb") as out:
            nodes = {"GLEANER_TEST_NODES": part.nodes} if part.nodes else {}
            process = self._popen(["nice", "-n", str(part.niceness), *words], out, **nodes)
        return Process(part, process, log, report_log, time.monotonic())

    def _popen(self, words: Sequence[str], out: IO[bytes], **environment: str) -> "subprocess.Popen[bytes]":
        """Start a process of the run. Raises `SetUpFailed` if the run is over: the cleaner would not hear of it."""
        with self._starting:
            if self.is_over:
                raise SetUpFailed(f"{shlex.join(words)} was not started: the run is over")
            return subprocess.Popen(
                words,
                cwd=ROOT,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def wait(self, preparing: threading.Thread) -> None:
        """Wait for everything, say how far it is, and end what takes longer than the limit."""
        said_s = time.monotonic()
        while True:
            is_preparing = preparing.is_alive()  # before the look at the parts: its last act may be to add one
            parts = [*self.parts]
            running = [one for one in parts if one.process.poll() is None]
            for one in parts:
                if one not in running and not one.took_s:
                    one.took_s = time.monotonic() - one.began_s
                    self.say(f"{one.part.name}: ended after {one.took_s:.0f} s ({one.progress})")
            if not running and not is_preparing:
                return
            if self.left_s() == 0:
                self._over(running)
                return
            if time.monotonic() - said_s > SAY_EVERY_S:
                said_s = time.monotonic()
                self.say(", ".join(one.progress for one in running) or "preparing")
            time.sleep(0.2)

    def left_s(self) -> float | None:
        """Return the time that is left for the run; None if it has no limit."""
        return None if self.limit_s is None else max(0.0, self.began_s + self.limit_s - time.monotonic())

    def _over(self, running: Sequence[Process]) -> None:
        """Say what was running when the limit passed, and end it."""
        self.is_over = True
        self.red.append(f"the run took longer than {(self.limit_s or 0) / 60:g} min")
        if self.step_now:
            self.red.append(f"the set-up was in {self.step_now}")
        for one in running:
            began = [test.id for test in one.tests if not test.ended]
            self.red.append(f"{one.part.name} was in {', '.join(began) or 'no test'}")
        for one in running:
            one.kill()

    # ── judging ───────────────────────────────────────────────────────────────────────────────────────────

    def judge(self) -> None:
        """Find what makes the run red. Where files or options of pytest were given, a part may have no test."""
        for one in self.parts:
            status = one.process.returncode
            _, is_whole = report.read(one.report_log)
            is_whole |= one.part.name == STATIC
            if not is_whole or status not in ((0, NO_TESTS) if self.pytest_options else (0,)):
                self.red.append(f"{one.part.name} ended with {status}:\n{failures_in(one.log)}")
        begun = {one.part.name for one in self.parts}
        if not self.red:
            self.red += [
                f"{part.name} never began" for part in PARTS if self.wants(part.name) and part.name not in begun
            ]

    def say_all(self) -> None:
        """Print what the tests cost, and below it what is wrong: of a log that is cut, the end is kept."""
        tests = [test for one in self.parts for test in one.tests]
        print(f"\n{report.as_text(tests)}\n")
        for reason in self.red:
            print(f"FAILED: {reason}")
        failed = sum(test.failed for test in tests)
        skipped = sum(test.skipped and not test.failed for test in tests)
        self.say(f"the whole run: {'red' if self.red or self.interrupted else 'green'}")
        print(f"{len(tests) - failed - skipped} passed, {failed} failed, {skipped} skipped", flush=True)

    def say(self, words: str) -> None:
        """Print a line with the time since the beginning."""
        passed_s = time.monotonic() - self.began_s
        print(f"{int(passed_s // 60):3}:{int(passed_s % 60):02}  {words}", flush=True)

    def end(self) -> None:
        """End what still runs, and wait until everything is removed."""
        for number in (signal.SIGINT, signal.SIGTERM):  # once more does not help: all of it is ending
            signal.signal(number, signal.SIG_IGN)
        with self._starting:
            self.is_over = True
        for one in self.parts:
            if one.process.poll() is None:
                os.killpg(one.process.pid, signal.SIGTERM)
        if self._cleaner and self._cleaner.stdin:
            self._cleaner.stdin.close()
            if self._cleaner.wait():
                self.red.append("not everything of the run could be removed")
                print(f"FAILED: {self.red[-1]}", flush=True)


def tail_of(log: Path, lines: int) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def failures_in(log: Path) -> str:
    """Return what pytest printed of its failures, or the end of the log where it did not come to that."""
    text = log.read_text(errors="replace") if log.exists() else ""
    begin = re.search(r"^=+ (?:ERRORS|FAILURES) =+$", text, re.MULTILINE)
    return text[begin.start() :] if begin else tail_of(log, 40)


def run_parts(run: Run) -> None:
    """Set up what is missing, run the tests and judge them."""
    try:
        OUTPUT.mkdir(exist_ok=True)
        for old in OUTPUT.iterdir():
            old.unlink()
        run.prepare_folder()
        run.set_up_environment()
        preparing = threading.Thread(target=run.set_up_containers, daemon=True)
        if run.wants("nodes") or run.wants("cluster"):
            preparing.start()
        run.begin("venv")
        run.wait(preparing)
        run.judge()
    except (SetUpFailed, OSError) as error:  # such as a full disk
        run.red.append(str(error))
    except KeyboardInterrupt:
        run.interrupted = True
        print("\ninterrupted; everything that was started is being removed", flush=True)


def main() -> int:
    """Run the tests; 0 where all is well."""
    parser = argparse.ArgumentParser(prog="tests.suite.run", description=__doc__)
    parser.add_argument("--all", action="store_true", help="the extended tests, too")
    parser.add_argument("--only", default="", help="of static,unit,schema,nodes,testing,cluster")
    parser.add_argument("--limit-min", type=float, default=LIMIT_MIN, help="0 for no limit")
    parser.add_argument("options", nargs="*", help="files, and pytest's own options, behind --")
    arguments = parser.parse_args()
    unknown = {*filter(None, arguments.only.split(","))} - {part.name for part in PARTS}
    if unknown:
        parser.error(f"--only: there is no part {', '.join(sorted(unknown))}")
    # Whoever ends what started this run ends the run.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run = Run(arguments)
    try:
        run.start_cleaner()
    except CannotBegin as error:
        parser.error(str(error))
    try:
        run_parts(run)
        run.say_all()
    finally:
        run.end()
    return 1 if run.red or run.interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
