"""The speed of replays, side by side with AccaSim in one run. `make bench-simulate`.

AccaSim comes from PyPI, into an environment of its own under bench-output/ (it is no dependency of ours): it needs
numpy, scipy, matplotlib, psutil and sortedcontainers there, some 250 MB, and one missing name put back in the standard
library (see peers/with_accasim.py). Both sides replay the same file with EASY backfilling; the time of each is that of
the replay, without the start of the program; AccaSim reads the file as it goes, ours does so before.

Times are CPU seconds, so that what else runs on the machine counts little; of ours the best of three. Compilation is
the first replay of a process, with all that it imports. Memory is the peak of a process that replays a million jobs.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended
from tests.simulation import shipped

from gleaner.control.simulation.model import Machine, Schedule, Seconds, Workload, of_nodes, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import AgentSettings, CostSettings, SchedulerKind, SchedulerSettings
from gleaner.control.simulation.tuning.tune import Sweep, compare, settings_of
from gleaner.control.simulation.tuning.variants import variation
from gleaner.control.simulation.workloads import traces
from gleaner.control.simulation.workloads.synthetic import Exponential, LimitSettings, Source, SyntheticSettings, make

OUTPUT = Path("bench-output/simulate.json")
ACCASIM = Path("bench-output/accasim")
ACCASIM_VERSION = "1.1.3"
NODES = 4000
LENGTHS = (10_000, 100_000, 1_000_000)
LOGS = (("SDSC-SP2.pyssEASY.swf.gz", 128), ("KTH-SP2.pyssEASY.swf.gz", 100))
AGENTS = AgentSettings(length_s=3600)


@dataclass(frozen=True, slots=True)
class Peer:
    """One trace on both sides. Waits are compared with what the file has in column 3: a reference, if it has one."""

    trace: str
    jobs: int
    ours_rate: float
    accasim_rate: float
    ours_as_reference: float | None
    accasim_as_reference: float | None


@dataclass(frozen=True, slots=True)
class Rate:
    """One replay of the synthetic workload on 4,000 nodes."""

    scheduler: str
    jobs: int
    rate: float
    mean_wait_s: float


def main() -> None:
    options = _options()
    console = Console()
    figures = StoredFigures(OUTPUT, cores=os.cpu_count())
    peers: list[Peer] = []
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-") as place, console.status("") as status:
        folder = Path(place)
        status.update("compiling")
        compiling: dict[str, dict[str, float]] = {}
        for kind in (SchedulerKind.EASY, SchedulerKind.CONSERVATIVE):
            seconds = compiling[kind.value] = _compiling(kind, folder)
            figures.note(compiling=compiling)
            console.print(
                f"{kind.value}: compiled in {seconds['cold']:.1f} s, taken from the cache in {seconds['cached']:.2f} s"
            )
        status.update("replaying")
        rates: list[Rate] = []
        for rate in _rates(options.most):
            rates.append(rate)
            figures.add("rates", rate)
        console.print(_rates_table(rates))
        memory_mib = _memory_mib(options.most)
        figures.note(memory_mib=memory_mib)
        console.print(f"Peak memory with {options.most} jobs: {memory_mib:.0f} MiB. {os.cpu_count()} cores.")
        status.update("tuning")
        seeds = 2 if options.quick else 10
        sweep_s = _sweep_s(seeds)
        figures.note(sweep_s=sweep_s, sweep_seeds=seeds)
        console.print(
            f"Tuning: 8 settings from 100,000 jobs, {seeds} histories of half a year each, in {sweep_s:.1f} s"
        )
        if not options.alone:
            status.update("installing AccaSim")
            python = _accasim()
            status.update("replaying with AccaSim, which takes minutes")
            for name, processors, has_answer in _traces(folder, options):
                peers.append(_beside(python, folder / name, processors, has_answer))
                figures.add("peers", peers[-1])
                console.print(
                    f"{name}: AccaSim {peers[-1].accasim_rate:,.0f}, Gleaner {peers[-1].ours_rate:,.0f} jobs/s"
                )
            console.print(_peers_table(peers))
    console.print(f"The same figures: {OUTPUT}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no trace of a million jobs, and only short ones beside")
    parser.add_argument("--alone", action="store_true", help="without AccaSim")
    parser.add_argument("--logs", type=Path, default=os.environ.get("GLEANER_TRACES"), help="a folder with real logs")
    parser.add_argument("--memory", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--compile", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.most = LENGTHS[-2 if options.quick else -1]
    return options


def synthetic(jobs: int) -> Workload:
    """The Lublin-Feitelson model at 80 % load of 4,000 nodes."""
    limits = LimitSettings(factor=Exponential(mean=3))
    return make(SyntheticSettings(source=Source.LUBLIN, jobs=jobs, load=0.8, seed=1, limits=limits), of_nodes(NODES))


def best_s(run: Callable[[], Schedule]) -> float:
    """CPU seconds of the fastest of three, after one that compiles."""
    run()
    times: list[float] = []
    for _ in range(3):
        began_s = time.process_time()
        run()
        times.append(time.process_time() - began_s)
    return min(times)


def _rates(most: int) -> Iterator[Rate]:
    """Time per job must not grow with the length."""
    cases: list[tuple[str, SchedulerSettings, AgentSettings | None, int]] = [
        ("easy", SchedulerSettings(kind=SchedulerKind.EASY), None, most),
        ("easy, agents", SchedulerSettings(kind=SchedulerKind.EASY), AGENTS, most),
        ("conservative", SchedulerSettings(kind=SchedulerKind.CONSERVATIVE), None, most),
        ("fcfs", SchedulerSettings(kind=SchedulerKind.FCFS), None, most),
    ]
    machine = of_nodes(NODES)
    for jobs in LENGTHS:
        workload = synthetic(jobs)
        for name, scheduler, agents, at_most in cases:
            if jobs <= at_most:
                seconds = best_s(lambda s=scheduler, a=agents, w=workload: replay(w, machine, s, a))  # type: ignore[misc]
                mean_wait_s = float(np.mean(replay(workload, machine, scheduler, agents).wait_s))
                yield Rate(name, jobs, jobs / seconds, mean_wait_s)


def _traces(folder: Path, options: argparse.Namespace) -> list[tuple[str, int, bool]]:
    """Files in the folder, not compressed, since AccaSim takes no others; processors; whether they hold an answer."""
    found: list[tuple[str, int, bool]] = []
    made = traces.read(shipped.PATH)
    _write_swf(folder / "Lublin, 2,000 jobs", made.workload, made.wait_s)
    found.append(("Lublin, 2,000 jobs", shipped.PROCESSORS, True))
    if not options.quick:  # of which AccaSim does ten a second
        _write_swf(folder / "Lublin, 4,000 nodes", synthetic(500))
        found.append(("Lublin, 4,000 nodes", NODES, False))
    for name, processors in LOGS:
        path = Path(options.logs or "../shared/traces") / name
        if not path.is_file():
            Console().print(f"{name} is absent: --logs names a folder that has it")
            continue
        log = traces.read(path, processors=processors)
        jobs = 3_000 if options.quick else len(log.workload)
        first = np.arange(min(jobs, len(log.workload)))
        title = name.removesuffix(".pyssEASY.swf.gz")
        _write_swf(folder / title, log.workload.only(first), log.wait_s[first])
        found.append((title, processors, True))
    return found


def _write_swf(path: Path, workload: Workload, wait_s: Seconds | None = None) -> None:
    """Write a file of the workload, whose times are whole seconds. Its jobs are all of one user."""
    waits = np.full(len(workload), -1.0) if wait_s is None else wait_s
    times = (workload.submit_s, waits, workload.run_s, workload.limit_s)
    columns = (workload.job, workload.processors, *(np.rint(each).astype(int) for each in times))
    with path.open("w") as file:
        for job, size, submit, wait, run, limit in zip(*(column.tolist() for column in columns), strict=True):
            print(job, submit, wait, run, size, -1, -1, size, limit, -1, "1 1 1 -1 -1 -1 -1 -1", file=file)


def _sweep_s(seeds: int) -> float:
    """Return the seconds of `tune` on all cores, whose settings need nine replays for each seed.

    The trace of 100,000 jobs has five and a half years. A seed is a history of half a year, drawn from its weeks.
    """
    workload, cost = synthetic(100_000), CostSettings(constant_s=60)
    settings = settings_of(AgentSettings(save=cost, restore=cost), (1800.0, 3600.0, 7200.0, 14400.0), (True, False))
    began_s = time.perf_counter()
    sweep = Sweep(workload, of_nodes(NODES), SchedulerSettings(), variation(workload), settings)
    compare(sweep, seeds, len(os.sched_getaffinity(0)))
    return time.perf_counter() - began_s


def _beside(python: Path, path: Path, processors: int, has_answer: bool) -> Peer:
    trace = traces.read(path, processors=processors)
    machine: Machine = of_processors(processors)
    seconds = best_s(lambda: replay(trace.workload, machine, SchedulerSettings()))
    waits = dict(zip(trace.workload.job, replay(trace.workload, machine, SchedulerSettings()).wait_s, strict=True))
    script = Path(__file__).with_name("peers") / "with_accasim.py"
    command: list[str | Path] = [python, script, path, "--processors", str(processors), "--folder", path.parent]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    theirs = {int(job): wait for job, wait in answer["waits"].items()}
    reference = dict(zip(trace.workload.job, trace.wait_s, strict=True)) if has_answer else None
    jobs = len(trace.workload)
    return Peer(
        path.name,
        jobs,
        jobs / seconds,
        jobs / answer["seconds"],
        _same(waits, reference),
        _same(theirs, reference),
    )


def _same(waits: dict[int, float], reference: dict[int, float] | None) -> float | None:
    if reference is None:
        return None
    return sum(waits.get(job) == wait for job, wait in reference.items()) / len(reference)


def _accasim() -> Path:
    python = ACCASIM / "bin" / "python"
    if not python.exists():
        venv.create(ACCASIM, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-qq", f"accasim=={ACCASIM_VERSION}"], check=True)
    return python


def _compiling(kind: SchedulerKind, folder: Path) -> dict[str, float]:
    """CPU seconds that the first replay of a process takes, without what is kept and with it."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / f"cache-{kind.value}")}

    def first_s() -> float:
        command = [sys.executable, __file__, "--compile", kind.value]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    return {"cold": first_s(), "cached": first_s()}


def _first_replay_s(kind: str) -> float:
    """The loop and all that it imports, in a process that has done neither."""
    began_s = time.process_time()
    workload = traces.read(shipped.PATH).workload
    replay(workload, of_processors(shipped.PROCESSORS), SchedulerSettings(kind=SchedulerKind(kind)))
    return time.process_time() - began_s


def _memory_mib(jobs: int) -> float:
    command = [sys.executable, __file__, "--memory", str(jobs)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _peak_mib(jobs: int) -> float:
    import resource

    replay(synthetic(jobs), of_nodes(NODES), SchedulerSettings())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _peers_table(peers: list[Peer]) -> Table:
    table = Table(title="EASY backfilling, jobs a second")
    for column in ("trace", "jobs", "AccaSim", "Gleaner", "times", "waits as the reference: AccaSim", "Gleaner"):
        table.add_column(column, justify="left" if column == "trace" else "right")
    for peer in peers:
        shares = (peer.accasim_as_reference, peer.ours_as_reference)
        table.add_row(
            peer.trace,
            f"{peer.jobs:,}",
            f"{peer.accasim_rate:,.0f}",
            f"{peer.ours_rate:,.0f}",
            f"{peer.ours_rate / peer.accasim_rate:,.0f}",
            *("-" if share is None else f"{100 * share:.1f} %" for share in shares),
        )
    return table


def _rates_table(rates: list[Rate]) -> Table:
    table = Table(title=f"Lublin-Feitelson workload on {NODES:,} nodes at 80 % load")
    for column in ("scheduler", "jobs", "jobs a second", "microseconds a job", "mean wait (h)"):
        table.add_column(column, justify="left" if column == "scheduler" else "right")
    for rate in sorted(rates, key=lambda rate: rate.scheduler):
        table.add_row(
            rate.scheduler,
            f"{rate.jobs:,}",
            f"{rate.rate:,.0f}",
            f"{1e6 / rate.rate:.2f}",
            f"{rate.mean_wait_s / 3600:.1f}",
        )
    return table


if __name__ == "__main__":
    if "--memory" in sys.argv:
        print(_peak_mib(int(sys.argv[-1])))
    elif "--compile" in sys.argv:
        print(_first_replay_s(sys.argv[-1]))
    else:
        sys.exit(ended(main, "make bench-simulate", OUTPUT))
