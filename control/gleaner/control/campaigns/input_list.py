"""The `inputs` of a campaign file: the local files and folders that jobs read.

A file is on the machine of who submits. `glean submit` sends it and puts an `InputSpec` in its place; nobody else can.
"""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gleaner.control.models.inputs import InputName

KEYS = frozenset({"from", "to", "copy"})
LIKE = "[steering.cmnd, {from: ./calib-v3, to: calib, copy: true}]"


@dataclass(frozen=True, slots=True)
class LocalInput:
    """A file or folder of this machine that is to be an input."""

    source: str
    """Its path, relative to the campaign file's folder."""
    name: str
    """Its name in `/inputs`."""
    into_job: bool
    where: str
    """The place where it was written."""


def local_input(keys: dict[str, str], where: str) -> LocalInput:
    """Return the input that these keys say. Raises `ValueError` with the mistake."""
    source = keys.get("from", "")
    if not source:
        raise ValueError("from is missing; it names the file or folder")
    if "://" in source:
        raise ValueError(f"{source} is a URL, and only files and folders of this machine can be inputs yet")
    copy = keys.get("copy", "false")
    if copy not in {"true", "false"}:
        raise ValueError(f"copy must be true or false, found {copy!r}")
    name = keys.get("to") or Path(source).name
    try:
        TypeAdapter[str](InputName).validate_python(name)
    except ValidationError:
        raise ValueError(
            f"{name!r} is no name for a file in /inputs: letters and digits, with . _ - within; say one with `to`"
        ) from None
    return LocalInput(source, name, copy == "true", where)
