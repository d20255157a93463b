"""The output of `glean simulate tune`, as sentences in readable units, a table, a page with plots, and JSON."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass

from gleaner.control.simulation.metrics.tables import Table, duration, percent
from gleaner.control.simulation.model import Allocation, Machine, Workload
from gleaner.control.simulation.report.page import Axis, Curve, Lines, Page, Part, Section, Unit
from gleaner.control.simulation.settings import AgentSettings
from gleaner.control.simulation.tuning.tune import Comparison, Interval, Sweep

MONTH_H = 720
FAR_FACTOR, FAR_S = 2, 600
"""The mean waits of the log and of the replays are far apart if they differ by more than both of these."""
_PLACED = {
    Allocation.NODES: "each was given a whole node. If jobs share nodes, add --set machine.allocation=cores",
    Allocation.PROCESSORS: "they were given processors of one pool, whatever node these belong to",
    Allocation.CORES: "they were given cores of nodes that they shared with other jobs",
}


@dataclass(frozen=True, slots=True)
class TuningAnswer:
    """All comparisons, and the setting that harvests most within the limit on waits."""

    sweep: Sweep
    comparisons: tuple[Comparison, ...]
    limit_s: float
    """The limit on the increase of the mean wait."""
    log_wait_s: float | None = None
    """The mean wait in the log itself, or None if it is not known."""

    @property
    def wait_without_s(self) -> float:
        return self.comparisons[0].mean("wait_without_s")

    @property
    def seeds(self) -> int:
        return len(self.comparisons[0].trials)

    @property
    def best(self) -> Comparison | None:
        """The setting within the limit that harvests most, or None if there is none."""
        return max(filter(self.is_within, self.comparisons), key=lambda one: one.load_growth.mean, default=None)

    @property
    def nearest(self) -> Comparison:
        """The setting whose interval of the wait has the lowest upper end."""
        return min(self.comparisons, key=lambda one: one.wait_growth_s.high)

    def is_within(self, one: Comparison) -> bool:
        """Return True if the whole interval of the wait is within the limit, and that of the harvested time is above
        0."""
        return one.wait_growth_s.high <= self.limit_s and one.load_growth.low > 0

    def node_hours(self, load: float) -> float:
        """Return the node hours per month that correspond to this share of all unit time."""
        return load * MONTH_H * self.sweep.machine.nodes


def name(agents: AgentSettings) -> str:
    """Return a setting in words.

    >>> name(AgentSettings(length_s=3600, preemption=True))
    'Agents of 1 h, with preemption'
    """
    ends = "" if agents.synchronised else ", each with its own end"
    return f"Agents of {duration(agents.length_s)}, {'with' if agents.preemption else 'without'} preemption{ends}"


def rough(time_s: float, beside_s: float = 0) -> str:
    """Return a time in a unit in which whole numbers are exact enough, both for it and for the time shown beside it.

    >>> rough(58.3), rough(-140), rough(5640), rough(51120), rough(58.3, 600)
    ('58 s', '-140 s', '94 min', '14 h', '1 min')
    """
    for unit, unit_s, most_s in (("s", 1, 300), ("min", 60, 36_000), ("h", 3600, 864_000)):
        if max(abs(time_s), abs(beside_s)) < most_s:
            return f"{round(time_s / unit_s):,} {unit}"
    return f"{round(time_s / 86_400):,} d"


def signed(growth_s: float, beside_s: float = 0) -> str:
    """Return an increase with its sign.

    >>> signed(58.3), signed(-0.2)
    ('+58 s', '0 s')
    """
    return ("+" if round(growth_s) > 0 else "") + rough(growth_s, beside_s)


def in_one_unit(wait_s: Interval) -> Callable[[float], str]:
    """Return the function that shows the mean and the ends of this interval, all in one unit."""
    return lambda time_s: signed(time_s, max(wait_s.low, wait_s.high, key=abs))


def sentence(found: TuningAnswer, one: Comparison) -> str:
    """Return the effect of one setting on regular jobs, and the time that it harvests."""
    wait_s, idle = one.wait_growth_s, 1 - one.mean("load_without")
    shown = in_one_unit(wait_s)
    return (
        f"{name(one.agents)}: regular jobs wait {rough(found.wait_without_s)} on average without agents, and "
        f"{rough(abs(wait_s.mean))} {'less' if wait_s.mean < 0 else 'longer'} with them "
        f"({shown(wait_s.low)} to {shown(wait_s.high)}). Of "
        f"{found.node_hours(idle):,.0f} idle node hours a month, {found.node_hours(one.load_growth.mean):,.0f} are "
        "harvested."
    )


def sentences(found: TuningAnswer) -> tuple[str, ...]:
    """Return the best setting, the reason for it, doubts about it, the jobs that it delays, the costs of saves, and the
    placement of small jobs."""
    one = found.best or found.nearest
    earlier_s = one.mean("earlier_mean_s")
    return (
        *_choice(found, one),
        *_doubts(found),
        f"{percent(one.mean('later'), 0)} of the jobs start later than without agents, by "
        f"{rough(one.mean('later_mean_s'))} on average, and {percent(one.mean('earlier'), 0)} earlier"
        f"{f', by {rough(earlier_s)}' if earlier_s else ''}.",
        costs(one.agents),
        small_jobs(found.sweep.workload, found.sweep.machine),
    )


def _choice(found: TuningAnswer, one: Comparison) -> Iterator[str]:
    limit = f"{rough(found.limit_s)} (--wait-limit)"
    if found.best is None:
        yield f"No setting is sure to harvest and to lengthen the mean wait by at most {limit}."
        yield f"The nearest, whose interval has the lowest upper end: {sentence(found, one)}"
    else:
        yield sentence(found, one)
        harvests_most = f"that lengthens the mean wait by at most {limit} harvests more"
        yield f"No other setting {harvests_most if len(found.comparisons) > 1 else f'was tried. The limit is {limit}'}."


def _doubts(found: TuningAnswer) -> Iterator[str]:
    """Yield the number of seeds that would suffice, if the result is not clear, and a warning if the replays are far
    from the log."""
    undecided = [
        (one.wait_growth_s.mean > found.limit_s, one.seeds_to_decide(found.limit_s), one.agents.length_s)
        for one in found.comparisons
        if one.wait_growth_s.low <= found.limit_s and one.load_growth.high > 0
    ]
    if found.best is None and undecided:
        _, seeds, length_s = min(undecided)  # means within the limit come first, because more seeds might confirm them
        yield f"Undecided. One length needs about {seeds} seeds, so add --lengths {length_s / 60:g}m --seeds {seeds}."
    wait_s, machine = found.wait_without_s, found.sweep.machine
    log_s = wait_s if found.log_wait_s is None else found.log_wait_s
    if abs(log_s - wait_s) > FAR_S and max(log_s, wait_s) > FAR_FACTOR * min(log_s, wait_s):
        cause = "--scheduler and the number of nodes"
        if log_s < wait_s and machine.allocation is Allocation.NODES and smaller(found.sweep.workload, machine):
            cause = "--set machine.allocation=cores, because jobs that are smaller than a node might share nodes"
        yield (
            f"Do not rely on this yet, because the mean wait is {rough(log_s)} in the log itself and {rough(wait_s)} "
            f"in the replays without agents. First check {cause}."
        )


def costs(agents: AgentSettings) -> str:
    """Return the costs of a save and of a restore in the replays if only one node saves or restores at the time.

    >>> costs(AgentSettings())
    'A save takes 0 s and a restore 0 s in these replays, so measure both on your storage.'
    """
    memory_mib = agents.queue.memory_mib * agents.jobs_per_agent
    save_s, restore_s = (cost.seconds(memory_mib) for cost in (agents.save, agents.restore))
    return (
        f"A save takes {rough(save_s)} and a restore {rough(restore_s)} in these replays, so measure both on your "
        "storage."
    )


def smaller(workload: Workload, machine: Machine) -> int:
    """Return the number of jobs that request fewer cores than the smallest node has."""
    return int((workload.processors < min(kind.cores for kind in machine.classes)).sum())


def small_jobs(workload: Workload, machine: Machine) -> str:
    """Return the number of jobs that are smaller than a node, and the way in which they were placed."""
    if max(kind.cores for kind in machine.classes) == 1:
        return f"Each of the {machine.cores:,} processors counts as a node, so no job is smaller than a node."
    count = smaller(workload, machine)
    return f"{count:,} of {len(workload):,} jobs are smaller than a node: {_PLACED[machine.allocation]}."


def table(found: TuningAnswer) -> Table:
    """Return a table of all settings."""

    def spread(value: Interval, shown: Callable[[float], str]) -> str:
        return f"{shown(value.mean)} ({shown(value.low)} to {shown(value.high)})"

    def hours(load: float) -> str:
        return f"{found.node_hours(load):,.0f}"

    def verdict(one: Comparison) -> str:
        if one.wait_growth_s.high > found.limit_s:
            return "past the limit" if one.wait_growth_s.low > found.limit_s else "may pass the limit"
        return "" if found.is_within(one) else "may harvest nothing"

    columns: dict[str, Callable[[Comparison], str]] = {
        "length": lambda one: duration(one.agents.length_s),
        "preemption": lambda one: "yes" if one.agents.preemption else "no",
        "mean wait": lambda one: spread(one.wait_growth_s, in_one_unit(one.wait_growth_s)),
        "start later": lambda one: percent(one.mean("later"), 0),
        "node hours harvested a month": lambda one: spread(one.load_growth, hours),
        "load": lambda one: percent(one.mean("load_without") + one.load_growth.mean, 1),
        "": lambda one: "best" if one == found.best else verdict(one),
    }
    load, wait = percent(found.comparisons[0].mean("load_without"), 1), rough(found.wait_without_s)
    log = "" if found.log_wait_s is None else f" ({rough(found.log_wait_s, found.wait_without_s)} in the log itself)"
    title = f"Without agents the load is {load} and the mean wait {wait}{log}. Changes, with 95 % intervals:"
    return Table.of(found.comparisons, columns, right=tuple(columns)[2:6], title=title)


def method(found: TuningAnswer) -> str:
    """Return the method by which the figures were made."""
    return (
        f"{found.seeds} histories of the cluster, each with {found.sweep.how.said}. Each is replayed without agents "
        "and with each setting. The intervals hold the mean over all such histories (95 %). A month has 30 days."
    )


def odd(found: TuningAnswer, lengths_s: Sequence[float]) -> Iterator[str]:
    """Yield remarks on jobs that never start, and on requested lengths that were not tried."""
    never, kind = found.comparisons[0].mean("never_started"), found.sweep.scheduler.kind.value
    if never:
        yield f"{never:,.0f} jobs of a history, on average, never start under {kind}; the waits are those of the others"
    for length_s in sorted(set(lengths_s) - {agents.length_s for agents in found.sweep.settings}):
        yield f"agents of {duration(length_s)} would compute nothing and are left out"


def page(found: TuningAnswer, subtitle: str, remarks: Sequence[str]) -> Page:
    """Return the report."""
    first, *others = sentences(found)
    answer: tuple[Part, ...] = (first, others, *_plots(found), table(found))
    return Page(
        "What agents would do to this cluster",
        subtitle,
        (Section("The answer", answer), Section("How it was done", ((method(found), *remarks),))),
    )


def _plots(found: TuningAnswer) -> Iterator[Lines]:
    """Yield a plot of the wait against the agents' length with preemption, and another one without preemption."""
    for preemption, word in ((True, "with"), (False, "without")):
        own = [one for one in found.comparisons if one.agents.preemption is preemption]
        if own:
            means_s, lows_s, highs_s = zip(*(astuple(one.wait_growth_s) for one in own), strict=True)
            lengths_s = [one.agents.length_s for one in own]
            yield Lines(
                f"How much longer regular jobs wait, {word} preemption ({rough(found.wait_without_s)} without agents)",
                Axis("length of an agent", Unit.SECONDS, logarithmic=True),
                Axis("change of the mean wait", Unit.SECONDS),
                (Curve("mean and 95 % interval", lengths_s, means_s, lows_s, highs_s),),
                ((found.limit_s, "the limit"),),
            )


def as_json(found: TuningAnswer) -> dict[str, object]:
    """Return all results in a form for programs. Shares are between 0 and 1, and times are in seconds."""
    sweep = found.sweep
    return {
        "answer": sentences(found),
        "workload": {
            "name": sweep.workload.name,
            "jobs": len(sweep.workload),
            "smaller_than_a_node": smaller(sweep.workload, sweep.machine),
            "allocation": sweep.machine.allocation,
        },
        "scheduler": sweep.scheduler.kind,
        "seeds": found.seeds,
        "histories": sweep.how.said,
        "wait_limit_s": found.limit_s,
        "mean_wait_without_s": found.wait_without_s,
        "mean_wait_in_log_s": found.log_wait_s,
        "load_without": found.comparisons[0].mean("load_without"),
        "best": None if found.best is None else found.comparisons.index(found.best),
        "settings": [
            {
                "agents": one.agents,
                "is_within_limit": found.is_within(one),
                "wait_growth_s": one.wait_growth_s,
                "load_growth": one.load_growth,
                "hours_harvested_a_month": found.node_hours(one.load_growth.mean),
                "trials": [asdict(trial) for trial in one.trials],
            }
            for one in found.comparisons
        ],
    }
