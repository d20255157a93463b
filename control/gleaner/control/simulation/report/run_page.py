"""The report of one run, and of several side by side."""

from collections.abc import Sequence

from gleaner.control.simulation.metrics.measures import Measures
from gleaner.control.simulation.metrics.output import (
    cleaning_lines,
    comparison_table,
    jobs_table,
    machine_table,
    owners_table,
    sizes_table,
)
from gleaner.control.simulation.metrics.tables import change, duration, number, percent
from gleaner.control.simulation.report.charts import busy_plot, owners_plot, queues_plot
from gleaner.control.simulation.report.page import Page, Part, Section
from gleaner.control.simulation.report.pictures import PALETTE
from gleaner.control.simulation.run import Ground, ReplayOutcome, machine_name

_METHOD = (
    "Effective load: unit time that was computed and kept, by regular jobs and by agents' jobs, over all unit time. "
    "Saves, restores and what was lost do not count.",
    "Regular load: unit time that regular jobs held.",
    "A wait goes from a job's submission to its first start. "
    "Bounded slowdown: (end - submission) / max(run time, 10 s), at least 1.",
    "Changes compare the same trace on the same machine with and without agents, over the jobs that started in both.",
)


def run_page(outcome: ReplayOutcome, ground: Ground) -> Page:
    """Return the page of one replay: what it means, and what happened when."""
    found, unit = outcome.measures, ground.unit
    schedules = {"with agents" if outcome.baseline else "waiting": outcome.schedule}
    if outcome.baseline is not None:
        schedules["without agents"] = outcome.baseline
    sections = [
        Section("At a glance", (_verdict(found), machine_table(found), jobs_table(found))),
        Section("Over time", (busy_plot(outcome), queues_plot(schedules, found.window))),
        Section("Regular jobs by size", (sizes_table(found, unit),)),
    ]
    owners = _owners(outcome, unit)
    if owners:
        sections.append(Section("Users and groups", owners))
    sections.append(_method(outcome, ground))
    title = "What agents would do to this cluster" if outcome.baseline else "What this cluster would do"
    return Page(title, f"{ground.workload.name} on {machine_name(ground.machine)}, {outcome.label}", sections)


def comparison_page(outcomes: Sequence[ReplayOutcome], ground: Ground) -> Page:
    """Return the page of several replays of one trace."""
    plotted = _plotted(outcomes)
    window = outcomes[0].measures.window
    sections = [
        Section("Side by side", (comparison_table(outcomes),)),
        Section("Queues", [queues_plot({one.label: one.schedule for one in some}, window, t) for t, some in plotted]),
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
    won = effect.effective_load.absolute
    idle = effect.idle.before
    share = f", {percent(won / idle, 0)} of what was idle" if idle > 0 else ""
    waits = effect.mean_wait_s
    relative = f" ({change(waits.relative)})" if waits.relative is not None else ""
    return (
        f"Agents win {100 * won:.2f} points of effective load{share}. Regular jobs wait {duration(waits.after)} "
        f"on average instead of {duration(waits.before)}{relative}; {percent(effect.later, 1)} of them start later, "
        f"{percent(effect.earlier, 1)} earlier."
    )


def _plotted(outcomes: Sequence[ReplayOutcome]) -> list[tuple[str, Sequence[ReplayOutcome]]]:
    """Return a title and the outcomes of each plot: all schedulers, or if some have agents, one plot a scheduler."""
    plain = [outcome for outcome in outcomes if outcome.scenario.agents is None]
    if len(plain) == len(outcomes):
        return [("", outcomes[: len(PALETTE)])]
    kinds = dict.fromkeys(outcome.scenario.scheduler.kind for outcome in outcomes)
    of = {kind: [one for one in outcomes if one.scenario.scheduler.kind is kind] for kind in kinds}
    return [(f", {kind.value}", some[: len(PALETTE)]) for kind, some in of.items()]


def _owners(outcome: ReplayOutcome, unit: str) -> list[Part]:
    found, plot = outcome.measures, owners_plot(outcome, unit)
    parts: list[Part] = [] if plot is None else [plot]
    for owners, what, jain in ((found.users, "user", found.jain_users), (found.groups, "group", found.jain_groups)):
        if len(owners) > 1:
            parts.append(owners_table(owners, what, jain))
    return parts


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
