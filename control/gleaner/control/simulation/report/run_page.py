"""The report of one run, and of several runs side by side."""

from collections.abc import Mapping, Sequence

import numpy as np

from gleaner.control.simulation.metrics.measures import Measures, Window
from gleaner.control.simulation.metrics.node_time import by_bin, waiting
from gleaner.control.simulation.metrics.output import (
    cleaning_lines,
    comparison_table,
    jobs_table,
    machine_table,
    owners_table,
    sizes_table,
)
from gleaner.control.simulation.metrics.tables import change, duration, number, percent
from gleaner.control.simulation.model import Schedule, Seconds
from gleaner.control.simulation.report.page import Axis, Curve, Lines, Page, Section, Stack, Unit
from gleaner.control.simulation.report.pictures import PALETTE
from gleaner.control.simulation.run import Ground, ReplayOutcome, machine_name

_BINS = 240
_TIME = Axis("time since the first submission", Unit.SECONDS)
_METHOD = (
    "Effective load: unit time that was computed and kept, by regular jobs and by agents' jobs, over all unit time. "
    "Saves, restores and what was lost do not count.",
    "Regular load: unit time that regular jobs held.",
    "A wait goes from a job's submission to its first start. "
    "Bounded slowdown: (end - submission) / max(run time, 10 s), at least 1.",
    "Changes compare the same trace on the same machine with and without agents, over the jobs that started in both.",
)


def run_page(outcome: ReplayOutcome, ground: Ground) -> Page:
    """Return the page of one replay, with its figures and its course over time."""
    found = outcome.measures
    schedules = {"with agents" if outcome.baseline else "waiting": outcome.schedule}
    if outcome.baseline is not None:
        schedules["without agents"] = outcome.baseline
    sections = [
        Section("At a glance", (_verdict(found), machine_table(found), jobs_table(found))),
        Section("Over time", (_use_plot(outcome), _queues_plot(schedules, found.window))),
        Section("Regular jobs by size", (sizes_table(found, ground.unit),)),
    ]
    named = ((found.users, "user", found.jain_users), (found.groups, "group", found.jain_groups))
    tables = [owners_table(owners, what, jain) for owners, what, jain in named if len(owners) > 1]
    if tables:
        sections.append(Section("Users and groups", tables))
    sections.append(_method(outcome, ground))
    title = "What agents would do to this cluster" if outcome.baseline else "What this cluster would do"
    return Page(title, f"{ground.workload.name} on {machine_name(ground.machine)}, {outcome.label}", sections)


def comparison_page(outcomes: Sequence[ReplayOutcome], ground: Ground) -> Page:
    """Return the page of several replays of one trace."""
    shown = {one.label: one.schedule for one in outcomes[: len(PALETTE)]}
    sections = [
        Section("Side by side", (comparison_table(outcomes),)),
        Section("Queues", (_queues_plot(shown, outcomes[0].measures.window),)),
        _method(outcomes[0], ground),
    ]
    return Page("Schedulers compared", f"{ground.workload.name} on {machine_name(ground.machine)}", sections)


def _verdict(found: Measures) -> str:
    effect = found.effect
    if effect is None:
        return (
            f"{number(found.jobs, 0)} jobs; the machine computes {percent(found.effective_load)} of the time "
            f"and is idle {percent(found.idle)} of it."
        )
    harvested = effect.effective_load.absolute
    idle = effect.idle.before
    share = f", {percent(harvested / idle, 0)} of what was idle" if idle > 0 else ""
    waits = effect.mean_wait_s
    relative = f" ({change(waits.relative)})" if waits.relative is not None else ""
    return (
        f"Agents add {100 * harvested:.2f} points of effective load{share}. Regular jobs wait {duration(waits.after)} "
        f"on average instead of {duration(waits.before)}{relative}; {percent(effect.later, 1)} of them start later, "
        f"{percent(effect.earlier, 1)} earlier."
    )


def _use_plot(outcome: ReplayOutcome) -> Stack:
    """Return the shares of the machine in each bin for regular jobs, agents, saves and restores. The rest is idle."""
    window, schedule = outcome.measures.window, outcome.schedule
    edges_s = np.linspace(window.begin_s, window.end_s, _BINS + 1)
    regular, ours = by_bin(schedule.jobs, edges_s), by_bin(schedule.agents, edges_s)
    whole = schedule.machine.units * np.diff(edges_s)
    amounts = {
        "regular jobs": regular.compute,
        "agents computing": ours.compute,
        "saving": regular.save + ours.save,
        "restoring": regular.restore + ours.restore,
        "lost": regular.lost + ours.lost,
    }
    layers = {
        use: np.maximum(amount / whole, 0).tolist()
        for use, amount in amounts.items()
        if use == "regular jobs" or float(amount.sum()) > 1e-9 * float(whole.sum())
    }
    since_s = (edges_s - _origin(schedule)).tolist()
    return Stack("What the machine did", _TIME, Axis("share of the machine", Unit.SHARE), since_s, layers)


def _queues_plot(schedules: Mapping[str, Schedule], window: Window) -> Lines:
    """Return the mean number of waiting jobs in each bin, for several replays of one trace."""
    edges_s = np.linspace(window.begin_s, window.end_s, _BINS + 1)
    curves = [
        Curve(label, _middles(edges_s, each), waiting(each.workload.submit_s, each.start_s, edges_s).tolist())
        for label, each in schedules.items()
    ]
    return Lines("Waiting jobs", _TIME, Axis("waiting jobs"), curves, points=False)


def _middles(edges_s: Seconds, schedule: Schedule) -> list[float]:
    middles: list[float] = ((edges_s[:-1] + edges_s[1:]) / 2 - _origin(schedule)).tolist()
    return middles


def _origin(schedule: Schedule) -> float:
    return float(np.nanmin(schedule.workload.submit_s))


def _method(outcome: ReplayOutcome, ground: Ground) -> Section:
    window, scenario = outcome.measures.window, outcome.scenario
    scheduler = scenario.scheduler
    period = (
        f"Node time is measured from {duration(window.begin_s)} to {duration(window.end_s)} of the trace; "
        "jobs that were submitted then count, whenever they ran. Before the first submission and after the last the "
        "machine fills and drains, which would say nothing of its normal life."
    )
    lines = (period, *_METHOD, *(f"Trace: {line}" for line in cleaning_lines(ground.cleaning, len(ground.workload))))
    settings: dict[str, object] = {}
    settings["scheduler"] = {"kind": scheduler.kind.value, **scheduler.model_dump(mode="json", exclude_defaults=True)}
    if scenario.agents is not None:
        settings["agents"] = scenario.agents.model_dump(mode="json")
    return Section("How this was computed", (lines, settings))
