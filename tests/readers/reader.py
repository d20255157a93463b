"""The form of a reader of bytes from outside, for the tables of all of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reader:
    """A function of bytes, and of a folder of its own.

    `good` are examples that it reads without an error, `bad` are some on which it once failed.
    """

    name: str
    read: Callable[[bytes, Path], object]
    own: tuple[type[BaseException], ...]
    good: tuple[bytes, ...] = ()
    bad: tuple[bytes, ...] = ()


def at(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()
