"""The manifest: all that setup has made on a machine, written before each change. So a run that was interrupted can be
completed, or taken back."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from gleaner.control.setup.steps.changes import (
    Entry,
    EntryKind,
    Ownership,
    SetupRefused,
    WriteFile,
)
from gleaner.control.setup.steps.machine import MachineReader

PATH = "/etc/gleaner/setup.json"
_VERSION = 1


@cache
def _format() -> TypeAdapter["Manifest"]:
    return TypeAdapter(Manifest)


Answers = Mapping[str, str | int | list[str]]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The entries in the order in which they were made, the answers of each role, and the restarts that are due."""

    version: int = _VERSION
    answers: dict[str, dict[str, str | int | list[str]]] = field(
        default_factory=dict[str, dict[str, str | int | list[str]]]
    )
    entries: tuple[Entry, ...] = ()
    restarts: tuple[str, ...] = ()

    def find(self, kind: EntryKind, name: str) -> Entry | None:
        """Return the entry of a thing, if setup has made it."""
        return next((entry for entry in self.entries if entry.key == (kind, name)), None)

    def with_entry(self, entry: Entry, role: str) -> "Manifest":
        """Return the manifest with an entry for a role. An entry of the same thing keeps its place."""
        known = self.find(*entry.key)
        if known is None:
            return replace(self, entries=(*self.entries, replace(entry, roles=(role,))))
        new = replace(entry, roles=tuple(dict.fromkeys((*known.roles, role))))
        return replace(self, entries=tuple(new if one.key == entry.key else one for one in self.entries))

    def without_entry(self, entry: Entry) -> "Manifest":
        """Return the manifest without an entry."""
        return replace(self, entries=tuple(one for one in self.entries if one.key != entry.key))

    def to_write(self, gets: Ownership) -> WriteFile:
        """Return the change that writes the manifest. Only root reads it: it names programs that root will run."""
        return WriteFile(PATH, (json.dumps(asdict(self), indent=2) + "\n").encode(), gets)


def load(machine: MachineReader) -> Manifest:
    """Return the manifest of a machine, or an empty one. Raises `SetupRefused` if it is broken, or not root's alone."""
    found = machine.file(PATH)
    if found is None:
        return Manifest()
    if machine.is_root and (found.has.uid != 0 or found.has.mode & 0o022):
        raise SetupRefused(f"{PATH} must be root's, and nobody else's to write: chown root, chmod 600")
    try:
        manifest = _format().validate_json(found.content)
    except (ValidationError, ValueError) as error:
        raise SetupRefused(f"{PATH} is broken: bring it again from a backup, or remove what it names") from error
    if manifest.version != _VERSION:
        raise SetupRefused(f"{PATH} is of another version of Gleaner: use that to take it back first")
    return manifest
