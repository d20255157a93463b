"""The part of a job's folder that is kept."""

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from gleaner.agent.system import keep_patterns
from gleaner.control.models.base import Shape


def _a_pattern(pattern: str) -> str:
    if why := keep_patterns.fault(pattern):
        raise PydanticCustomError("pattern", "{why}", {"why": why})
    return pattern


class OutputSpec(Shape):
    """The part of a job's folder that is kept as its result."""

    keep: Annotated[
        tuple[Annotated[str, AfterValidator(_a_pattern)], ...], Field(min_length=1, max_length=keep_patterns.MOST)
    ]
    """Patterns like `*.root` or `hist/**`, in which `{index}` becomes the job's index."""
