"""The order in which files are synced and renamed: what a power cut would find."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Call = tuple[str, Path]


@dataclass
class Calls:
    """Each call with the path that it was for: of a rename the new one, of a sync the one the file had then."""

    all: list[Call] = field(default_factory=list[Call])

    def index(self, call: Call) -> int:
        return self.all.index(call)

    def last(self, call: Call) -> int:
        return len(self.all) - 1 - self.all[::-1].index(call)


def _path(name: str | os.PathLike[str], folder: int | None) -> Path:
    where = Path() if folder is None else Path(f"/proc/self/fd/{folder}").readlink()
    return where / name


@contextmanager
def recording() -> Iterator[Calls]:
    """Record the calls of this process; all of them are still made."""
    calls = Calls()
    with pytest.MonkeyPatch.context() as patched:

        def synced(name: str) -> Callable[[int], None]:
            real: Callable[[int], None] = getattr(os, name)

            def call(file: int) -> None:
                real(file)
                calls.all.append(("fsync", Path(f"/proc/self/fd/{file}").readlink()))

            return call

        def renamed(name: str) -> Callable[..., None]:
            real: Callable[..., None] = getattr(os, name)

            def call(old: Any, new: Any, **more: Any) -> None:
                real(old, new, **more)
                calls.all.append(("rename", _path(new, more.get("dst_dir_fd"))))

            return call

        def removed(old: Any, **more: Any) -> None:
            unlink(old, **more)
            calls.all.append(("unlink", _path(old, more.get("dir_fd"))))

        unlink = os.unlink
        patched.setattr(os, "fsync", synced("fsync"))
        for name in ("rename", "replace"):
            patched.setattr(os, name, renamed(name))
        patched.setattr(os, "unlink", removed)
        yield calls
