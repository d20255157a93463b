"""Repeat published experiments and print both results: `.venv/bin/python -m lab.reproduce [NAME ...] [--quick]`."""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import cast

from gleaner.control.cli import render
from gleaner.control.cli.output import Answer
from lab.experiments import NAMES, settings_of
from lab.experiments.comparison import Reproduction, lines, table


def main() -> None:
    """Repeat the experiments that the command line names, by default all."""
    parser = argparse.ArgumentParser(prog="python -m lab.reproduce", description="Repeat published experiments.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; by default all")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    asked = parser.parse_args()
    if strangers := sorted({*asked.names} - {*NAMES}):
        parser.error(f"there is no experiment {strangers[0]!r}; there are: {', '.join(NAMES)}")
    for name in asked.names or NAMES:
        with render.busy(f"repeating {name}"):
            comparison = compared(name, quick=asked.quick)
        render.show(Answer((table(comparison), lines(comparison))))


def compared(name: str, *, quick: bool) -> Reproduction:
    """Repeat an experiment with the settings in its file, with fewer repetitions if `quick` is True."""
    run = cast("Callable[..., Reproduction]", import_module(f"lab.experiments.{name}").run)
    return run(settings_of(name), quick=quick)


if __name__ == "__main__":
    main()
