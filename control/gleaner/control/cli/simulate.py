"""The verbs of `glean simulate`: run and compare. They need the extra `simulate`, but no control program.

The modules that compute are imported when a verb runs, so that `glean --help` stays fast and works without the extra.
"""

import typer

from gleaner.control.cli import render, simulate_replay, simulate_tune
from gleaner.control.cli import simulate_options as options
from gleaner.control.cli.output import Answer
from gleaner.control.simulation.settings import SchedulerKind

app = typer.Typer(no_args_is_help=True, help="Simulate agents or another scheduler on a cluster's accounting.")


@app.command()
def run(
    context: typer.Context,
    trace: options.Trace = None,
    *,
    scheduler: options.Scheduler = None,
    processors: options.Processors = None,
    nodes: options.NodesOption = None,
    cores: options.Cores = None,
    agents: options.Length = None,
    save: options.Save = None,
    restore: options.Restore = None,
    set_: options.Set = None,
    scenario: options.ScenarioFile = None,
    json: options.Json = None,
    schedule: options.Schedule = None,
    report: options.Report = None,
) -> Answer:
    """Replay a trace. With --agents, also replay it without them, for comparison."""
    options.check_places(json, schedule, report, sources=(trace, scenario))
    with options.simulation_parts():
        from gleaner.control.simulation import run as experiment
        from gleaner.control.simulation.metrics import output
        from gleaner.control.simulation.report import run_page
        from gleaner.control.simulation.scenario import read_scenario

        settings = read_scenario(scenario, options.given(context, () if agents is None else (agents,)))
        with render.steps("reading the trace, MiB") as draw:
            ground = experiment.prepare(settings, draw)
        with render.steps("replaying") as draw:
            outcome = experiment.run(settings, ground, label=experiment.label(settings), progress=draw)
        value = output.run_value(outcome, ground)
        if schedule is not None:
            with options.write(schedule):
                output.write_schedule(schedule, outcome.schedule)
        if report is not None:
            options.write_page(report, run_page.run_page(outcome, ground))
        found = outcome.measures
        tables = [output.machine_table(found), output.jobs_table(found), output.sizes_table(found, ground.unit)]
        said = (
            *output.cleaning_lines(ground.cleaning, len(ground.workload)),
            *ground.remarks,
            *experiment.odd(outcome),
        )
        return options.answer(value, tables, said, json)


@app.command()
def compare(
    context: typer.Context,
    trace: options.Trace = None,
    *,
    schedulers: options.Schedulers = "fcfs,easy,conservative",
    processors: options.Processors = None,
    nodes: options.NodesOption = None,
    cores: options.Cores = None,
    agents: options.Lengths = None,
    save: options.Save = None,
    restore: options.Restore = None,
    set_: options.Set = None,
    scenario: options.ScenarioFile = None,
    json: options.Json = None,
    report: options.Report = None,
) -> Answer:
    """Replay a trace under several schedulers and lengths of agents."""
    options.check_places(json, report, sources=(trace, scenario))
    kinds = options.read("--schedulers", options.disciplines, schedulers)
    lengths_s = options.read("--agents", options.lengths, agents) if agents else ()
    with options.simulation_parts():
        from gleaner.control.simulation import run as experiment
        from gleaner.control.simulation.metrics import output
        from gleaner.control.simulation.replay.in_order import targets_of
        from gleaner.control.simulation.replay.omfs import entitled_units
        from gleaner.control.simulation.report import run_page
        from gleaner.control.simulation.scenario import read_scenario

        settings = read_scenario(scenario, options.given(context, lengths_s))
        cases = experiment.cases(settings, kinds, lengths_s)
        with render.steps("reading the trace, MiB") as draw:
            ground = experiment.prepare(settings, draw)
        if SchedulerKind.SFS in kinds:  # a refusal comes before the first replay
            targets_of(ground.workload, settings.scheduler.sfs)
        if SchedulerKind.OMFS in kinds:
            entitled_units(ground.workload, ground.machine, settings.scheduler.omfs)
        with render.steps("replaying") as draw:
            outcomes = experiment.run_all(cases, ground, draw)
        if report is not None:
            options.write_page(report, run_page.comparison_page(outcomes, ground))
        value = output.comparison_value(outcomes, ground)
        said = (*output.cleaning_lines(ground.cleaning, len(ground.workload)), *ground.remarks)
        return options.answer(value, [output.comparison_table(outcomes)], said, json)


app.command()(simulate_tune.tune)
app.command()(simulate_replay.replay)
