"""`glean simulate replay`, which repeats a stored decision with the same policy and the same input."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError

from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.simulate_options import simulation_parts
from gleaner.control.input_errors import one_line
from gleaner.control.models.decisions import DecisionRow
from gleaner.control.simulation.metrics.tables import Table

SHOWN = 20
"""The maximum number of differences that are shown."""
NOTHING = "(nothing)"


def replay(
    decision: Annotated[
        str,
        typer.Argument(metavar="DECISION", help="Its number, or a file of `glean explain N --json`."),
    ],
    as_json: AsJson = False,
) -> Answer:
    """Repeat a stored decision. The exit code is 1 if the answer differs."""
    stored = _stored(decision)
    answer = _answered(stored)
    found = tuple(differences(stored.answer, answer))
    code = 1 if found else 0
    if as_json:
        told = [dict(zip(("where", "stored", "replayed"), each, strict=True)) for each in found]
        return Answer({"decision": stored.id, "same": not found, "differences": told}, as_json, exit_code=code)
    if not found:
        return Answer(f"decision {stored.id}: the same, by the policy {stored.policy}")
    rows = tuple((where, _shown(there), _shown(here)) for where, there, here in found[:SHOWN])
    title = f"decision {stored.id}: {len(found)} differences"
    return Answer((Table(("WHERE", "STORED", "REPLAYED"), rows, title, left=3),), exit_code=code)


def differences(stored: object, replayed: object, where: str = "answer") -> Iterator[tuple[str, object, object]]:
    """Yield the positions at which two JSON values differ, with both values.

    >>> list(differences({"start": [1, 2]}, {"start": [1, 3]}))
    [('answer.start[1]', 2, 3)]
    """
    if isinstance(stored, dict) and isinstance(replayed, dict):
        one, other = cast("dict[str, object]", stored), cast("dict[str, object]", replayed)
        for key in sorted({*one, *other}):
            yield from differences(one.get(key, NOTHING), other.get(key, NOTHING), f"{where}.{key}")
    elif isinstance(stored, list) and isinstance(replayed, list):
        first, second = cast("list[object]", stored), cast("list[object]", replayed)
        for place in range(max(len(first), len(second))):
            there = first[place] if place < len(first) else NOTHING
            here = second[place] if place < len(second) else NOTHING
            yield from differences(there, here, f"{where}[{place}]")
    elif stored != replayed:
        yield where, stored, replayed


def _stored(decision: str) -> DecisionRow:
    if re.fullmatch(r"[0-9]{1,15}", decision):
        with connect() as control:
            return control.decision(int(decision))
    try:
        return DecisionRow.model_validate_json(Path(decision).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{decision}: {error.strerror}; give a decision's number, or a file with its JSON") from None
    except (ValidationError, UnicodeDecodeError):
        raise BadInput(f"{decision}: not a decision; `glean explain NUMBER --json` writes one") from None


def _answered(stored: DecisionRow) -> Mapping[str, Any]:
    """Return the policy's current answer, written as JSON and read again."""
    with simulation_parts():
        from gleaner.control.policy.replay import REPLAYS

        policy = REPLAYS.get(stored.policy)
    if policy is None:
        known = ", ".join(sorted(REPLAYS))
        raise BadInput(f"this Gleaner does not know the policy {stored.policy!r}; it can replay {known}")
    try:
        return cast("Mapping[str, Any]", json.loads(json.dumps(policy(stored.given))))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        said = one_line(f"{type(error).__name__}: {error}")
        raise BadInput(
            f"decision {stored.id} does not hold what the policy {stored.policy} decides from ({said})"
        ) from None


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
