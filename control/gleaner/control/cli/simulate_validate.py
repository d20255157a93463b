"""`glean simulate validate`: our replay compared with the real Slurm, whose clocks run faster.

The modules that compute are imported when the verb runs. Ctrl-C ends every process of Slurm that was started.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gleaner.control.cli import render
from gleaner.control.cli.failures import Failure
from gleaner.control.cli.output import Answer
from gleaner.control.cli.simulate_options import (
    Cores,
    Json,
    Trace,
    answer,
    check_places,
    read,
    seconds,
    simulation_parts,
)

if TYPE_CHECKING:
    from gleaner.control.simulation.model import Machine, Workload


class ValidationInterrupted(Failure):
    """Ctrl-C; nothing is kept."""

    exit_code = 130


def validate(
    trace: Trace = None,
    *,
    nodes: Annotated[int, typer.Option(min=1, max=1000, help="Nodes of the machine; each costs about 10 MB.")] = 64,
    cores: Cores = None,
    jobs: Annotated[int, typer.Option(min=1, max=10_000, help="Number of jobs; of a trace, the first ones.")] = 300,
    length: Annotated[
        str, typer.Option(metavar="TIME", help="Time from first to last submission; a trace's times are cut to it.")
    ] = "2h",
    load: Annotated[float, typer.Option(min=0.01, help="Load of generated jobs, if no trace is given.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of generated jobs.")] = 1,
    speed: Annotated[float, typer.Option(min=1, max=200, help="How many times faster than the clock.")] = 60,
    offsets: Annotated[int, typer.Option(min=1, help="Number of places in backfilling's cycle to begin at.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Number of replays at each of these places.")] = 2,
    interval: Annotated[int, typer.Option(min=1, help="bf_interval, in seconds.")] = 30,
    resolution: Annotated[int, typer.Option(min=1, help="bf_resolution, in seconds.")] = 60,
    tolerance: Annotated[str, typer.Option(metavar="TIME", help="Starts no further apart count as equal.")] = "5s",
    engine: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Use a container of this engine, even where Slurm's programs are installed."),
    ] = None,
    json: Json = None,
) -> Answer:
    """Compare starts with those of the real Slurm.

    It replays some hundred jobs with both, faster than the clock.
    """
    check_places(json)
    length_s, together_s = read("--length", seconds, length), read("--tolerance", seconds, tolerance)
    with simulation_parts():
        from gleaner.control.simulation.model import of_nodes
        from gleaner.lab.real_slurm import output, world
        from gleaner.lab.real_slurm.validation import Plan
        from gleaner.lab.real_slurm.validation import validate as run
        from gleaner.lab.real_slurm.workloads import made

        machine = of_nodes(nodes, cores or 1)
        remarks: tuple[str, ...] = ()
        if trace is None:
            workload = made(machine, jobs=jobs, length_s=length_s, load=load, seed=seed)
        else:
            workload, remarks = _of_trace(trace, machine, jobs, length_s)
        plan = Plan(speed, offsets, repeats, interval, resolution, together_s)
        place = world.find(engine)
        try:
            with render.steps(f"the real Slurm {place.name}") as draw:
                found = run(workload, machine, plan, place, progress=draw)
        except KeyboardInterrupt:
            raise ValidationInterrupted("stopped: every process that was started has ended") from None
        return answer(output.as_json(found), (*output.tables(found), *output.lines(found)), remarks, json)


def _of_trace(path: Path, machine: "Machine", jobs: int, length_s: float) -> "tuple[Workload, tuple[str, ...]]":
    """Return the first jobs of the trace that fit, and remarks on the changes to them."""
    from gleaner.control.simulation.metrics.output import cleaning_lines
    from gleaner.control.simulation.workloads import traces
    from gleaner.lab.real_slurm.workloads import cut

    trace = traces.read(path, processors=machine.cores)
    workload, factor = cut(trace.workload, jobs=jobs, length_s=length_s)
    remarks = (*cleaning_lines(trace.cleaning, len(trace.workload)), f"its first {len(workload)} are used")
    if factor < 1:
        remarks = (*remarks, f"all their times are {factor:.4g} of what they were, to end in time")
    return workload, remarks
