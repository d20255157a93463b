"""The parameters of a campaign, the jobs that follow from them, and the errors in their use. Pure.

`glean submit` finds every mistake by these functions before it asks control, and control checks again.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.common import placeholders
from gleaner.agent.job_spec import OF_TARGET, Flag, JobSpec, Shape

MOST_JOBS = 100_000
MOST_FORMATS = 32
"""The most different placeholders with a format, since each is tried with every value."""
LONGEST_WORD = 4096
OURS = frozenset({"index", *OF_TARGET})
"""The names that no parameter can have."""
_IN_TARGET = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*", re.ASCII)

Value = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class ParameterSpace(Shape):
    """The values in which the jobs of a campaign differ.

    >>> list(ParameterSpace(values={"mass": ("100", "200"), "seed": ("1", "2")}).each())[1]
    {'mass': '100', 'seed': '2'}
    """

    values: Annotated[dict[ParameterName, tuple[Value, ...]], Field(min_length=1, max_length=100)]
    in_rows: Flag = False
    """True if the lists are the columns of a table with a job in each row. Otherwise each combination is a job."""

    @model_validator(mode="after")
    def _some_jobs(self) -> "ParameterSpace":
        sizes = [len(column) for column in self.values.values()]
        if ours := OURS & self.values.keys():
            raise _wrong(f"{min(ours)} is no name for a parameter: {{{min(ours)}}} has a meaning of its own")
        if self.in_rows and len(set(sizes)) > 1:
            raise _wrong("the columns differ in length")
        if not self.count:
            raise _wrong("there is no value, and so no job")
        if self.count > MOST_JOBS:
            shown = "" if self.in_rows else " × ".join(f"{size:,}" for size in sizes) + " = "
            raise _wrong(f"{shown}{self.count:,} jobs, and a campaign has at most {MOST_JOBS:,}")
        return self

    @property
    def count(self) -> int:
        """The number of jobs."""
        sizes = [len(column) for column in self.values.values()]
        return sizes[0] if self.in_rows else math.prod(sizes)

    def each(self) -> Iterator[dict[str, str]]:
        """Yield the values of each job, in order; in a grid the last parameter changes first."""
        columns = self.values.values()
        rows = zip(*columns, strict=True) if self.in_rows else itertools.product(*columns)
        return (dict(zip(self.values, row, strict=True)) for row in rows)


def _wrong(why: str) -> PydanticCustomError:
    return PydanticCustomError("parameters", "{why}", {"why": why})


def misuse(job: JobSpec, columns: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """Return the field whose placeholders are wrong, and the reason, or two empty texts.

    `columns` are the values of each parameter, with those of the index.
    """
    outputs = job.outputs
    texts = [("command", word) for word in job.command]
    texts += [("environment", value) for value in job.environment.values()]
    texts += [("outputs", pattern) for pattern in (outputs.keep if outputs else ())]
    tried: dict[tuple[str, str], int] = {}
    for field, text in texts:
        try:
            _check(text, columns, tried)
        except ValueError as error:
            return field, str(error)
    try:
        if outputs and outputs.to is not None:
            _check_target(outputs.to, columns, tried)
    except ValueError as error:
        return "outputs", str(error)
    return "", ""


def _check(text: str, columns: Mapping[str, Collection[str]], tried: dict[tuple[str, str], int]) -> None:
    """Raise `ValueError` for a wrong placeholder or a text that becomes too long. `tried` has the longest values."""
    if "{" not in text and "}" not in text:
        return
    try:
        length = 0
        for literal, name, form in placeholders.parts(text):
            length += len(literal) + (0 if name is None else _longest(name, form, columns, tried))
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} {error}") from None
    if length > LONGEST_WORD:
        raise ValueError(f"{text[:60]!r} has more than {LONGEST_WORD} characters with the values of a job")


def _longest(name: str, form: str, columns: Mapping[str, Collection[str]], tried: dict[tuple[str, str], int]) -> int:
    """Return the length of the longest value of a parameter in this format."""
    if name not in columns:
        known = ", ".join(sorted(columns))
        raise ValueError(f"has {{{name}}}, and there is no such parameter: known are {known}; write {{{{ for a brace")
    if (name, form) not in tried:
        if len(tried) >= MOST_FORMATS:
            raise ValueError(f"is one too many: a job has at most {MOST_FORMATS} different placeholders")
        values = columns[name]
        tried[name, form] = max(len(placeholders.formatted(value, form)) for value in values)
    return tried[name, form]


def _check_target(url: str, columns: Mapping[str, Collection[str]], tried: dict[tuple[str, str], int]) -> None:
    _check(url, {**columns, **dict.fromkeys(OF_TARGET, ("1" * 16,))}, tried)
    names = {name for _, name, _ in placeholders.parts(url) if name is not None}
    if not names & {"index", "job"}:
        raise ValueError(f"the target {url} needs {{index}} or {{job}}: else jobs would overwrite each other's files")
    for name in names & columns.keys():
        for value in columns[name]:
            if not _IN_TARGET.fullmatch(value):
                raise ValueError(f"{value[:60]!r}, a value of {name}, is no name for a folder of a target")


def of_single(job: JobSpec) -> str:
    """Return the error in the target of a single job, which has no campaign, or "" if there is none."""
    target = job.outputs.to if job.outputs else None
    names: Sequence[str | None] = [] if target is None else [name for _, name, _ in placeholders.parts(target)]
    wrong = next((name for name in names if name not in {None, "job"}), None)
    return f"the target {target} has {{{wrong}}}, and this is a single job: write {{job}}" if wrong else ""
