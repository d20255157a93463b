"""Put our runtime into Docker's `daemon.json` and take it out again; all else is kept. Pure functions of texts."""

from __future__ import annotations  # the node may have Python 3.9

import difflib
import json
import re
from typing import Any

RUNTIME = "gleaner"
_INDENT = re.compile(r"^([ \t]+)\"", re.MULTILINE)


class Refused(Exception):
    """A refusal, by which nothing was changed; one line that says why, and what to do."""


def merged(text: str, *, program: str, experimental: bool) -> tuple[str, list[str]]:
    """Return the settings with our runtime, and what was added: "runtimes", "runtimes.gleaner", "experimental".

    If all of it is there already, the text is the same. `experimental` is for an engine whose experimental part is not
    on by other means. Raises `Refused`.

    >>> merged('{"debug": true, "runtimes": {"x": {"path": "/x"}}}', program="/g", experimental=False)[1]
    ['runtimes.gleaner']
    """
    settings = _parsed(text)
    added: list[str] = []
    if "runtimes" not in settings:
        added.append("runtimes")
    runtimes: dict[str, Any] = settings.setdefault("runtimes", {})
    if type(runtimes) is not dict:
        raise Refused('its "runtimes" is no object')
    if RUNTIME not in runtimes:
        runtimes[RUNTIME] = {"path": program}
        added.append(f"runtimes.{RUNTIME}")
    elif runtimes[RUNTIME] != {"path": program}:
        raise Refused(
            f"it has a runtime {RUNTIME!r} that is not ours: {json.dumps(runtimes[RUNTIME])}; remove that first"
        )
    if experimental and settings.get("experimental") is not True:
        if "experimental" in settings:
            raise Refused('it says "experimental": false, and Docker cannot save containers without: change that first')
        settings["experimental"] = True
        added.append("experimental")
    return (_written(settings, text), added) if added else (text, [])


def without(text: str, *, program: str, added: list[str]) -> str:
    """Return the settings without what we `added`, if it is still as we wrote it. Raises `Refused`."""
    settings = _parsed(text)
    runtimes: dict[str, Any] = settings.get("runtimes", {})
    taken = False
    if type(runtimes) is dict:
        if f"runtimes.{RUNTIME}" in added and runtimes.get(RUNTIME) == {"path": program}:
            del runtimes[RUNTIME]
            taken = True
        if "runtimes" in added and not runtimes:
            del settings["runtimes"]
    if "experimental" in added and settings.get("experimental") is True:
        del settings["experimental"]
        taken = True
    return _written(settings, text) if taken else text


def difference(path: str, old: str, new: str) -> str:
    """Return a unified diff; "" if the texts are the same."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), path, path, lineterm="")
    return "\n".join(lines)


def _parsed(text: str) -> dict[str, Any]:
    try:
        settings: dict[str, Any] = json.loads(text, object_pairs_hook=_object) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Refused(f"it is no JSON: {error}") from error
    if type(settings) is not dict:
        raise Refused("it is no JSON object")
    return settings


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {twice!r} is there twice")
    return found


def _written(settings: dict[str, Any], like: str) -> str:
    """Return the settings as JSON, indented as the text before, so that the difference is only ours."""
    indent = _INDENT.search(like)
    return json.dumps(settings, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"
