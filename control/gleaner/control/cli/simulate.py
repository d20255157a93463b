"""The verbs of `glean simulate`: run and compare. They need the extra `simulate`, and no control program.

The modules that compute are imported when a verb runs, so that `glean --help` stays quick and works without the extra.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gleaner.control.cli import render, simulate_replay, simulate_tune
from gleaner.control.cli.option_groups import with_option_groups
from gleaner.control.cli.output import Answer
from gleaner.control.cli.simulate_options import (
    Length,
    Lengths,
    MachineOptions,
    ReplayOptions,
    Report,
    Schedule,
    Scheduler,
    Schedulers,
    Trace,
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

app = typer.Typer(no_args_is_help=True, help="Simulate agents, or another scheduler, on a cluster's accounting.")


@app.command()
@with_option_groups
def run(
    context: typer.Context,
    trace: Trace = None,
    *,
    scheduler: Scheduler = None,
    machine: MachineOptions,
    agents: Length = None,
    options: ReplayOptions,
    schedule: Schedule = None,
    report: Report = None,
) -> Answer:
    """Replay a trace; with --agents also without them, to compare."""
    check_places(options.json, schedule, report, sources=(trace, options.scenario))
    with simulation_parts():
        from gleaner.control.simulation import run as experiment
        from gleaner.control.simulation.metrics import output
        from gleaner.control.simulation.report import run_page
        from gleaner.control.simulation.scenario import read_scenario

        settings = read_scenario(options.scenario, given(context, () if agents is None else (agents,)))
        check_owners((settings.scheduler.kind,), options.target, options.entitlement)
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
        return answer(value, tables, said, options.json)


@app.command()
@with_option_groups
def compare(
    context: typer.Context,
    trace: Trace = None,
    *,
    schedulers: Schedulers = "fcfs,easy,conservative",
    machine: MachineOptions,
    agents: Lengths = None,
    options: ReplayOptions,
    report: Report = None,
) -> Answer:
    """Replay a trace under several schedulers and lengths of agents."""
    check_places(options.json, report, sources=(trace, options.scenario))
    kinds = read("--schedulers", disciplines, schedulers)
    lengths_s = read("--agents", lengths, agents) if agents else ()
    check_owners(kinds, options.target, options.entitlement)
    with simulation_parts():
        from gleaner.control.simulation import run as experiment
        from gleaner.control.simulation.metrics import output
        from gleaner.control.simulation.report import run_page
        from gleaner.control.simulation.scenario import read_scenario

        settings = read_scenario(options.scenario, given(context, lengths_s))
        cases = experiment.cases(settings, kinds, lengths_s)
        with render.steps("reading the trace, MiB") as draw:
            ground = experiment.prepare(settings, draw)
        with render.steps("replaying") as draw:
            outcomes = experiment.run_all(cases, ground, draw)
        if report is not None:
            _report(report, run_page.comparison_page(outcomes, ground))
        value = output.comparison_value(outcomes, ground)
        said = (*output.cleaning_lines(ground.cleaning, len(ground.workload)), *ground.remarks)
        return answer(value, [output.comparison_table(outcomes)], said, options.json)


app.command()(simulate_tune.tune)
app.command()(simulate_replay.replay)


def _report(path: Path, page: "Page") -> None:
    from gleaner.control.simulation import report

    with write(path):
        report.write(path, page)
