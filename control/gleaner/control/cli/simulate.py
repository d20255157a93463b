"""The verbs of `glean simulate`: run and compare. They need the extra `simulate`, and no control program.

The modules that compute are imported when a verb runs, so that `glean --help` stays quick and works without the extra.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gleaner.control.cli import render, simulate_replay, simulate_tune
from gleaner.control.cli.output import Answer
from gleaner.control.cli.simulate_options import (
    Allocation,
    Convention,
    Cores,
    Entitlements,
    Json,
    KeepWaiting,
    Length,
    Lengths,
    Margin,
    NodesOption,
    Preemption,
    Processors,
    Report,
    Restore,
    Save,
    ScenarioFile,
    Schedule,
    Scheduler,
    Schedulers,
    Synchronised,
    Targets,
    Trace,
    Until,
    Window,
    answer,
    check_owners,
    check_places,
    disciplines,
    given,
    lengths,
    read,
    simulation_parts,
    write,
)

if TYPE_CHECKING:
    from gleaner.control.simulation.report.page import Page

app = typer.Typer(no_args_is_help=True, help="Simulate agents or another scheduler on a cluster's accounting.")


@app.command()
def run(
    context: typer.Context,
    trace: Trace = None,
    *,
    scheduler: Scheduler = None,
    processors: Processors = None,
    nodes: NodesOption = None,
    cores: Cores = None,
    allocation: Allocation = None,
    agents: Length = None,
    save: Save = None,
    restore: Restore = None,
    margin: Margin = None,
    synchronised: Synchronised = None,
    preemption: Preemption = None,
    target: Targets = None,
    entitlement: Entitlements = None,
    convention: Convention = None,
    until: Until = None,
    keep_waiting: KeepWaiting = None,
    window: Window = None,
    scenario: ScenarioFile = None,
    json: Json = None,
    schedule: Schedule = None,
    report: Report = None,
) -> Answer:
    """Replay a trace; with --agents also without them, to compare."""
    check_places(json, schedule, report, sources=(trace, scenario))
    with simulation_parts():
        from gleaner.control.simulation import run as experiment
        from gleaner.control.simulation.metrics import output
        from gleaner.control.simulation.report import run_page
        from gleaner.control.simulation.scenario import read_scenario

        settings = read_scenario(scenario, given(context, () if agents is None else (agents,)))
        check_owners((settings.scheduler.kind,), target, entitlement)
        with render.steps("reading the trace, MiB") as draw:
            ground = experiment.prepare(settings, draw)
        with render.steps("replaying") as draw:
            outcome = experiment.run(settings, ground, label=experiment.label(settings), progress=draw)
        value = output.run_value(outcome, ground)
        if schedule is not None:
            with write(schedule):
                output.write_schedule(schedule, outcome.schedule)
        if report is not None:
            _report(report, run_page.run_page(outcome, ground))
        found = outcome.measures
        tables = [output.machine_table(found), output.jobs_table(found), output.sizes_table(found, ground.unit)]
        said = (
            *output.cleaning_lines(ground.cleaning, len(ground.workload)),
            *ground.remarks,
            *experiment.odd(outcome),
        )
        return answer(value, tables, said, json)


@app.command()
def compare(
    context: typer.Context,
    trace: Trace = None,
    *,
    schedulers: Schedulers = "fcfs,easy,conservative",
    processors: Processors = None,
    nodes: NodesOption = None,
    cores: Cores = None,
    allocation: Allocation = None,
    agents: Lengths = None,
    save: Save = None,
    restore: Restore = None,
    margin: Margin = None,
    synchronised: Synchronised = None,
    preemption: Preemption = None,
    target: Targets = None,
    entitlement: Entitlements = None,
    convention: Convention = None,
    until: Until = None,
    keep_waiting: KeepWaiting = None,
    window: Window = None,
    scenario: ScenarioFile = None,
    json: Json = None,
    report: Report = None,
) -> Answer:
    """Replay a trace under several schedulers and lengths of agents."""
    check_places(json, report, sources=(trace, scenario))
    kinds = read("--schedulers", disciplines, schedulers)
    lengths_s = read("--agents", lengths, agents) if agents else ()
    check_owners(kinds, target, entitlement)
    with simulation_parts():
        from gleaner.control.simulation import run as experiment
        from gleaner.control.simulation.metrics import output
        from gleaner.control.simulation.report import run_page
        from gleaner.control.simulation.scenario import read_scenario

        settings = read_scenario(scenario, given(context, lengths_s))
        cases = experiment.cases(settings, kinds, lengths_s)
        with render.steps("reading the trace, MiB") as draw:
            ground = experiment.prepare(settings, draw)
        with render.steps("replaying") as draw:
            outcomes = experiment.run_all(cases, ground, draw)
        if report is not None:
            _report(report, run_page.comparison_page(outcomes, ground))
        value = output.comparison_value(outcomes, ground)
        said = (*output.cleaning_lines(ground.cleaning, len(ground.workload)), *ground.remarks)
        return answer(value, [output.comparison_table(outcomes)], said, json)


app.command()(simulate_tune.tune)
app.command()(simulate_replay.replay)


def _report(path: Path, page: "Page") -> None:
    from gleaner.control.simulation import report

    with write(path):
        report.write(path, page)
