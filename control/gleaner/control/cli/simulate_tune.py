"""`glean simulate tune`: the best length of agents on this cluster, and their margin.

Ctrl-C keeps the finished work, and the same command goes on from there. The modules that compute are imported when the
verb runs.
"""

import math
import os
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gleaner.control.cli import render
from gleaner.control.cli.failures import BadInput, Failure
from gleaner.control.cli.output import Answer
from gleaner.control.cli.simulate_options import (
    Allocation,
    Cores,
    Entitlements,
    Json,
    NodesOption,
    Processors,
    Report,
    ScenarioFile,
    Scheduler,
    Targets,
    Trace,
    answer,
    check_places,
    given,
    read,
    seconds,
    simulation_parts,
    write,
)
from gleaner.control.cli.simulate_options import lengths as times

if TYPE_CHECKING:
    from gleaner.control.simulation.run import Ground
    from gleaner.control.simulation.scenario import Scenario
    from gleaner.control.simulation.settings import AgentSettings
    from gleaner.control.simulation.tuning.tune import Effort, Grid, Question, Tuning

ASSUMED_S = 60.0
"""The assumed time of a save, and of a restore, unless the user gives one."""

_SEARCH = 0.95
"""The share of --time for the search. The rest is for the replays that are under way then, and for the answer."""


class Interrupted(Failure):
    """Ctrl-C in the middle of work that can be resumed."""

    exit_code = 130


def share_or_time(text: str) -> tuple[float, bool]:
    """Return how much longer regular jobs may wait, and True if that is a share of their wait.

    >>> share_or_time("1%"), share_or_time("90s")
    ((0.01, True), (90.0, False))
    """
    if not text.endswith("%"):
        return seconds(text), False
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise ValueError(f"expected a limit such as 1% or 90s, found {text!r}")
    return share, True


@dataclass
class _Standing:
    """The progress of a sweep."""

    done: int = 0
    all: int = 0
    state: Path = field(default_factory=Path)


def tune(
    context: typer.Context,
    trace: Trace = None,
    *,
    wait_limit: Annotated[
        str,
        typer.Option(metavar="SHARE|TIME", help="How much longer regular jobs may wait on average: 3%, or 90s."),
    ] = "3%",
    lengths: Annotated[
        str | None, typer.Option(metavar="TIME,TIME", help="Lengths of agents to try.  [default: 5m to 4h]")
    ] = None,
    margins: Annotated[
        str | None, typer.Option(metavar="TIME,TIME", help="Margins to try.  [default: 10s to 5m]")
    ] = None,
    synchronised: Annotated[
        bool | None,
        typer.Option("--synchronised/--not-synchronised", help="Try only agents that end together, or only others."),
    ] = None,
    preemption: Annotated[
        bool | None,
        typer.Option(
            "--preemption/--no-preemption",
            help="Agents leave for a regular job once they have saved, as shipped.  [default: where nodes are alike]",
            show_default=False,
        ),
    ] = None,
    save: Annotated[str | None, typer.Option(metavar="TIME", help="What one save takes.  [default: 60s]")] = None,
    restore: Annotated[str | None, typer.Option(metavar="TIME", help="What one restore takes.  [default: 60s]")] = None,
    save_spread: Annotated[float, typer.Option(help="Standard deviation of a save's time, as a share of it.")] = 0.25,
    shortest_slice: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="No agent starts for less.  [default: twice a save and a restore, at least 60s]"
        ),
    ] = None,
    longest: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="Stop after this time at the latest.  [default: 2m]")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Try each setting on this many variants of the trace.  [default: until it is settled]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first variant.", min=0)] = 1,
    confidence: Annotated[float, typer.Option(help="Confidence of the intervals.")] = 0.95,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes.  [default: one for each core]")] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for finished work.  [default: in your home]")
    ] = None,
    scheduler: Scheduler = None,
    processors: Processors = None,
    nodes: NodesOption = None,
    cores: Cores = None,
    allocation: Allocation = None,
    target: Targets = None,
    entitlement: Entitlements = None,
    scenario: ScenarioFile = None,
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The recommendation for the control program (TOML).")
    ] = None,
    agent_settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The recommendation for the agents (TOML).")
    ] = None,
    json: Json = None,
    report: Report = None,
) -> Answer:
    """Find the agents that win most at nearly the same wait."""
    begin_s = time.monotonic()
    if longest is not None and seeds is not None:
        raise BadInput("--seeds replays that many variants, however long it takes: leave out --time")
    time_s = read("--time", seconds, longest or "2m") if seeds is None else math.inf
    check_places(json, report, settings, agent_settings)
    limit = read("--wait-limit", share_or_time, wait_limit)
    with simulation_parts():
        from gleaner.control.simulation import run
        from gleaner.control.simulation.scenario import read_scenario
        from gleaner.control.simulation.tuning.evidence import WaitLimit
        from gleaner.control.simulation.tuning.sweep import default_workers
        from gleaner.control.simulation.tuning.tune import Effort, Question

        told = read_scenario(scenario, [option for option in given(context) if option.key[0] != "agents"])
        _check(told)
        agents, remarks = _agents(told, {"save": _seconds("--save", save), "restore": _seconds("--restore", restore)})
        with render.busy("reading the trace" if told.workload.trace else "making the jobs"):
            ground = run.prepare(told)
        run.check(told.scheduler, ground)
        preempts = ground.machine.is_counted if preemption is None else preemption
        if preemption is None and not preempts:
            remarks = (
                *remarks,
                "agents keep their nodes until their end: preemption is simulated for nodes alike only",
            )
        question = Question(
            limit=WaitLimit(*limit),
            agents=agents,
            grid=_grid(lengths, margins, synchronised=synchronised, preemption=preempts),
            shortest_slice_s=_slice(told)
            if shortest_slice is None
            else read("--shortest-slice", seconds, shortest_slice),
            save_spread=save_spread,
            seeds=seeds,
            first_seed=seed,
            level=confidence,
        )
        effort = Effort(
            state or _default_state(),
            workers or default_workers(),
            is_over=lambda: time.monotonic() >= begin_s + _SEARCH * time_s,
        )
        tuning = _tuned(told, ground, question, effort)
        unwritten = _write(tuning, settings, agent_settings)
        return _answer(tuning, ground, (*remarks, *unwritten), json, report)


def _check(told: "Scenario") -> None:
    """Check that the scenario asks only for things that have a meaning here."""
    workload, window = told.workload, told.measure
    if workload.until_s is not None or workload.keep_waiting:
        raise BadInput("tune replays whole traces: leave out until_s and keep_waiting of [workload]")
    if window.begin_s is not None or window.end_s is not None:
        raise BadInput("tune measures all of a trace: leave out [measure]")


def _seconds(option: str, text: str | None) -> float | None:
    return None if text is None else read(option, seconds, text)


def _agents(told: "Scenario", costs: Mapping[str, float | None]) -> "tuple[AgentSettings, tuple[str, ...]]":
    """Return the agents of the scenario, and what had to be assumed about them."""
    from gleaner.control.simulation.settings import AgentSettings, CostSettings

    agents = told.agents or AgentSettings()
    given_s = {name: value for name, value in costs.items() if value is not None}
    assumed = sorted({"save", "restore"} - agents.model_fields_set - set(given_s))
    costs_s = dict.fromkeys(assumed, ASSUMED_S) | given_s
    agents = agents.model_copy(update={name: CostSettings(constant_s=cost_s) for name, cost_s in costs_s.items()})
    options = " and ".join(f"--{name}" for name in assumed)
    return agents, (f"{options} not given: {ASSUMED_S:g} s assumed, on which the answer depends",) if assumed else ()


def _slice(told: "Scenario") -> float | None:
    """Return the shortest slice of the scenario."""
    agents = told.agents
    return agents.shortest_slice_s if agents is not None and "shortest_slice_s" in agents.model_fields_set else None


def _grid(lengths: str | None, margins: str | None, *, synchronised: bool | None, preemption: bool) -> "Grid":
    from gleaner.control.simulation.tuning.tune import LENGTHS_S, MARGINS_S, Grid

    return Grid(
        lengths_s=LENGTHS_S if lengths is None else read("--lengths", times, lengths),
        synchronised=(True, False) if synchronised is None else (synchronised,),
        margins_s=MARGINS_S if margins is None else read("--margins", times, margins),
        preemption=preemption,
    )


def _default_state() -> Path:
    """Return the folder for a program's state between its runs, by the XDG Base Directory Specification."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "gleaner" / "tune"


def _tuned(told: "Scenario", ground: "Ground", question: "Question", effort: "Effort") -> "Tuning":
    from gleaner.control.simulation.tuning.tune import tune as find

    standing = _Standing(state=effort.state)
    with _resumable(standing), render.steps("replaying") as draw:

        def progress(done: int, whole: int) -> None:
            standing.done, standing.all = done, whole
            draw(done, whole)

        return find(
            ground.workload,
            ground.machine,
            told.scheduler,
            question,
            replace(effort, progress=progress),
            made=told.workload.synthetic,
        )


@contextmanager
def _resumable(standing: _Standing) -> Generator[None]:
    """Turn Ctrl-C inside the block into one line that says what is kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped: {standing.done} of {standing.all} replays are kept in {standing.state}; "
            "the same command goes on from there"
        ) from None


def _write(tuning: "Tuning", settings: Path | None, agent_settings: Path | None) -> tuple[str, ...]:
    """Write the recommendations. Return remarks on files that are not written, since nothing is recommended."""
    from gleaner.control.simulation.tuning import output

    unwritten: list[str] = []
    for path, text in (
        (settings, output.control_settings(tuning)),
        (agent_settings, output.agent_settings(tuning)),
    ):
        if path is None:
            continue
        if text is None:
            unwritten.append(f"{path}: not written, since nothing is recommended")
            continue
        with write(path):
            path.write_text(text, encoding="utf-8")
    return tuple(unwritten)


def _answer(
    tuning: "Tuning", ground: "Ground", assumed: tuple[str, ...], json: str | None, report: Path | None
) -> Answer:
    """Return the answer. Its exit code is 1 if nothing can be recommended."""
    from gleaner.control.simulation.metrics.output import cleaning_lines
    from gleaner.control.simulation.run import machine_name
    from gleaner.control.simulation.tuning import output

    remarks = (
        *cleaning_lines(ground.cleaning, len(ground.workload)),
        *ground.remarks,
        *assumed,
        *output.odd(tuning),
    )
    found = 0 if tuning.recommendation.setting else 1
    if report is not None:
        from gleaner.control.simulation import report as page

        subtitle = f"{tuning.workload} on {machine_name(tuning.machine)}, {tuning.scheduler}"
        with write(report):
            page.write(report, output.page(tuning, subtitle, remarks))
    return answer(output.as_json(tuning), (output.table(tuning), *output.lines(tuning)), remarks, json, found)
