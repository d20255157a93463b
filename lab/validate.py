"""Compare our starts with those of the real Slurm: `.venv/bin/python -m lab.validate [TRACE] [OPTIONS]`.

Ctrl-C ends every process of Slurm that was started.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from gleaner.control.cli import render
from gleaner.control.cli.output import Answer
from gleaner.control.cli.simulate_options import seconds
from gleaner.control.simulation.errors import SimulationError
from gleaner.control.simulation.metrics.output import cleaning_lines
from gleaner.control.simulation.model import Machine, Workload, of_nodes
from gleaner.control.simulation.workloads import traces
from lab.real_slurm import output, world
from lab.real_slurm.validation import ValidationPlan, validate
from lab.real_slurm.workloads import cut, made


def main(
    trace: Path | None = None,
    *,
    nodes: Annotated[int, typer.Option(min=1, max=1000, help="Nodes; each costs about 10 MB.")] = 64,
    cores: Annotated[int, typer.Option(min=1, help="Cores of a node.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, max=10_000, help="Number of jobs; of a trace, the first ones.")] = 300,
    length: Annotated[str, typer.Option(help="Time from first to last submission; a trace is cut to it.")] = "2h",
    load: Annotated[float, typer.Option(min=0.01, help="Load of generated jobs, if no trace is given.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of generated jobs.")] = 1,
    speed: Annotated[float, typer.Option(min=1, max=200, help="How many times faster than the clock.")] = 60,
    offsets: Annotated[int, typer.Option(min=1, help="Number of places in backfilling's cycle to begin at.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Number of replays at each of these places.")] = 2,
    interval: Annotated[int, typer.Option(min=1, help="bf_interval, in seconds.")] = 30,
    resolution: Annotated[int, typer.Option(min=1, help="bf_resolution, in seconds.")] = 60,
    engine: Annotated[str | None, typer.Option(help="Address of a container engine to use in any case.")] = None,
) -> None:
    """Replay some hundred jobs here and with the real Slurm, faster than the clock, and compare the starts."""
    try:
        machine, length_s = of_nodes(nodes, cores), seconds(length)
        remarks: tuple[str, ...] = ()
        workload = made(machine, jobs=jobs, length_s=length_s, load=load, seed=seed)
        if trace is not None:
            workload, remarks = _of_trace(trace, machine, jobs, length_s)
        place = world.find(engine)
        with render.steps("the real Slurm") as draw:
            plan = ValidationPlan(speed, offsets, repeats, interval, resolution)
            found = validate(workload, machine, plan, place, progress=draw)
    except (SimulationError, ValueError) as error:
        sys.exit(f"validate: {error}")
    render.show(Answer((*output.tables(found), *output.lines(found)), remarks=remarks))


def _of_trace(path: Path, machine: Machine, jobs: int, length_s: float) -> tuple[Workload, tuple[str, ...]]:
    """Return the first jobs of the trace that fit the machine, and remarks on the changes to them."""
    trace = traces.read(path, processors=machine.cores)
    workload, factor = cut(trace.workload, jobs=jobs, length_s=length_s)
    remarks = (*cleaning_lines(trace.cleaning, len(trace.workload)), f"its first {len(workload)} are used")
    if factor < 1:
        remarks = (*remarks, f"all their times are {factor:.4g} of what they were, to end in time")
    return workload, remarks


if __name__ == "__main__":
    typer.run(main)
