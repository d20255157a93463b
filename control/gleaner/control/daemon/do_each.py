"""Rounds that do the same for many things: a thing that fails keeps none of the others waiting."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from gleaner.control.queue.errors import QueueBusy, SchemaMismatch

Thing = TypeVar("Thing")


def do_each(things: Iterable[Thing], do: Callable[[Thing], object]) -> None:
    """Do this for each of the things. What fails for one thing alone is raised when all others are done.

    Raises `QueueBusy` (and so `NotLeading`) and `SchemaMismatch` at once: they would be raised for each of the others.
    """
    errors: list[Exception] = []
    for one in things:
        try:
            do(one)
        except (QueueBusy, SchemaMismatch):
            raise
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} could not be done", errors)
