"""The path from a scenario to its figures. The trace is read, the machine is set up, and every replay is compared with
a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.metrics.measures import Measures, Window, default_window, measure
from gleaner.control.simulation.metrics.tables import duration
from gleaner.control.simulation.model import Allocation, Cleaning, Machine, Schedule, Workload, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.scenario import MOST, MeasureSettings, Scenario, WorkloadSettings
from gleaner.control.simulation.settings import AgentSettings, SchedulerKind
from gleaner.control.simulation.workloads import traces
from gleaner.control.simulation.workloads.synthetic import make
from gleaner.control.simulation.workloads.trace_file import Progress, nobody


@dataclass(frozen=True, slots=True)
class Ground:
    """The parts that all replays of a scenario share."""

    workload: Workload
    machine: Machine
    cleaning: Cleaning
    remarks: tuple[str, ...]
    log_wait_s: float | None = None
    """The mean wait of the jobs in the log itself, or None if it is not known or the jobs are synthetic."""

    @property
    def unit(self) -> str:
        """The name of the units in which the machine is counted."""
        return "nodes" if self.machine.allocation is Allocation.NODES else "processors"


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """One replay, the same replay without agents (None if it has no agents itself), and the figures."""

    label: str
    scenario: Scenario
    schedule: Schedule
    baseline: Schedule | None
    measures: Measures


_CLASSES: Mapping[str, JobClass] = {kind.name.lower().replace("_", "-"): kind for kind in JobClass}


def prepare(scenario: Scenario, progress: Progress = nobody) -> Ground:
    """Read the trace or generate the jobs, and set up the machine. `progress` is called with the number of MiB of the
    trace that have been read.

    Raise `BadTrace` or `BadScenario`.
    """
    settings, machine = scenario.workload, scenario.machine.machine
    if settings.trace is None:
        return _made(settings, machine)
    trace = traces.read(
        settings.trace,
        processors=machine.cores if machine else None,
        conventions=settings.conventions,
        progress=progress,
    )
    remarks: list[str] = []
    if machine is None:
        if trace.processors is None:
            raise BadScenario(
                f"{settings.trace} does not say how large the machine is: give --processors, or --nodes and --cores"
            )
        if trace.processors > MOST:
            raise BadScenario(
                f"{settings.trace} says that the machine has {trace.processors} processors: give --processors, "
                f"at most {MOST}"
            )
        machine = of_processors(trace.processors)
        remarks.append(f"the machine has {trace.processors} processors, as the trace says")
    workload = trace.workload
    known_s = trace.wait_s[~np.isnan(trace.wait_s)]
    log_wait_s = float(known_s.mean()) if len(known_s) and settings.synthetic is None else None
    if settings.synthetic is not None:
        workload = make(settings.synthetic, machine, workload)
    if settings.job_class != "non-preemptible":
        kinds = np.full(len(workload), _CLASSES[settings.job_class], dtype=np.int8)
        workload = replace(workload, job_class=kinds)
    return Ground(workload, machine, trace.cleaning, tuple(remarks), log_wait_s)


def _made(settings: WorkloadSettings, machine: Machine | None) -> Ground:
    if settings.synthetic is None:
        raise BadScenario("no trace is named: give a file, or [workload] trace or synthetic in a scenario file")
    if machine is None:
        raise BadScenario("synthetic jobs need a machine: give --processors, or --nodes and --cores")
    workload = make(settings.synthetic, machine)
    return Ground(workload, machine, Cleaning(len(workload)), ())


def run(
    scenario: Scenario,
    ground: Ground,
    *,
    label: str,
    baseline: Schedule | None = None,
    progress: Progress = nobody,
) -> ReplayOutcome:
    """Replay the scenario with its agents, and for comparison without them, unless `baseline` already is that replay.

    `progress` is called with the number of replays that are done.
    """
    replays = 2 if scenario.agents is not None and baseline is None else 1
    progress(0, replays)
    schedule = _replay(scenario, ground, scenario.agents)
    progress(1, replays)
    if scenario.agents is None:
        baseline = None
    elif baseline is None:
        baseline = _replay(scenario, ground, None)
    window = _window(scenario.measure, baseline or schedule)
    return ReplayOutcome(label, scenario, schedule, baseline, measure(schedule, baseline, window))


def cases(scenario: Scenario, kinds: Sequence[SchedulerKind], lengths_s: Sequence[float]) -> tuple[Scenario, ...]:
    """Return the scenario under each scheduler, both without agents and with agents of each length (by default the
    scenario's)."""
    found: list[Scenario] = []
    for kind in kinds:
        scheduler = scenario.scheduler.model_copy(update={"kind": kind})
        found.append(scenario.model_copy(update={"scheduler": scheduler, "agents": None}))
        if scenario.agents is None:
            continue
        for length_s in lengths_s or (scenario.agents.length_s,):
            agents = scenario.agents.model_copy(update={"length_s": length_s})
            found.append(scenario.model_copy(update={"scheduler": scheduler, "agents": agents}))
    return tuple(found)


def run_all(asked: Sequence[Scenario], ground: Ground, progress: Progress = nobody) -> list[ReplayOutcome]:
    """Replay all cases. A case without agents is the baseline of the later cases under the same scheduler.

    `progress` is called with the number of cases that are done.
    """
    outcomes: list[ReplayOutcome] = []
    plain: dict[SchedulerKind, Schedule] = {}
    for done, case in enumerate(asked):
        progress(done, len(asked))
        outcome = run(case, ground, label=label(case), baseline=plain.get(case.scheduler.kind))
        if case.agents is None:
            plain[case.scheduler.kind] = outcome.schedule
        outcomes.append(outcome)
    return outcomes


def label(scenario: Scenario) -> str:
    """Return the scheduler and the agents in a few words."""
    if scenario.agents is None:
        return scenario.scheduler.kind.value
    return f"{scenario.scheduler.kind.value}, agents of {duration(scenario.agents.length_s)}"


def odd(outcome: ReplayOutcome) -> tuple[str, ...]:
    """Return remarks on settings that are valid but might not be intended."""
    agents, window = outcome.scenario.agents, outcome.measures.window
    noise = "one replay is noise: a small change of the waits is chance; glean simulate tune compares many"
    if agents is not None and agents.length_s > window.length_s:
        length, whole = duration(agents.length_s), duration(window.length_s)
        return (f"agents of {length} are longer than the {whole} that are measured: none is seen whole", noise)
    return () if agents is None else (noise,)


def _replay(scenario: Scenario, ground: Ground, agents: AgentSettings | None) -> Schedule:
    settings = scenario.workload
    # With `keep_waiting`, the replay begins at 0, whenever the jobs of the trace were submitted.
    begin_s = 0.0 if settings.keep_waiting else float(ground.workload.submit_s[0])
    return replay(
        ground.workload,
        ground.machine,
        scenario.scheduler,
        agents,
        until_s=None if settings.until_s is None else begin_s + settings.until_s,
        keep_waiting=settings.keep_waiting,
    )


def _window(settings: MeasureSettings, schedule: Schedule) -> Window:
    window = default_window(schedule)
    begin_s = window.begin_s + (settings.begin_s or 0)
    end_s = window.end_s if settings.end_s is None else window.begin_s + settings.end_s
    if end_s <= begin_s:
        raise BadScenario(
            f"the window would begin {duration(settings.begin_s or 0)} after the first submission and end "
            f"{duration(end_s - window.begin_s)} after it"
        )
    return Window(begin_s, end_s)


def machine_name(machine: Machine) -> str:
    """Return the machine in a few words.

    >>> from gleaner.control.simulation.model import of_nodes
    >>> machine_name(of_processors(128)), machine_name(of_nodes(64, 16))
    ('128 processors', '64 nodes of 16 cores, whole nodes')
    """
    if machine.allocation is Allocation.PROCESSORS and len(machine.classes) == 1 and machine.classes[0].cores == 1:
        return f"{machine.cores} processors"
    cores = {kind.cores for kind in machine.classes}
    size = f"{machine.nodes} nodes" + (f" of {cores.pop()} cores" if len(cores) == 1 else f", {machine.cores} cores")
    given = {Allocation.NODES: "whole nodes", Allocation.PROCESSORS: "one pool", Allocation.CORES: "shared by jobs"}
    return f"{size}, {given[machine.allocation]}"
