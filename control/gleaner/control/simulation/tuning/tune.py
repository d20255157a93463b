"""Agents of several lengths, each compared with the same histories of one machine without agents.

Each seed makes one history (`variants`), which is replayed without agents and with each setting. The differences are
paired, because both replays have the same jobs. The low-priority queue is endless here, because the question is how
much agents could gain, and at what cost to regular jobs.
"""

import multiprocessing
import os
import signal
import statistics
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import product

import numpy as np

from gleaner.control.simulation.errors import BadScenario, SimulationError
from gleaner.control.simulation.metrics.measures import measure
from gleaner.control.simulation.metrics.tables import duration
from gleaner.control.simulation.model import Machine, Schedule, Workload
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import AgentSettings, SchedulerSettings
from gleaner.control.simulation.tuning.variants import Variation, variant

LEVEL = 0.95
SHORTEST_SLICE_S = 5.0
"""The shortest slice that control accepts (`RoundSettings.shortest_slice_s`)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the seeds, and the ends of its 95 % confidence interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures of one setting in one history, and those of the same history without agents."""

    wait_without_s: float
    wait_growth_s: float
    load_without: float
    load_growth: float
    """The unit time that was computed and kept, as a share of all unit time. Without agents, it is `load_without`."""
    later: float
    """The share of regular jobs that start later than without agents."""
    earlier: float
    later_mean_s: float
    """The mean delay of the jobs that start later."""
    earlier_mean_s: float
    never_started: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of one setting with no agents. A figure without an interval is a mean over the seeds."""

    agents: AgentSettings
    trials: tuple[Trial, ...]

    def mean(self, name: str) -> float:
        """Return the mean of one figure of the trials."""
        return statistics.fmean(getattr(trial, name) for trial in self.trials)

    @property
    def wait_growth_s(self) -> Interval:
        return interval([trial.wait_growth_s for trial in self.trials])

    @property
    def load_growth(self) -> Interval:
        return interval([trial.load_growth for trial in self.trials])

    def seeds_to_decide(self, limit_s: float) -> int:
        """Return the approximate number of seeds for which the limit is outside the interval of the wait, and 0 is
        outside that of the load.

        Means and deviations are assumed to stay the same, so that an interval shrinks with 1/sqrt(seeds). Student's t
        needs two more seeds than the normal distribution, and one more is for rounding up.
        """
        waits_s = [trial.wait_growth_s - limit_s for trial in self.trials]
        loads = [trial.load_growth for trial in self.trials]
        noise = max(statistics.stdev(each) / (abs(statistics.fmean(each)) or 1e-9) for each in (waits_s, loads))
        return max(len(self.trials) + 1, 3 + int((1.96 * min(noise, 50)) ** 2))  # seldom more than 9,607


@dataclass(frozen=True, slots=True)
class Sweep:
    """The inputs that all replays share."""

    workload: Workload
    machine: Machine
    scheduler: SchedulerSettings
    how: Variation
    settings: tuple[AgentSettings, ...]


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of at least two figures with its interval, by Student's t.

    >>> found = interval([1.0, 2.0, 3.0, 4.0])
    >>> found.mean, round(found.low, 4), round(found.high, 4)
    (2.5, 0.4457, 4.5543)
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to load

    mean, count = statistics.fmean(values), len(values)
    quantile = float(stdtrit(np.float64(count - 1), np.float64((1 + LEVEL) / 2)))
    half = quantile * statistics.stdev(values) / count**0.5
    return Interval(mean, mean - half, mean + half)


def settings_of(
    agents: AgentSettings, lengths_s: Iterable[float], preemptions: Iterable[bool]
) -> tuple[AgentSettings, ...]:
    """Return these agents with each length that leaves them time to compute. Raise `BadScenario` if there is none."""
    if agents.queue.jobs is not None:
        raise BadScenario("tune needs an endless low-priority queue: leave out jobs in [agents.queue]")
    if agents.shortest_slice_s < SHORTEST_SLICE_S:
        raise BadScenario(f"a shortest slice of {duration(agents.shortest_slice_s)}: control takes none below 5 s")
    memory_mib = agents.queue.memory_mib * agents.jobs_per_agent
    costs_s = agents.save.seconds(memory_mib) + agents.restore.seconds(memory_mib) + agents.margin_s
    of = [(preemption, length_s) for preemption, length_s in product(preemptions, lengths_s) if length_s > costs_s]
    if not of:
        raise BadScenario(
            f"no agent would compute: the longest has {duration(max(lengths_s))}, and a save, a restore and the margin "
            f"take {duration(costs_s)}"
        )
    return tuple(
        agents.model_copy(
            update={
                "length_s": length_s,
                "preemption": preemption,
                # As in control, for a round that is shorter than the slice.
                "shortest_slice_s": agents.shortest_slice_s if agents.shortest_slice_s < length_s else length_s / 2,
            }
        )
        for preemption, length_s in of
    )


def compare(
    sweep: Sweep, seeds: int, workers: int, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> tuple[Comparison, ...]:
    """Return each setting with one trial for each of the seeds from 1 to `seeds`.

    Ctrl-C ends the work early. The finished histories are then returned if there are at least two, which an interval
    needs. `progress` is called with the numbers of finished histories and of all histories. Exceptions of a replay are
    passed on.
    """
    found: dict[int, tuple[Trial, ...]] = {}
    progress(0, seeds)
    try:
        with closing(_trials(sweep, range(1, seeds + 1), min(workers, seeds))) as each:
            for seed, trials in each:
                found[seed] = trials
                progress(len(found), seeds)
    except KeyboardInterrupt:
        if len(found) < 2:
            raise
    rows = [found[seed] for seed in sorted(found)]
    return tuple(Comparison(*pair) for pair in zip(sweep.settings, zip(*rows, strict=True), strict=True))


def trials_of(sweep: Sweep, seed: int) -> tuple[Trial, ...]:
    """Return the figures of each setting in this seed's history."""
    workload = variant(sweep.workload, sweep.machine, sweep.how, seed)
    without = replay(workload, sweep.machine, sweep.scheduler)
    return tuple(trial(replay(workload, sweep.machine, sweep.scheduler, agents), without) for agents in sweep.settings)


def trial(schedule: Schedule, without: Schedule) -> Trial:
    """Return the figures of a replay with agents, compared with the one without. Jobs that never start have no wait."""
    found = measure(schedule, without)
    effect = found.effect
    if effect is None:
        raise BadScenario(f"{schedule.workload.name}: no job starts, so no wait can be compared")
    moved_s = schedule.start_s - without.start_s
    later_s, earlier_s = moved_s[moved_s > 0], -moved_s[moved_s < 0]
    return Trial(
        wait_without_s=effect.mean_wait_s.before,
        wait_growth_s=effect.mean_wait_s.absolute,
        load_without=effect.effective_load.before,
        load_growth=effect.effective_load.absolute,
        later=effect.later,
        earlier=effect.earlier,
        later_mean_s=float(later_s.mean()) if len(later_s) else 0.0,
        earlier_mean_s=float(earlier_s.mean()) if len(earlier_s) else 0.0,
        never_started=found.jobs - found.started,
    )


def _trials(sweep: Sweep, seeds: Iterable[int], workers: int) -> Generator[tuple[int, tuple[Trial, ...]]]:
    """Yield the trials of each seed when they are done. The workers end with this generator, however it ends."""
    if workers == 1:
        yield from ((seed, trials_of(sweep, seed)) for seed in seeds)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_begin) as pool:
        try:
            with _without_ctrl_c():  # the workers start here and inherit this
                running = {pool.submit(trials_of, sweep, seed): seed for seed in seeds}
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            raise SimulationError("a worker was killed, perhaps for want of memory: try fewer --workers") from error
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise  # the pool's own threads end with the block


@contextmanager
def _without_ctrl_c() -> Generator[None]:
    """Hold Ctrl-C back until the end of the block. A process that is started in the block never receives it.

    It is not enough to block the signal in this thread, because any other thread of this process, such as a library's,
    might receive it.
    """
    heard: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handler = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _begin() -> None:
    """Make a new worker end when its parent is killed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
