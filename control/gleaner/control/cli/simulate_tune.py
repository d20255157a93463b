"""`glean simulate tune`: the gain from agents of several lengths on this cluster, and the delay of regular jobs.

Ctrl-C prints the results so far. The modules that compute are imported when the verb runs.
"""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gleaner.control.cli import render
from gleaner.control.cli import simulate_options as options
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.output import Answer
from gleaner.control.settings import SHORTEST_ROUND_S

if TYPE_CHECKING:
    from gleaner.control.simulation.scenario import Scenario
    from gleaner.control.simulation.settings import AgentSettings

ASSUMED_S = 60.0
"""The assumed time of a save, and of a restore, unless the user sets one."""
MARGIN_S = 10.0
"""The default margin of agents (`margin_s` in their settings)."""


def share_or_time(text: str) -> tuple[float, bool]:
    """Return the accepted increase of regular jobs' waiting time, and True if it is a fraction of that time.

    >>> share_or_time("1%"), share_or_time("90s")
    ((0.01, True), (90.0, False))
    """
    if not text.endswith("%"):
        return options.seconds(text), False
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise ValueError(f"expected a limit such as 1% or 90s, found {text!r}")
    return share, True


def tune(
    context: typer.Context,
    trace: options.Trace = None,
    *,
    lengths: Annotated[str, typer.Option(metavar="TIME,TIME", help="Lengths of agents to try.")] = "30m,1h,2h,4h",
    save: options.Save = None,
    restore: options.Restore = None,
    wait_limit: Annotated[
        str,
        typer.Option(metavar="SHARE|TIME", help="The most by which the mean wait can grow: 3%, or 90s."),
    ] = "3%",
    seeds: Annotated[int, typer.Option(min=2, help="The number of histories, drawn from the trace's weeks.")] = 10,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.  [default: one for each core]")] = None,
    scheduler: options.Scheduler = None,
    processors: options.Processors = None,
    nodes: options.NodesOption = None,
    cores: options.Cores = None,
    set_: options.Set = None,
    scenario: options.ScenarioFile = None,
    json: options.Json = None,
    report: options.Report = None,
) -> Answer:
    """Compare agents of several lengths with a cluster without agents.

    It prints the time that agents gain, and how much longer regular jobs wait.
    """
    options.check_places(json, report, sources=(trace, scenario))
    limit, is_share = options.read("--wait-limit", share_or_time, wait_limit)
    lengths_s = options.read("--lengths", options.lengths, lengths)
    if min(lengths_s) < SHORTEST_ROUND_S:
        raise BadInput(f"--lengths: control accepts no agents shorter than {SHORTEST_ROUND_S} s")
    with options.simulation_parts():
        from gleaner.control.simulation import run
        from gleaner.control.simulation.metrics.output import cleaning_lines
        from gleaner.control.simulation.scenario import read_scenario
        from gleaner.control.simulation.settings import Migration
        from gleaner.control.simulation.tuning import answer as answers
        from gleaner.control.simulation.tuning.tune import Sweep, compare, settings_of
        from gleaner.control.simulation.tuning.variants import variation

        asked = read_scenario(scenario, options.given(context, (max(lengths_s),)))
        _check(asked)
        with render.steps("reading the trace, MiB") as draw:
            ground = run.prepare(asked, draw)
        agents, assumed = _agents(asked)
        preemptions, kept = _preemptions(agents, is_possible=asked.scheduler.migration.kind is Migration.NONE)
        settings = settings_of(agents, sorted(set(lengths_s)), preemptions)
        how = variation(ground.workload, asked.workload.synthetic)
        sweep = Sweep(ground.workload, ground.machine, asked.scheduler, how, settings)
        with render.steps("replaying histories") as draw:
            comparisons = compare(sweep, seeds, workers or len(os.sched_getaffinity(0)), draw)
        wait_s = comparisons[0].mean("wait_without_s")
        if is_share and not wait_s:
            raise BadInput("without agents no regular job waits, so give --wait-limit in seconds")
        found = answers.TuningAnswer(sweep, comparisons, limit * wait_s if is_share else limit, ground.log_wait_s)
        is_stopped = found.seeds < seeds
        remarks = (
            *((f"stopped: {found.seeds} of {seeds} histories are in this answer",) if is_stopped else ()),
            *cleaning_lines(ground.cleaning, len(ground.workload)),
            *(*ground.remarks, *assumed, *kept, *answers.odd(found, lengths_s)),
        )
        if report is not None:
            subtitle = f"{sweep.workload.name} on {run.machine_name(sweep.machine)}, {asked.scheduler.kind.value}"
            options.write_page(report, answers.page(found, subtitle, remarks))
        parts = (*answers.sentences(found), answers.table(found), answers.method(found))
        code = 130 if is_stopped else 0 if found.best else 1
        return options.answer(answers.as_json(found), parts, remarks, json, code)


def _check(asked: "Scenario") -> None:
    """Check that the scenario contains only settings that have a meaning here."""
    workload, window = asked.workload, asked.measure
    if workload.until_s is not None or workload.keep_waiting:
        raise BadInput("tune replays whole traces: leave out until_s and keep_waiting of [workload]")
    if window.begin_s is not None or window.end_s is not None:
        raise BadInput("tune measures all of a trace: leave out [measure]")


def _agents(asked: "Scenario") -> "tuple[AgentSettings, tuple[str, ...]]":
    """Return the agents of the scenario, and a remark on the assumptions about them."""
    from gleaner.control.simulation.settings import AgentSettings, CostSettings

    agents = asked.agents or AgentSettings()
    assumed = [cost for cost in ("save", "restore") if cost not in agents.model_fields_set]
    update: dict[str, object] = {cost: CostSettings(constant_s=ASSUMED_S) for cost in assumed}
    if "margin_s" not in agents.model_fields_set:
        update["margin_s"] = MARGIN_S
    options = " and ".join(f"--{cost}" for cost in assumed)
    remark = f"{options} not given: {ASSUMED_S:g} s assumed, and the answer depends on it"
    return agents.model_copy(update=update), (remark,) if assumed else ()


def _preemptions(agents: "AgentSettings", *, is_possible: bool) -> tuple[tuple[bool, ...], tuple[str, ...]]:
    """Return the kinds of preemption with which agents are tried, and a remark if kinds are left out."""
    if "preemption" in agents.model_fields_set:
        return (agents.preemption,), ()
    if is_possible:
        return (True, False), ()
    return (False,), ("agents keep their nodes until their end: preemption is not simulated with migration",)
