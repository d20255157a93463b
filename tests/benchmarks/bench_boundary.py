"""The slices lost at the shared end, and the part of the time that is computed. `make bench-boundary`.

Real agents run real containers in one container with the rights of a node; control's API and its queue are real, and
only Slurm is left out: an agent that is still there at its end is killed, as Slurm would do it. A row has so many jobs
that as many processes are runnable for each real core as it says, all of which are saved at each end.

`nodes` cold: what control knows of the node is forgotten before each slice; warm: it is kept, and two slices come first
that do not count. `lost`: slices of which the job does not go on from their end. `lost_s`: seconds computed since the
last checkpoint, of these. `computed_share`: seconds computed and kept, of all seconds from an agent's start to the end.
"""

import argparse
import hashlib
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import docker
import uvicorn
import yaml
from rich.console import Console
from rich.table import Table
from sqlalchemy import Engine, delete, select

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended, failure

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.job_spec import JobSpec
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.report_spool import take_spooled_reports
from gleaner.control.models.jobs import Submission
from gleaner.control.queue import agents
from gleaner.control.queue.database import connect, migrate, snapshot, transaction
from gleaner.control.queue.jobs import SubmissionRules, submit
from gleaner.control.queue.tables import ATTEMPT, CHECKPOINT, RATE
from gleaner.control.settings import QueueSettings, Settings, StorageSettings

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = Path("bench-output/boundary.json")
ENGINE = "unix:///run/gleaner/docker.sock"
PLACE = Path("/var/lib/gleaner/bench-boundary")
NAME = "gleaner-bench-boundary"
WORKLOAD = "gleaner/pi:demo"
UID = 4200
KILL_WAIT_S = 4.0
"""The same as on the demo's cluster."""
WARM_UP = 2
"""So many slices teach control what a warm node's saves cost."""
CORES = os.cpu_count() or 1
_JOB_MB = 25


@dataclass(frozen=True, slots=True)
class Case:
    """One row before it is measured."""

    nodes: str
    oversubscribed: int
    storage_mb_s: int | None
    slices: int
    job_mb: int = _JOB_MB
    slice_s: float = 20.0

    @property
    def memory_mib(self) -> int:
        """Return what a job asks for: a step that control does not round up, so that all jobs have room at once."""
        return 128 * math.ceil((self.job_mb + 100) / 128)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. The seconds are those of all slices together."""

    nodes: str
    oversubscribed: int
    storage_mb_s: int | None
    slices: int
    lost: int
    lost_s: float
    computed_share: float
    job_mb: int
    slice_s: float


def cases(options: argparse.Namespace) -> list[Case]:
    """Return all rows; those that count for the first aim have most slices."""
    found: list[Case] = []
    for storage_mb_s in (None, 50, 10):
        for oversubscribed in (1, 2, 4):
            is_first_aim = storage_mb_s is None and oversubscribed <= 2
            wanted = options.slices or ({1: 84, 2: 168}[oversubscribed] if is_first_aim else 32)
            writing_s = CORES * oversubscribed * _JOB_MB / storage_mb_s if storage_mb_s else 0.0
            slice_s = round(options.slice_s + 3 * writing_s, 1)
            for nodes in ("cold", "warm"):
                found.append(Case(nodes, oversubscribed, storage_mb_s, wanted, slice_s=slice_s))
    found.append(Case("cold", 1, None, options.slices or 30, job_mb=500, slice_s=2 * options.slice_s))
    return [case for case in found if options.only in (None, name_of(case))]


def name_of(case: Case) -> str:
    """Return what `--only` calls a row."""
    return f"{case.nodes}-{case.oversubscribed}-{case.storage_mb_s or 'full'}-{case.job_mb}"


def main() -> None:
    options = _options()
    console = Console()
    wanted = cases(options)
    if not wanted:
        raise SystemExit(f"no row is called {options.only}; they are {', '.join(map(name_of, cases(_options([]))))}")
    rows: list[Row] = []
    figures = StoredFigures(OUTPUT, rows=[])
    failures: list[str] = []
    OUTPUT.parent.mkdir(exist_ok=True)
    try:
        _build()
        with _node() as node:
            for case in wanted:
                try:
                    row = _measured(node, case)
                except (SystemExit, Exception) as error:  # one row that fails costs no other
                    failures.append(f"{name_of(case)}: {failure(error)}")
                    console.print(failures[-1], markup=False, soft_wrap=True)
                    figures.note(failures=failures)
                    continue
                rows.append(row)
                console.print(f"{name_of(case)}: {row.lost} of {row.slices} slices lost")
                figures.add("rows", row)
    finally:
        console.print(_table(rows))
        for line in _sums(rows):
            console.print(line)
    if failures:
        raise SystemExit(f"{len(failures)} of {len(wanted)} rows could not be measured, the first: {failures[0]}")


def _options(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--slices", type=int, help="so many slices a row; by default 32 to 168, two and a half hours")
    said = "seconds a slice; on slow storage longer by what all jobs take to be written three times"
    parser.add_argument("--slice-s", type=float, default=20.0, help=said)
    parser.add_argument("--only", help="one row, for example cold-2-full-25: nodes, processes a core, MB/s, MB a job")
    return parser.parse_args(words)


# ── the node ──────────────────────────────────────────────────────────────────────────────────────────────


def _build() -> None:
    for script in (
        ["deploy/engine.sh", "start"],
        ["images/build.sh", "--only", "pi"],
        ["images/build.sh", "--only", "node"],
    ):
        subprocess.run([ROOT / script[0], *script[1:]], check=True)


class Node:
    """A container with the rights of a node, an engine of its own, and our storage."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def run(self, *words: str, user: str = "root", environment: dict[str, str] | None = None) -> tuple[int, str]:
        status, printed = self._container.exec_run(list(words), user=user, environment=environment or {})
        return status, printed.decode(errors="replace")

    def must(self, *words: str) -> str:
        status, printed = self.run(*words)
        if status != 0:
            raise RuntimeError(f"{' '.join(words)[:120]}: {printed[-500:].strip()}")
        return printed


@contextmanager
def _node() -> Iterator[Node]:
    engine = docker.DockerClient(base_url=ENGINE, version="auto", timeout=3600)
    rights = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["x-node"]
    _remove(engine)
    PLACE.mkdir(parents=True)
    PLACE.chmod(0o755)
    container = engine.containers.run(
        "gleaner/node:demo",
        entrypoint=["/bin/bash", "/bench/node.sh"],
        name=NAME,
        detach=True,
        init=True,
        network_mode="host",  # its agents ask the control of this process
        cap_add=rights["cap_add"],
        security_opt=rights["security_opt"],
        device_cgroup_rules=rights["device_cgroup_rules"],
        tmpfs={"/run": "exec", "/tmp": "exec"},
        volumes={
            "/sys/fs/cgroup": {"bind": "/sys/fs/cgroup", "mode": "rw"},
            str(PLACE): {"bind": "/data", "mode": "rw"},
            str(PLACE / "docker"): {"bind": "/var/lib/docker", "mode": "rw"},
            str(Path(__file__).parent / "boundary"): {"bind": "/bench", "mode": "ro"},
        },
        labels={"org.gleaner.cluster": "demo"},
    )
    try:
        node = Node(container)
        with (PLACE / "image.tar").open("wb") as file:
            subprocess.run(["docker", "-H", ENGINE, "save", WORKLOAD], stdout=file, check=True)
        give_up_s = time.monotonic() + 60
        while node.run("docker", "version")[0] != 0:
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"the node's engine does not answer: {container.logs(tail=5).decode()}")
            time.sleep(0.3)
        node.must("docker", "load", "-q", "-i", "/data/image.tar")
        yield node
    finally:
        _remove(engine)


def _remove(engine: docker.DockerClient) -> None:
    # Stopped within a save, a job is frozen, and what is frozen cannot be killed with its node.
    cgroups = Path("/sys/fs/cgroup")
    for file, thawed in (("freezer.state", "THAWED"), ("cgroup.freeze", "0")):
        for state in [*cgroups.glob(f"{NAME}/*/{file}"), *cgroups.glob(f"*/{NAME}/*/{file}")]:
            state.write_text(thawed)
    for left in engine.containers.list(all=True, filters={"name": f"^{NAME}$"}):
        left.remove(force=True)
    shutil.rmtree(PLACE, ignore_errors=True)


# ── a row ─────────────────────────────────────────────────────────────────────────────────────────────────


def _measured(node: Node, case: Case) -> Row:
    jobs = CORES * case.oversubscribed
    before = WARM_UP if case.nodes == "warm" else 0
    counted = _Counted()
    with _control(node) as control:
        control.submit(jobs, case)
        for number in range(before + math.ceil(case.slices / jobs)):
            if case.nodes == "cold":
                control.forget()
            found = control.a_slice(node, case, jobs)
            if number >= before:
                counted += found
    return Row(
        nodes=case.nodes,
        oversubscribed=case.oversubscribed,
        storage_mb_s=case.storage_mb_s,
        slices=counted.slices,
        lost=counted.lost,
        lost_s=round(counted.lost_s, 1),
        computed_share=round(counted.computed_s / counted.whole_s, 4) if counted.whole_s else 0.0,
        job_mb=case.job_mb,
        slice_s=case.slice_s,
    )


@dataclass(frozen=True, slots=True)
class _Counted:
    """Counts of how some slices ended."""

    slices: int = 0
    lost: int = 0
    lost_s: float = 0.0
    computed_s: float = 0.0
    whole_s: float = 0.0

    def __add__(self, more: "_Counted") -> "_Counted":
        return _Counted(*(one + other for one, other in zip(astuple(self), astuple(more), strict=True)))


class _Control:
    """The real API on a real socket, the queue behind it, and in place of Slurm: this."""

    def __init__(self, state: ControlState, engine: Engine, port: int) -> None:
        self._state, self._engine, self._port = state, engine, port
        self._number = 0

    def submit(self, jobs: int, case: Case) -> None:
        words = ("--samples", str(10**12), "--seed", "1", "--out", ".", "--memory", str(case.job_mb))
        spec = JobSpec(name="pi", image=WORKLOAD, command=words, cpus=1, memory_mib=case.memory_mib)
        with transaction(self._engine) as db:
            for _ in range(jobs):
                submit(db, Submission(job=spec), group="bench", rules=SubmissionRules(0), now_s=time.time())

    def forget(self) -> None:
        with transaction(self._engine) as db:
            db.execute(delete(RATE))

    def a_slice(self, node: Node, case: Case, jobs: int) -> _Counted:
        self._number += 1
        name, secret = f"bench-{os.getpid()}-{self._number}", f"secret-{self._number}"
        began_s = time.time()
        end_s = began_s + case.slice_s
        with transaction(self._engine) as db:
            token_hash = hashlib.sha256(secret.encode()).hexdigest()
            agents.expect(db, name=name, end_s=end_s, token_hash=token_hash, now_s=began_s)
        token = PLACE / "token"
        token.unlink(missing_ok=True)
        token.touch(0o600)
        token.write_text(secret)
        os.chown(token, UID, UID)
        self._run(node, name, case, jobs, end_s)
        take_spooled_reports(self._state, time.time())
        with transaction(self._engine) as db:
            agents.expire(db, name, now_s=time.time() + 3600, losses_until_held=10**6)
        return self._counted(name, began_s=began_s, end_s=end_s)

    def _run(self, node: Node, name: str, case: Case, jobs: int, end_s: float) -> None:
        storage = "/data/storage" if case.storage_mb_s is None else f"/data/slow-{case.storage_mb_s}"
        settings = {
            "CONTROL_URL": f"http://127.0.0.1:{self._port}",
            "STORAGE": storage,
            "WORK": "/data/work",
            "CPUS": str(jobs),
            "MEMORY_MIB": str(jobs * case.memory_mib),
            "MARGIN_S": "5",
            "KILL_WAIT_S": str(KILL_WAIT_S),
            "SHORTEST_SLICE_S": "1",
            "RUNTIME": "docker",
        }
        environment = {f"GLEANER_AGENT_{key}": value for key, value in settings.items()}
        words = ["glean-agent", "run", "--name", name, "--end", str(end_s), "--token-file", "/data/token"]
        stopper = threading.Timer(max(0.1, end_s - time.time()), _kill, [node])
        stopper.start()
        try:
            _, printed = node.run(*words, user="gleaner", environment=environment)
        finally:
            stopper.cancel()
        with (OUTPUT.parent / "boundary.log").open("a") as log:
            log.write(f"== {name_of(case)} {name}\n{printed}\n")
        node.run("sh", "-c", "docker ps -aq --filter label=org.gleaner.agent | xargs -r docker rm -f")

    def _counted(self, agent: str, *, began_s: float, end_s: float) -> _Counted:
        found = _Counted()
        with snapshot(self._engine) as db:
            for row in db.execute(select(ATTEMPT).where(ATTEMPT.c.agent == agent)).all():
                newest = select(CHECKPOINT.c.published_s).where(
                    CHECKPOINT.c.job == row.job, CHECKPOINT.c.attempt == row.attempt
                )
                kept_s = max(db.execute(newest).scalars(), default=None)
                is_lost = row.ending is None or row.ending.value != "saved"
                since_s = kept_s if kept_s is not None else row.claimed_s
                # An attempt that is lost does not say how long it computed: from its last checkpoint to the end.
                kept = row.compute_s if not is_lost else max(0.0, (kept_s or row.claimed_s) - row.claimed_s)
                lost_s = max(0.0, end_s - since_s) if is_lost else 0.0
                found += _Counted(1, int(is_lost), lost_s, kept, end_s - began_s)
        return found


def _kill(node: Node) -> None:
    node.run("sh", "-c", "pkill -KILL -u gleaner -f 'glean-agent run'")


@contextmanager
def _control(node: Node) -> Iterator[_Control]:
    """A fresh queue and a fresh storage."""
    node.must("sh", "-c", "rm -rf /data/storage/* /data/storage/.[!.]* /data/work/*")
    storage = FolderStorage(PLACE / "storage")
    storage.prepare()
    for path in (PLACE / "storage").iterdir():
        os.chown(path, UID, UID)
    with TemporaryDirectory() as folder:
        engine = connect(f"sqlite:///{folder}/queue.db")
        migrate(engine)
        settings = Settings(
            queue=QueueSettings(url="sqlite:///unused", lease_s=20, heartbeat_s=1),
            storage=StorageSettings(folder=PLACE / "storage"),
        )
        state = ControlState(settings=settings, engine=engine, storage=storage, leads_until_s=math.inf)
        server = uvicorn.Server(uvicorn.Config(create_app(state), host="127.0.0.1", port=0, log_level="error"))
        serving = threading.Thread(target=server.run, daemon=True)
        serving.start()
        while not server.started:
            time.sleep(0.02)
        try:
            yield _Control(state, engine, server.servers[0].sockets[0].getsockname()[1])
        finally:
            server.should_exit = True
            serving.join(10)
            engine.dispose()


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────


def _table(rows: list[Row]) -> Table:
    table = Table(title="Slices at the shared end")
    for name in ("nodes", "processes a core", "storage, MB/s", "MB a job", "slices", "lost", "lost, s", "computed"):
        table.add_column(name, justify="left" if name == "nodes" else "right")
    for row in rows:
        table.add_row(
            row.nodes,
            str(row.oversubscribed),
            "as it is" if row.storage_mb_s is None else str(row.storage_mb_s),
            str(row.job_mb),
            str(row.slices),
            str(row.lost),
            f"{row.lost_s:.0f}",
            f"{row.computed_share:.1%}",
        )
    return table


def _sums(rows: list[Row]) -> Iterator[str]:
    """The two sums that the aims are about."""
    first = [row for row in rows if row.storage_mb_s is None and row.oversubscribed <= 2]
    for what, some in (
        ("storage as it is, at most 2 processes a core", first),
        ("all other rows", [row for row in rows if row not in first]),
    ):
        slices, lost = sum(row.slices for row in some), sum(row.lost for row in some)
        if slices:
            yield f"{what}: {lost} of {slices} slices lost ({lost / slices:.1%})"


if __name__ == "__main__":
    sys.exit(ended(main, "make bench-boundary", OUTPUT))
