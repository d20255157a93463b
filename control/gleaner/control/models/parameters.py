"""The parameters of a campaign, the jobs that result from them, and the errors in their use. The module is pure.

`glean submit` uses these functions to find every mistake before it calls control, and control checks again.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from gleaner.agent.common import placeholders
from gleaner.agent.common.allowed_urls import LONGEST_URL
from gleaner.agent.job_spec import OF_TARGET, Flag, JobSpec, Shape, UrlInputSpec
from gleaner.agent.system import keep_patterns

MOST_JOBS = 100_000
MOST_TRIES = 400_000
"""The largest number of values that are formatted to check a campaign, which takes some seconds."""
MOST_BYTES = 64 * 2**20
"""The largest total size of the parameters of all jobs, with their names."""
LONGEST_WORD = 4096
LONGEST_TARGET = LONGEST_URL - 100
OURS = frozenset({"index", *OF_TARGET})
"""The names that no parameter can have."""
_A_NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*", re.ASCII)

Value = Annotated[str, StringConstraints(max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]


class ParameterSpace(Shape):
    """The values in which the jobs of a campaign differ.

    >>> list(ParameterSpace(values={"mass": ("100", "200"), "seed": ("1", "2")}).each())[1]
    {'mass': '100', 'seed': '2'}
    """

    values: Annotated[dict[ParameterName, tuple[Value, ...]], Field(min_length=1, max_length=100)]
    in_rows: Flag = False
    """True if the lists are the columns of a table with a job in each row. Otherwise each combination of values is a
    job."""

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
        job_bytes = sum(len(name) + max(map(len, column)) for name, column in self.values.items())
        if self.count * job_bytes > MOST_BYTES:
            raise _wrong(f"{self.count:,} jobs with up to {job_bytes:,} characters of parameters each are too much")
        return self

    @property
    def count(self) -> int:
        """The number of jobs."""
        sizes = [len(column) for column in self.values.values()]
        return sizes[0] if self.in_rows else math.prod(sizes)

    def each(self) -> Iterator[dict[str, str]]:
        """Yield the values of each job, in order. In a grid, the last parameter changes fastest."""
        columns = self.values.values()
        rows = zip(*columns, strict=True) if self.in_rows else itertools.product(*columns)
        return (dict(zip(self.values, row, strict=True)) for row in rows)


def _wrong(why: str) -> PydanticCustomError:
    return PydanticCustomError("parameters", "{why}", {"why": why})


def misuse(job: JobSpec, columns: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """Return the field whose placeholders are wrong, and the reason, or two empty texts.

    `columns` are the values of each parameter and of the index. The checks are as strict as those of agents, which read
    the specification of each job with its placeholders filled in.
    """
    outputs, texts, field = job.outputs, _Texts(columns), "command"
    try:
        for word in job.command:
            texts.check(word, LONGEST_WORD)
        field = "environment"
        for word in job.environment.values():
            texts.check(word, LONGEST_WORD)
        field = "inputs"
        for one in job.inputs:
            if isinstance(one, UrlInputSpec) and not {"{", "}"}.isdisjoint(one.url):
                raise ValueError(f"{one.name} has a brace in its URL, and all jobs of a campaign have the same inputs")
        field = "outputs"
        for pattern in outputs.keep if outputs else ():
            if why := keep_patterns.fault(texts.check(pattern, keep_patterns.LONGEST, as_path=True)):
                raise ValueError(f"keep: {pattern} {why}")
        if outputs and outputs.to is not None:
            _Texts({**columns, **dict.fromkeys(OF_TARGET, ("1" * 16,))}).check(outputs.to, LONGEST_TARGET, as_path=True)
            if not {name for _, name, _ in placeholders.parts(outputs.to)} & {"index", "job"}:
                raise ValueError(
                    f"the target {outputs.to} needs {{index}} or {{job}}: else jobs would overwrite each other's files"
                )
    except ValueError as error:
        return field, str(error)
    return "", ""


class _Texts:
    """The check of a campaign's texts, which formats each value only once per format."""

    def __init__(self, columns: Mapping[str, Collection[str]]) -> None:
        self._columns = columns
        self._written: dict[tuple[str, str], list[str]] = {}
        self._tries = 0

    def check(self, text: str, most: int, *, as_path: bool = False) -> str:
        """Return the text as one of the jobs might have it. Raises `ValueError` if any of the jobs cannot have it.

        In a path, values must be plain names. The filled path must not contain braces, because it is parsed once more.
        """
        try:
            parts = placeholders.parts(text)
            values = ["" if name is None else self._longest(name, form, as_path=as_path) for _, name, form in parts]
            filled = "".join(literal + value for (literal, *_), value in zip(parts, values, strict=True))
            if as_path and not {"{", "}"}.isdisjoint(filled):
                raise ValueError("has a brace, which no path can have")
        except ValueError as error:
            raise ValueError(f"{text[:60]!r} {error}") from None
        if len(filled) > most:
            raise ValueError(f"{text[:60]!r} has more than {most} characters with the values of a job")
        return filled

    def _longest(self, name: str, form: str, *, as_path: bool) -> str:
        """Return the longest value of a parameter in this format."""
        if name not in self._columns:
            known = ", ".join(sorted(self._columns))
            raise ValueError(
                f"has {{{name}}}, and there is no such parameter: known are {known}; write {{{{ for a brace"
            )
        values = self._columns[name]
        if form and (name, form) not in self._written:
            self._tries += len(values)
            if self._tries > MOST_TRIES:
                raise ValueError(f"has one format too many for {len(values):,} values")
            self._written[name, form] = [placeholders.formatted(value, form) for value in values]
        written = self._written[name, form] if form else values
        if as_path and (wrong := next((value for value in written if not _A_NAME.fullmatch(value)), None)) is not None:
            raise ValueError(f"has {wrong[:60]!r}, a value of {name}, which is no plain name for a file or folder")
        return max(written, key=len)


def of_single(job: JobSpec) -> str:
    """Return the error in the target of a single job, which has no campaign, or "" if there is none."""
    try:
        if job.outputs is not None and job.outputs.to is not None:
            _Texts({"job": ("1" * 16,)}).check(job.outputs.to, LONGEST_TARGET, as_path=True)
    except ValueError as error:
        return str(error)
    return ""
