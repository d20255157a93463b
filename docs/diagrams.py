"""Draw docs/contributing/diagrams.md from the code: `make diagrams`.

`tests/test_docs.py` compares the page with the code.
"""

import dataclasses
import enum
import itertools
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

import gleaner
from gleaner.agent.job import lifecycle
from gleaner.control.models.jobs import Ending
from gleaner.control.states import State, Transition

PAGE = Path(__file__).parent / "contributing" / "diagrams.md"
_NUMBERS = (0, 1, 2, 3, 85, 143)
"""Counts of failed saves, and exit codes: among them 85, for a job that has saved itself, and 143, for SIGTERM."""

_INTRODUCTION = """# Diagrams

`make diagrams` draws this page from the code, and a test compares the two.
[design.md](../design.md) explains the design.

- [The states of a job](#the-states-of-a-job)
- [The states of an attempt](#the-states-of-an-attempt)
- [The lifecycle of a job on an agent](#the-lifecycle-of-a-job-on-an-agent)
- [Each step of the lifecycle](#each-step-of-the-lifecycle)
- [The packages and their imports](#the-packages-and-their-imports)
"""

Step = tuple[str, str, str, tuple[str, ...]]
"""The state, what happened, the state after it, and what is done about it."""

REMEMBERED = "Remembered"
"""Nothing is done now, but the state knows of it from then on."""


def sample_values(kind: Any) -> Iterator[Any]:
    """Yield values of a field's type that lead to all branches of the step function."""
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    if get_origin(kind) in {types.UnionType, Union}:
        for choice in get_args(kind):
            yield from sample_values(choice)
    elif kind is type(None):
        yield None
    elif kind is bool:
        yield from (False, True)
    elif kind is int:
        yield from _NUMBERS
    elif kind is str:
        yield from ("", "text")
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        yield next(iter(kind))
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind.model_construct()
    elif dataclasses.is_dataclass(kind):
        yield from samples(kind)
    else:
        raise TypeError(f"docs/diagrams.py knows no value of {kind}: teach it one")


def samples(kind: Any) -> Iterator[Any]:
    """Yield instances of a state's or an event's class, with all combinations of sample values."""
    hints = get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    for values in itertools.product(*(tuple(sample_values(hints[name])) for name in fields)):
        yield kind(**dict(zip(fields, values, strict=True)))


def lifecycle_steps() -> list[Step]:
    """Return every step that the lifecycle takes, in the order of its states and events, each once."""
    hints = get_type_hints(lifecycle.step)
    states, events = (get_args(kind) for name, kind in hints.items() if name != "return")
    found: dict[Step, None] = {}
    for state, event in itertools.product(states, events):
        for before, happened in itertools.product(samples(state), samples(event)):
            try:
                after, todo = lifecycle.step(before, happened)
            except lifecycle.Unexpected:
                continue
            does = tuple(type(deed).__name__ for deed in todo)
            if type(after) is type(before) and after != before and not does:
                does = (REMEMBERED,)
            found[state.__name__, event.__name__, type(after).__name__, does] = None
    return list(found)


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower()


def _diagram(edges: dict[tuple[str, str], list[str]]) -> str:
    lines = [
        f"    {source} --> {target}: {', '.join(labels)}".rstrip(": ") for (source, target), labels in edges.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def _merged(edges: Iterator[tuple[str, str, str]]) -> dict[tuple[str, str], list[str]]:
    merged: dict[tuple[str, str], list[str]] = {}
    for source, target, label in edges:
        labels = merged.setdefault((source, target), [])
        if label not in labels:
            labels.append(label)
    return merged


def _job() -> str:
    def edges() -> Iterator[tuple[str, str, str]]:
        yield "[*]", State.NEW.value, "submit"
        for transition, source in itertools.product(Transition, State):
            if source in transition.sources:
                yield source.value, transition.target.value, _words(transition.name)
        yield State.COMPLETE.value, "[*]", ""

    return f"""## The states of a job

Source: `control/gleaner/control/states.py`. A New or Saved job can be claimed or cancelled, and a
Saved job can start over. All other transitions from these states come from late reports of an
attempt that was considered lost. Only a failed or cancelled job can be rerun.

{_diagram(_merged(edges()))}"""


def _attempt() -> str:
    def edges() -> Iterator[tuple[str, str, str]]:
        yield "[*]", "live", "claim"
        for ending in Ending:
            yield "live", ending.value, ""
        for ending in (Ending.LOST, Ending.FORGOTTEN):
            yield ending.value, "live", "revive"

    return f"""## The states of an attempt

Source: `Ending` in `control/gleaner/control/models/jobs.py`. A lost or forgotten attempt is live
again when its agent comes back, unless the job has been claimed since.

{_diagram(_merged(edges()))}"""


def _lifecycle(steps: list[Step]) -> str:
    first = steps[0][0]

    def edges() -> Iterator[tuple[str, str, str]]:
        yield "[*]", first, "claim"
        for state, event, after, does in steps:
            if state != after or set(does) - {REMEMBERED}:
                yield state, after, _words(event)

    return f"""## The lifecycle of a job on an agent

Source: `step` in `agent/gleaner/agent/job/lifecycle.py`, for one attempt on its agent, or one job
of `glean run`. Steps that change nothing are not drawn.

{_diagram(_merged(edges()))}"""


def _table(steps: list[Step]) -> str:
    rows: dict[tuple[str, str], list[str]] = {}
    ignored: dict[str, list[str]] = {}
    for (state, event), group in itertools.groupby(steps, key=lambda step: step[:2]):
        nexts = [(after, does) for _state, _event, after, does in group]
        if nexts == [(state, ())]:
            ignored.setdefault(state, []).append(_words(event))
        else:
            rows[state, event] = [f"{after} ({', '.join(map(_words, does)) or 'nothing'})" for after, does in nexts]
    together: dict[tuple[str, str], list[str]] = {}
    for (state, event), nexts in rows.items():
        together.setdefault((_words(event), ", or ".join(nexts)), []).append(state)
    same: dict[tuple[str, str], list[str]] = {}
    for (event, then), states in together.items():
        same.setdefault((", ".join(states), then), []).append(event)
    lines = [f"| {states} | {', '.join(events)} | {then} |" for (states, then), events in same.items()]
    without = [f"| {state} | {', '.join(events)} |" for state, events in ignored.items()]
    return f"""## Each step of the lifecycle

The parentheses after the next state list the actions in order. Where several next states are
listed, the fields of the current state determine the next one.

| in state | when | then |
|---|---|---|
{chr(10).join(lines)}

Some events change nothing, because their action is already under way or over. For all other pairs
of state and event, `step` raises `Unexpected`.

| in state | changes nothing |
|---|---|
{chr(10).join(without)}
"""


_IMPORT = re.compile(r"^[ ]*(?:from (gleaner\.[\w.]+) import (\([^)]*\)|.*)|import (gleaner\.[\w.]+))", re.MULTILINE)
"""To parse all modules takes seconds."""


def imports() -> dict[str, set[str]]:
    """Return which packages each package of Gleaner imports, such as `control.api` of `control.queue`."""
    found: dict[str, set[str]] = {}
    for root in map(Path, gleaner.__path__):
        for file in root.rglob("*.py"):
            package = _package(("gleaner", *file.relative_to(root).with_suffix("").parts))
            targets = found.setdefault(package, set())
            for module, names, whole in _IMPORT.findall(file.read_text()):
                modules = (
                    [whole]
                    if whole
                    else [f"{module}.{name}" for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", names))]
                )
                targets.update(_package(tuple(module.split("."))) for module in modules)
            targets.discard(package)
    return found


def _package(parts: tuple[str, ...]) -> str:
    return ".".join(parts[1:2] if parts[1:2] == ("client",) else parts[1:3])


def without_detours(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the edges that no longer way replaces. Raises `ValueError` if packages import each other.

    >>> without_detours({"a": {"b", "c"}, "b": {"c"}})
    {'a': {'b'}, 'b': {'c'}}
    """
    below: dict[str, set[str]] = {}

    def reached(package: str, path: tuple[str, ...]) -> set[str]:
        if package in path:
            raise ValueError(f"packages import each other: {', '.join((*path, package))}")
        if package not in below:
            targets = edges.get(package, set())
            below[package] = targets.union(*(reached(target, (*path, package)) for target in targets))
        return below[package]

    for package in edges:
        reached(package, ())
    return {
        package: {target for target in targets if not any(target in below[other] for other in targets)}
        for package, targets in edges.items()
    }


def _packages() -> str:
    edges = imports()

    def drawn(tops: tuple[str, ...]) -> str:
        """Draw the packages below `tops`; all others are one box for each part."""

        def box(package: str) -> str:
            return package if package.partition(".")[0] in tops else package.partition(".")[0]

        merged: dict[str, set[str]] = {}
        for package, targets in sorted(edges.items()):
            if package.partition(".")[0] in tops:
                merged.setdefault(box(package), set()).update(map(box, targets))
        lines = [
            f"    {package} --> {target}"
            for package, targets in without_detours(merged).items()
            for target in sorted(targets)
        ]
        return "\n".join(["```mermaid", "flowchart TD", *lines, "```"])

    return f"""## The packages and their imports

Source: the `import` lines of all modules. Where A imports B and C, and B imports C, only the lines
from A to B and from B to C are drawn.

The agent:

{drawn(("agent",))}

Control and its client, with the agent as one box:

{drawn(("client", "control"))}
"""


def page() -> str:
    """Return the whole page."""
    steps = lifecycle_steps()
    return "\n".join((_INTRODUCTION, _job(), _attempt(), _lifecycle(steps), _table(steps), _packages()))


if __name__ == "__main__":
    PAGE.write_text(page())
