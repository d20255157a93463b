"""The search for agents that suit a machine: the settings of a grid race on the variants of a workload.

The low-priority queue never runs dry here. The question is how much agents could win back, and what regular jobs pay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from pathlib import Path

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Machine, Workload
from gleaner.control.simulation.settings import AgentSettings, SchedulerSettings
from gleaner.control.simulation.tuning.evidence import Evidence, Interval, Setting, WaitLimit, exact, interval
from gleaner.control.simulation.tuning.recommendation import Recommendation, contest, looks, recommend
from gleaner.control.simulation.tuning.sweep import Journal, Sweep, TrialInputs, Trials
from gleaner.control.simulation.tuning.trial import Conditions, Outcome, safety
from gleaner.control.simulation.tuning.variants import Variation, variation
from gleaner.control.simulation.workloads.synthetic import SyntheticSettings

LENGTHS_S = tuple(60.0 * minutes for minutes in (5, 10, 15, 20, 30, 45, 60, 90, 120, 240))
MARGINS_S = (10.0, 30.0, 60.0, 120.0, 300.0)
SHORTEST_LENGTH_S = 30.0
"""The shortest length that control accepts (`RoundSettings.length_s`)."""
SHORTEST_SLICE_S = 5.0
"""The shortest slice that control accepts (`RoundSettings.shortest_slice_s`)."""
LEAST_SLICE_S = 60.0


@dataclass(frozen=True, slots=True)
class Grid:
    """The settings to try: all combinations. Agents are preempted in all of them or in none."""

    lengths_s: tuple[float, ...] = LENGTHS_S
    synchronised: tuple[bool, ...] = (True, False)
    margins_s: tuple[float, ...] = MARGINS_S
    preemption: bool = False

    def __post_init__(self) -> None:
        if not all((self.lengths_s, self.synchronised, self.margins_s)):
            raise BadScenario("nothing to try: the sweep needs at least one length and one margin")
        if min(self.lengths_s) < SHORTEST_LENGTH_S:
            raise BadScenario(
                f"agents of {exact(min(self.lengths_s))}: control takes none below {SHORTEST_LENGTH_S:g} s"
            )
        if min(self.margins_s) < 0:
            raise BadScenario(f"a margin of {exact(min(self.margins_s))}: it cannot be negative")

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings, each once, from the simplest on."""
        of = product((self.preemption,), set(self.lengths_s), set(self.synchronised), set(self.margins_s))
        return tuple(sorted((Setting(*values) for values in of), key=lambda setting: setting.plainness))


@dataclass(frozen=True, slots=True)
class Question:
    """The admin's question. `agents` describes saves, restores and the rest; the grid says what varies."""

    limit: WaitLimit
    agents: AgentSettings
    grid: Grid = Grid()
    shortest_slice_s: float | None = None
    """The shortest slice. The default is twice the time of a save and a restore, and at least `LEAST_SLICE_S`."""
    save_spread: float = 0.25
    """The standard deviation of a save's time, as a share of the expected time; see `trial`."""
    seeds: int | None = None
    """The number of seeds for every setting. None: as many as settle the race, see `contest`."""
    first_seed: int = 1
    level: float = 0.95

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 2:
            raise BadScenario(f"--seeds {self.seeds}: an interval needs at least two")
        if not 0 < self.level < 1:
            raise BadScenario(f"--confidence {self.level:g}: it lies between 0 and 1, 0.95 for example")
        if self.limit.most < 0:
            raise BadScenario("--wait-limit: it cannot be negative")
        if self.slice_s < SHORTEST_SLICE_S:
            raise BadScenario(f"a shortest slice of {exact(self.slice_s)}: control takes none below 5 s")
        if self.save_spread < 0:
            raise BadScenario(f"--save-spread {self.save_spread:g}: it cannot be negative")
        if self.agents.queue.jobs is not None:
            raise BadScenario("tune needs an endless low-priority queue: leave out jobs in [agents.queue]")

    @property
    def slice_s(self) -> float:
        """The shortest slice of every setting."""
        if self.shortest_slice_s is not None:
            return self.shortest_slice_s
        return max(LEAST_SLICE_S, 2 * (self.save_s + self.agents.restore.seconds(self._memory_mib)))

    @property
    def save_s(self) -> float:
        """The expected time of one agent's save while no other agent saves."""
        return self.agents.save.seconds(self._memory_mib)

    @property
    def _memory_mib(self) -> float:
        return self.agents.queue.memory_mib * self.agents.jobs_per_agent

    def fits(self, setting: Setting) -> bool:
        """Return True if an agent of this setting computes at all."""
        reserved_s = self.save_s * safety(self.save_spread) + setting.margin_s
        restore_s = self.agents.restore.seconds(self._memory_mib)
        return setting.length_s > self.slice_s and setting.length_s > reserved_s + restore_s

    def agents_of(self, setting: Setting) -> AgentSettings:
        """Return the agents' settings for a replay. Their margin is 0; see `trial`."""
        return self.agents.model_copy(
            update={
                "length_s": setting.length_s,
                "synchronised": setting.synchronised,
                "preemption": setting.preemption,
                "shortest_slice_s": self.slice_s,
                "margin_s": 0.0,
            }
        )


@dataclass(frozen=True, slots=True)
class Effort:
    """The means of a search: where finished replays are kept, and how many processes work for how long."""

    state: Path
    workers: int
    is_over: Callable[[], bool] = lambda: False
    """True when the time is over. Every setting has its first seeds all the same."""
    progress: Callable[[int, int], None] = lambda _done, _all: None
    """It is told how many replays are done, of how many that are planned so far."""


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting and its figures. Shares are shares of all unit time, as means over the seeds."""

    evidence: Evidence
    p95_wait_s: Interval
    """The growth of the 95th percentile of the waits."""
    regular_load: float
    saving: float
    restoring: float
    lost: float
    """The share of unit time in slices whose save came too late."""
    later: float
    """The share of regular jobs that start later than without agents; `earlier`: of those that start earlier."""
    earlier: float
    later_mean_s: float
    """The mean delay of the jobs that start later; `later_p95_s`: the 95th percentile of their delays."""
    later_p95_s: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The whole answer to a question."""

    workload: str
    machine: Machine
    scheduler: str
    question: Question
    how: Variation
    wait_without_s: Interval
    load_without: Interval
    never_started: float
    """The number of jobs that never start, as a mean over the seeds: under omfs, jobs too large for their group."""
    tried: tuple[Tried, ...]
    left_out: tuple[Setting, ...]
    """The settings that were not tried, since their agents would compute nothing."""
    seeds: int
    """The number of seeds of the settings that were in the race to the end."""
    recommendation: Recommendation


def tune(
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings,
    question: Question,
    effort: Effort,
    *,
    made: SyntheticSettings | None = None,
) -> Tuning:
    """Try the settings under several seeds, and recommend one.

    `made` says how a synthetic workload was made; None for a trace. Raise `BadScenario` where the question cannot be
    answered, and what `Trials.outcomes` raises.
    """
    settings = [setting for setting in question.grid.settings if question.fits(setting)]
    if not settings:
        raise BadScenario(
            f"no agent would compute: the longest has {exact(max(question.grid.lengths_s))}, the shortest slice is "
            f"{exact(question.slice_s)} and a save takes {exact(question.save_s)}"
        )
    margins_s = tuple(sorted(set(question.grid.margins_s)))
    how = variation(workload, made)
    sweep = Sweep(workload, how, Conditions(machine, scheduler, margins_s, question.save_spread))
    with sweep.running(lambda digest: Journal(effort.state / f"tune-{digest}.jsonl"), effort.workers) as trials:
        tried, without = _race(trials, settings, question, effort)
    return Tuning(
        workload=workload.name,
        machine=machine,
        scheduler=scheduler.kind.value,
        question=question,
        how=how,
        wait_without_s=_interval([outcome["mean_wait_s"][0] for outcome in without], question),
        load_without=_interval([outcome["effective_load"][0] for outcome in without], question),
        never_started=sum(outcome["never_started"][0] for outcome in without) / len(without),
        tried=tried,
        left_out=tuple(setting for setting in question.grid.settings if not question.fits(setting)),
        seeds=len(without),
        recommendation=recommend([one.evidence for one in tried], question.limit),
    )


def _race(
    trials: Trials, settings: Sequence[Setting], question: Question, effort: Effort
) -> tuple[tuple[Tried, ...], list[Outcome]]:
    """Return all settings with their evidence, and the outcomes without agents for each seed.

    The agents of several settings that differ in their margin are the same, and are replayed once.
    """
    margins_s = sorted(set(question.grid.margins_s))
    agents_of = {setting: question.agents_of(setting).model_dump_json() for setting in settings}
    outcomes: dict[str, list[Outcome]] = {}
    racing: Sequence[Setting] = settings
    tried: tuple[Tried, ...] = ()
    for seeds in looks() if question.seeds is None else (question.seeds,):
        kinds = ["", *dict.fromkeys(agents_of[setting] for setting in racing)]
        agents = [AgentSettings.model_validate_json(kind) if kind else None for kind in kinds]
        numbers = range(question.first_seed, question.first_seed + seeds)
        found = trials.outcomes(
            [TrialInputs(seed, kind) for seed in numbers for kind in agents],
            is_over=effort.is_over if tried else lambda: False,
            progress=effort.progress,
        )
        rows = [found[place : place + len(kinds)] for place in range(0, len(found), len(kinds))]
        whole = list(takewhile(lambda row: None not in row, rows))
        for place, kind in enumerate(kinds):
            done = [outcome for row in whole if (outcome := row[place]) is not None]
            outcomes[kind] = max(outcomes.get(kind, []), done, key=len)
        _check_waits(outcomes[""], question.limit)
        tried = tuple(
            _tried(
                setting,
                outcomes[agents_of[setting]],
                outcomes[""],
                margin=margins_s.index(setting.margin_s),
                level=question.level,
            )
            for setting in settings
        )
        race = contest([one.evidence for one in tried], question.limit)
        if race.is_settled or len(whole) < seeds or effort.is_over():
            break
        racing = [one.setting for one in race.contenders]
    return tried, outcomes[""]


def _check_waits(without: Sequence[Outcome], limit: WaitLimit) -> None:
    if limit.is_share and any(outcome["mean_wait_s"][0] == 0 for outcome in without):
        raise BadScenario(
            "without agents no regular job waits at all, so a share of its wait says nothing: --wait-limit in seconds"
        )


def _interval(values: Sequence[float], question: Question) -> Interval:
    return interval(values, level=question.level)


def _tried(
    setting: Setting,
    outcomes: Sequence[Outcome],
    without: Sequence[Outcome],
    *,
    margin: int,
    level: float,
) -> Tried:
    without = without[: len(outcomes)]
    evidence = Evidence(
        setting=setting,
        effective_loads=tuple(outcome["effective_load"][margin] for outcome in outcomes),
        waits_s=tuple(outcome["mean_wait_s"][0] for outcome in outcomes),
        waits_without_s=tuple(outcome["mean_wait_s"][0] for outcome in without),
        loads_without=tuple(outcome["effective_load"][0] for outcome in without),
        level=level,
    )
    pairs = zip(outcomes, without, strict=True)
    grown_s = [outcome["p95_wait_s"][0] - before["p95_wait_s"][0] for outcome, before in pairs]
    means = {
        name: sum(outcome[name][0] for outcome in outcomes) / len(outcomes)
        for name in ("regular_load", "saving", "restoring", "later", "earlier", "later_mean_s", "later_p95_s")
    }
    lost = sum(outcome["lost"][margin] for outcome in outcomes) / len(outcomes)
    return Tried(evidence, interval(grown_s, level=level), lost=lost, **means)
