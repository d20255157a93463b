"""Files with a campaign's parameters, as a table in CSV, objects in JSON lines, or plain lines. Each row is a job.

The files are on the submitter's machine. `glean submit` reads them there, and the web page receives their text. Values
stay as they are written.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gleaner.control.campaigns.given import Given
from gleaner.control.input_errors import InputError, at_line, read_text
from gleaner.control.models.parameters import MOST_JOBS

MOST_BYTES = 6 * 1024 * 1024
LINE = "line"
"""The name of the parameter that takes its values from a file with plain lines."""
_Row = Sequence[tuple[str, str]]
Reader = Callable[[str, str], tuple[str, str]]
"""A function that returns the name and the text of a file, given its path and the place that names it. It raises
`InputError`."""


@dataclass(frozen=True, slots=True)
class RowsFile:
    """A file in which each row is a job."""

    path: str
    """The file's path, relative to the campaign file's folder."""
    is_lines: bool


def read_rows(given: Mapping[str, Given], read: Reader) -> dict[str, Given]:
    """Return the keys of a campaign file, with rows in place of the files that contain them. Raises `InputError`."""
    rest = dict(given)
    files = {
        key: rest.pop(key) for key in ("parameters", "lines") if key in given and isinstance(given[key].value, RowsFile)
    }
    if "lines" in files and "parameters" in given:
        raise InputError(f"{files['lines'].where}: lines and parameters are both there; give one of them")
    for each in files.values():
        rest["parameters"] = Given(_columns(cast("RowsFile", each.value), each.where, read), each.where)
    return rest


def in_folder(folder: Path) -> Reader:
    """Return a reader of files whose paths are relative to the folder."""

    def read(named: str, where: str) -> tuple[str, str]:
        path = folder / Path(named).expanduser()
        try:
            if path.stat().st_size > MOST_BYTES:
                raise InputError(f"{path} is larger than {MOST_BYTES // 2**20} MiB")
        except OSError as error:
            raise InputError(f"{where}: {path}: {error.strerror}") from None
        return str(path), read_text(path, missing="no such file", unreadable="").removeprefix("\ufeff")

    return read


def _columns(file: RowsFile, where: str, read: Reader) -> dict[str, object]:
    path, text = read(file.path, where)
    rows_of = _lines if file.is_lines else _json_rows if path.endswith((".jsonl", ".ndjson")) else _csv_rows
    columns: dict[str, list[str]] = {}
    for count, (line, row) in enumerate(rows_of(text, path), start=1):
        place = at_line(path, line)
        if count == 1:
            columns = {name: [] for name, _ in row}
        _check_row(row, columns, place)
        if count > MOST_JOBS:
            raise InputError(f"{place}: more than {MOST_JOBS:,} rows, and a campaign has at most so many jobs")
        for name, value in row:
            columns[name].append(value)
    if not columns:
        raise InputError(f"{path} has no row, and so no job")
    return {"values": columns, "in_rows": True}


def _check_row(row: _Row, columns: Mapping[str, object], place: str) -> None:
    names = [name for name, _ in row]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"{place}: {name} is there twice")
        if name not in columns:
            raise InputError(f"{place}: {name} is not in the first row, which names {', '.join(columns)}")
    if missing := [name for name in columns if name not in names]:
        raise InputError(f"{place}: {missing[0]} is missing")
    for name, value in row:
        if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
            raise InputError(f"{place}: {name} has a line end or another control character in its value")


def _lines(text: str, _name: str) -> Iterator[tuple[int, _Row]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, [(LINE, line.removesuffix("\r"))]


def _csv_rows(text: str, name: str) -> Iterator[tuple[int, _Row]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    header: list[str] | None = None
    try:
        for row in filter(None, reader):
            if header is None:
                header = [cell.strip() for cell in row]
                continue
            if len(row) != len(header):
                where = at_line(name, reader.line_num)
                raise InputError(f"{where}: {len(row)} values, and the first line names {len(header)} columns")
            yield reader.line_num, list(zip(header, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{at_line(name, reader.line_num)}: not valid CSV: {error}") from None


def _json_rows(text: str, name: str) -> Iterator[tuple[int, _Row]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = at_line(name, number)
        try:
            row: Any = json.loads(line, parse_int=str, parse_float=str, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not valid JSON: {error}") from None
        if not isinstance(row, _Pairs):
            raise InputError(f"{where}: must be an object with a value for each parameter")
        yield number, [(key, _text(value, f"{where}: {key}")) for key, value in cast("list[tuple[str, Any]]", row)]


class _Pairs(list[Any]):
    """The keys and values of a JSON object in the order in which they are written, including repeated keys."""


def _text(value: object, what: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise InputError(f"{what} must be a number, a text, true or false")
    return value
