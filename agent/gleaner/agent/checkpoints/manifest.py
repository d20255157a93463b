"""Define the manifest of an archive, and the names that keys and parts can have. The module does no I/O.

A manifest is made only from the content and the facts, so a publication that is tried again makes the same one. The
pack's index records how the content is stored.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gleaner.agent.checkpoints.interface import ArchiveBroken, Part, StorageError
from gleaner.agent.system.untrusted import json_of

MANIFEST = "manifest.json"
MANIFEST_MOST_BYTES = 16 * 2**20
_FORMAT = 2
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class ManifestPart:
    """A part as the manifest lists it, with the number of its blocks."""

    part: Part
    blocks: int


def is_plain(name: str) -> bool:
    """Return True if keys and parts can have this name.

    It must not begin with a dot, so that it cannot lead elsewhere, and must not be the name of the manifest.
    """
    return bool(_PLAIN_NAME.fullmatch(name)) and name != MANIFEST


def names_of(key: str) -> tuple[str, ...]:
    """Return the plain names of which a key consists. They lead neither out of the storage nor into its own folders."""
    names = tuple(key.split("/"))
    if not all(is_plain(name) for name in names):
        raise StorageError(f"{key!r} is no key: it must be plain names with slashes between them")
    return names


def manifest_digest(manifest: bytes) -> str:
    """Return the digest by which the queue knows a manifest."""
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def make_manifest(key: str, parts: Sequence[ManifestPart], facts: Mapping[str, object]) -> bytes:
    """Return the manifest as bytes. Raises `StorageError` for facts that are not plain values."""
    entries = [
        {"name": one.part.name, "size_bytes": one.part.size_bytes, "digest": one.part.digest, "blocks": one.blocks}
        for one in parts
    ]
    whole = {"format": _FORMAT, "key": key, "parts": entries, "facts": facts}
    try:
        return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise StorageError(f"{key}: the facts are no plain JSON values: {error}") from error


def parse_manifest(key: str, manifest: bytes) -> tuple[list[ManifestPart], dict[str, object]]:
    """Return the parts, in the index's order, and the facts. Raises `ArchiveBroken`."""
    try:
        whole = cast("dict[str, Any]", json_of(manifest))
        if whole["format"] != _FORMAT:
            raise ArchiveBroken(
                f"{key}: the manifest has format {whole['format']!r}; this version reads {_FORMAT} alone"
            )
        parts = [
            ManifestPart(Part(part["name"], int(part["size_bytes"]), part["digest"]), int(part["blocks"]))
            for part in whole["parts"]
        ]
        return parts, dict(whole["facts"])
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise ArchiveBroken(f"{key}: the manifest cannot be read: {error}") from error
