"""The common parts of all models of the API: the base classes, names and numbers, and the body of an error.

Times are seconds since the epoch, durations seconds, memory MiB. Agents have models of their own, `agent.messages`.
"""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class Reply(BaseModel):
    """A value that control answers with: a `glean` of another version passes over fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


R = TypeVar("R", bound=Reply)


def replaced(value: R, **fields: object) -> R:
    """Return the value with other values in these fields. They are not validated."""
    return value.model_copy(update=fields)


class Problem(Reply):
    """Every error's body: one line that says what is wrong and what to do."""

    detail: str
