"""The common options of the verbs of `glean simulate`, and their conversion into settings.

This module loads no library.
"""

import os
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar, cast

import typer

from gleaner.control.cli import render
from gleaner.control.cli.failures import BadInput, CliError
from gleaner.control.cli.output import Answer
from gleaner.control.input_errors import one_line
from gleaner.control.simulation.settings import SchedulerKind

if TYPE_CHECKING:
    from gleaner.control.simulation.report.page import Page
    from gleaner.control.simulation.scenario import Option

T = TypeVar("T")

_UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MOST_DIGITS = 15
"""The number of digits that are always exact in a float."""


def seconds(text: str) -> float:
    """Return the seconds of a time in a user's notation. Raises `ValueError` if the text is not a time.

    >>> seconds("90"), seconds("15m"), seconds("1.5h"), seconds("1h30m"), seconds("2d")
    (90.0, 900.0, 5400.0, 5400.0, 172800.0)
    """
    pieces = re.findall(r"(\d+(?:\.\d+)?)(min|[smhd]|)", text)
    is_clear = len(pieces) == 1 or all(unit for _, unit in pieces)  # 1h30: seconds, or minutes?
    if not pieces or not is_clear or "".join(number + unit for number, unit in pieces) != text:
        raise ValueError(f"expected a time such as 90, 15m, 1.5h or 2d, found {text!r}")
    if any(len(number) > _MOST_DIGITS for number, _ in pieces):
        raise ValueError(f"expected a time of at most {_MOST_DIGITS} digits, found {text!r}")
    return float(sum(float(number) * _UNITS_S[unit] for number, unit in pieces))


def parsed_time(text: str) -> float:
    """Return the seconds of a time for Typer, which names the option if the text is not a time."""
    try:
        return seconds(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def lengths(text: str) -> tuple[float, ...]:
    """Return several times that are separated by commas.

    >>> lengths("30m,1h")
    (1800.0, 3600.0)
    """
    return tuple(seconds(one.strip()) for one in text.split(","))


def disciplines(text: str) -> tuple[SchedulerKind, ...]:
    """Return several schedulers that are separated by commas.

    >>> disciplines("fcfs,easy")
    (<SchedulerKind.FCFS: 'fcfs'>, <SchedulerKind.EASY: 'easy'>)
    """
    known = [kind.value for kind in SchedulerKind]
    for name in text.split(","):
        if name.strip() not in known:
            raise ValueError(f"expected some of {', '.join(known)}, found {name.strip()!r}")
    return tuple(dict.fromkeys(SchedulerKind(name.strip()) for name in text.split(",")))


def setting(text: str) -> "Option":
    """Return one key of a scenario file with its value. Values are checked together with the whole scenario.

    >>> setting("agents.margin_s=1m")
    Option(key=('agents', 'margin_s'), name='--set agents.margin_s', value=60.0)
    """
    from gleaner.control.simulation.scenario import Option

    key, equals, value = text.partition("=")
    names = tuple(key.split(".", 3))  # the fourth might be a user's name, which can contain a point
    if not (equals and len(names) > 1 and all(names)):
        raise ValueError(f"expected KEY=VALUE, such as agents.margin_s=10s, found {text!r}")
    with suppress(ValueError):
        return Option(names, f"--set {key}", seconds(value) if key.endswith("_s") else value)
    return Option(names, f"--set {key}", value)


Trace: TypeAlias = Annotated[
    Path | None, typer.Argument(metavar="TRACE", help="Standard Workload Format, or sacct --parsable2, also .gz.")
]
Scheduler: TypeAlias = Annotated[SchedulerKind | None, typer.Option(help="Scheduler of regular jobs.  [default: easy]")]
Schedulers: TypeAlias = Annotated[
    str, typer.Option(metavar="KIND,KIND", help="Some of fcfs, easy, conservative, priority, sfs, omfs.")
]
Cores: TypeAlias = Annotated[int | None, typer.Option(help="The cores of each node.  [default: 1]")]
Length: TypeAlias = Annotated[
    float | None,
    typer.Option(parser=parsed_time, metavar="TIME", help="Agents of this length on idle nodes, such as 30m or 2h."),
]
Lengths: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TIME,TIME", help="Also with agents of these lengths, such as 30m,1h.")
]
ScenarioFile: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A scenario file (TOML). Options override it.")
]
Json: TypeAlias = Annotated[str | None, typer.Option(metavar="FILE|-", help="Write all figures as JSON; - is stdout.")]
Schedule: TypeAlias = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write when each job ran, as CSV: job, submit, start, end.")
]
Report: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots (HTML).")]


Processors: TypeAlias = Annotated[
    int | None, typer.Option(help="The processors of a pool.  [default: those in the trace's header]")
]
NodesOption: TypeAlias = Annotated[int | None, typer.Option(help="The number of nodes, instead of a pool.")]
Set: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A key of a scenario file, such as agents.margin_s=10s; repeatable."
    ),
]
Save: TypeAlias = Annotated[
    float | None,
    typer.Option(parser=parsed_time, metavar="TIME", help="The time of one save.  [default: 0, and 60s for tune]"),
]
Restore: TypeAlias = Annotated[
    float | None,
    typer.Option(parser=parsed_time, metavar="TIME", help="The time of one restore.  [default: 0, and 60s for tune]"),
]


_KEYS = {
    "trace": "workload.trace",
    "processors": "machine.processors",
    "nodes": "machine.nodes",
    "cores": "machine.cores",
    "scheduler": "scheduler.kind",
    "save": "agents.save.constant_s",
    "restore": "agents.restore.constant_s",
}
"""The setting that each of these options replaces as a whole."""


def given(context: typer.Context, lengths_s: Sequence[float] = ()) -> "list[Option]":
    """Return the options that the user has set, as settings.

    If there are several lengths of agents, the shortest is used.

    Raises `BadInput`.
    """
    from gleaner.control.simulation.scenario import Option

    found: Mapping[str, object] = context.params
    options = [
        Option(tuple(key.split(".")), "TRACE" if name == "trace" else f"--{name.replace('_', '-')}", found[name])
        for name, key in _KEYS.items()
        if found.get(name) is not None
    ]
    if lengths_s:
        options.append(Option(("agents", "length_s"), "--agents", min(lengths_s)))
    options += [read("--set", setting, text) for text in cast("Sequence[str]", found.get("set_") or ())]
    return options


def read(option: str, parse: Callable[[str], T], text: str) -> T:
    """Return the parsed value of the option's text. Raises `BadInput`."""
    try:
        return parse(text)
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def check_places(*places: Path | str | None, sources: Sequence[Path | None] = ()) -> None:
    """Check, before the work begins, that each output file has an existing folder and a different name.

    Raises `BadInput`.
    """
    taken = {os.path.realpath(source): "it is read" for source in sources if source is not None}
    for place in places:
        if place is None or place == "-":
            continue
        path, real = Path(place), os.path.realpath(place)  # Path.resolve fails for a link that points to itself
        if real in taken and not path.is_char_device():
            raise BadInput(f"{path} cannot be written: {taken[real]}")
        taken[real] = "two results would go to this one file"
        if path.is_dir():
            raise BadInput(f"{path} is a folder; name a file")
        if not path.parent.is_dir():
            raise BadInput(f"{path}: there is no folder {path.parent}")


@contextmanager
def write(path: Path) -> Generator[None]:
    """Let the block write this file. A full disk or a missing permission is reported in one line."""
    try:
        yield
    except OSError as error:
        raise CliError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_page(path: Path, page: "Page") -> None:
    """Write the page of a report."""
    from gleaner.control.simulation import report

    with write(path):
        report.write(path, page)


def answer(
    value: dict[str, object], parts: Iterable[object], remarks: tuple[str, ...], json: str | None, exit_code: int = 0
) -> Answer:
    """Return tables and lines as the answer, unless the figures themselves were requested on stdout."""
    if json == "-":
        return Answer(value, as_json=True, exit_code=exit_code)
    if json is not None:
        with write(Path(json)):
            Path(json).write_text(render.json_text(value), encoding="utf-8")
    return Answer(tuple(parts), remarks=remarks, exit_code=exit_code)


@contextmanager
def simulation_parts() -> Generator[None]:
    """Import and use the simulation. A refusal by the simulation is reported in one line."""
    try:
        yield
    except MemoryError as error:
        raise CliError(f"not enough memory on this computer: {one_line(str(error))}") from error
    except Exception as error:
        from gleaner.control.simulation.errors import SimulationError, raise_if_interrupted

        raise_if_interrupted(error)
        if not isinstance(error, SimulationError):
            raise
        raise BadInput(one_line(str(error))) from error
