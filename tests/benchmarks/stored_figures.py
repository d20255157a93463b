"""The part that all benchmarks share: a figure is printed and kept as soon as it is measured; a failure is one line."""

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any


class StoredFigures:
    """The file of a benchmark's figures. It is written anew with each of them, so that what fails later costs none."""

    def __init__(self, path: Path, **facts: object) -> None:
        self.path = path
        self.facts: dict[str, Any] = dict(facts)

    def note(self, **facts: object) -> None:
        """Keep these beside what is kept already."""
        self.facts |= facts
        self._write()

    def add(self, table: str, row: object) -> None:
        """Keep one more row of a table."""
        plain = asdict(row) if is_dataclass(row) and not isinstance(row, type) else row
        self.facts.setdefault(table, []).append(plain)
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(self.facts, indent=1) + "\n")
        draft.replace(self.path)


def failure(error: BaseException) -> str:
    """Return the error and where it was raised, in one line."""
    said = " ".join(str(error).split()) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename]
    where = f" ({Path(ours[-1].filename).name}, line {ours[-1].lineno})" if ours else ""
    kind = "" if isinstance(error, SystemExit | RuntimeError) else f"{type(error).__name__}: "
    return f"{kind}{said[:600]}{where}"


def ended(measure: Callable[[], object], command: str, kept_in: Path) -> int:
    """Run a benchmark; its exit status. Whatever goes wrong is one line, and what was measured before is kept."""
    try:
        measure()
    except KeyboardInterrupt:
        print(f"\n{command}: interrupted{_kept(kept_in)}", file=sys.stderr)
        return 130
    except SystemExit as error:
        if isinstance(error.code, int | None):
            return error.code or 0
        print(f"{command}: {failure(error)}{_kept(kept_in)}", file=sys.stderr)
        return 1
    except Exception as error:
        print(f"{command}: {failure(error)}{_kept(kept_in)}", file=sys.stderr)
        return 1
    return 0


def _kept(path: Path) -> str:
    return f"; what was measured is in {path}" if path.exists() else ""
