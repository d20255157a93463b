"""`glean simulate validate`: our replay held against the real Slurm, whose clocks run faster.

What computes is imported when the verb runs. Ctrl-C ends every process of Slurm's that was started.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gleaner.control.cli import render
from gleaner.control.cli.answer import Answer
from gleaner.control.cli.failures import Failure
from gleaner.control.cli.simulate_options import Cores, Json, Trace, check_places, read, simulation_parts, write
from gleaner.control.simulation.figures.durations import seconds

if TYPE_CHECKING:
    from gleaner.control.simulation.machine import Machine
    from gleaner.control.simulation.workload import Workload


class Interrupted(Failure):
    """Ctrl-C; nothing is kept."""

    exit_code = 130


def validate(
    trace: Trace = None,
    *,
    nodes: Annotated[int, typer.Option(min=1, max=1000, help="Of the machine; each costs about 10 MB.")] = 64,
    cores: Cores = None,
    jobs: Annotated[int, typer.Option(min=1, max=10_000, help="How many; of a trace the first.")] = 300,
    length: Annotated[
        str, typer.Option(metavar="TIME", help="From the first to the last submission; a trace's times are cut to it.")
    ] = "2h",
    load: Annotated[float, typer.Option(min=0.01, help="Of made jobs, where no trace is given.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Of made jobs.")] = 1,
    speed: Annotated[float, typer.Option(min=1, max=200, help="So much faster than the clock.")] = 60,
    offsets: Annotated[int, typer.Option(min=1, help="Begin at so many places of backfilling's cycle.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="So often at each of them.")] = 2,
    interval: Annotated[int, typer.Option(min=1, help="bf_interval, in seconds.")] = 30,
    resolution: Annotated[int, typer.Option(min=1, help="bf_resolution, in seconds.")] = 60,
    tolerance: Annotated[str, typer.Option(metavar="TIME", help="What is no difference.")] = "5s",
    engine: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A container of this engine, also where Slurm's programs are installed."),
    ] = None,
    json: Json = None,
) -> Answer:
    """Replay some hundred jobs by the real Slurm, faster than the clock, and compare the starts with ours."""
    check_places(json)
    length_s, together_s = read("--length", seconds, length), read("--tolerance", seconds, tolerance)
    with simulation_parts():
        from gleaner.control.simulation.machine import of_nodes
        from gleaner.control.simulation.validate import laboratory, outputs
        from gleaner.control.simulation.validate.validation import Plan
        from gleaner.control.simulation.validate.validation import validate as run
        from gleaner.control.simulation.validate.workloads import made

        machine = of_nodes(nodes, cores or 1)
        remarks: tuple[str, ...] = ()
        if trace is None:
            workload = made(machine, jobs=jobs, length_s=length_s, load=load, seed=seed)
        else:
            workload, remarks = _of_trace(trace, machine, jobs, length_s)
        plan = Plan(speed, offsets, repeats, interval, resolution, together_s)
        place = laboratory.find(engine)
        try:
            with render.steps(f"the real Slurm {place.name}") as draw:
                found = run(workload, machine, plan, place, progress=draw)
        except KeyboardInterrupt:
            raise Interrupted("stopped: every process that was started has ended") from None
        value = outputs.as_json(found)
        if json == "-":
            return Answer(value, as_json=True)
        if json is not None:
            from gleaner.control.simulation.figures.outputs import write_json

            with write(Path(json)):
                write_json(Path(json), value)
        return Answer((*outputs.tables(found), *outputs.lines(found)), remarks=remarks)


def _of_trace(path: Path, machine: "Machine", jobs: int, length_s: float) -> "tuple[Workload, tuple[str, ...]]":
    """The first jobs that fit, and what was done to them."""
    from gleaner.control.simulation.figures.tabulate import cleaning_lines
    from gleaner.control.simulation.validate.workloads import cut
    from gleaner.control.simulation.workloads import traces

    trace = traces.read(path, processors=machine.cores)
    workload, factor = cut(trace.workload, jobs=jobs, length_s=length_s)
    remarks = (*cleaning_lines(trace.cleaning, len(trace.workload)), f"its first {len(workload)} are used")
    if factor < 1:
        remarks = (*remarks, f"all their times are {factor:.4g} of what they were, to end in time")
    return workload, remarks
