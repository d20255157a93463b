"""The common parts of the API's models: base classes, names and numbers, and the body of an error.

Times are in seconds since the epoch, durations in seconds, and memory in MiB. Agents have their own models in
`agent.messages`.
"""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """The base class of control's answers. A `glean` of another version ignores unknown fields."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


R = TypeVar("R", bound=Reply)


def replaced(value: R, **fields: object) -> R:
    """Return a copy of the value with new values in these fields. They are not validated."""
    return value.model_copy(update=fields)


class Problem(Reply):
    """The body of every error response: one line with the fault and the remedy."""

    detail: str
