"""Rounds that do the same for many things: one that fails by a bug keeps none of the others waiting."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from gleaner.control.queue.errors import QueueError

Thing = TypeVar("Thing")


def one_by_one(things: Iterable[Thing], do: Callable[[Thing], object]) -> None:
    """Do this for each of the things. What fails by a bug is raised when all others are done.

    Raises `QueueError` at once, since a database that does not answer answers none of them.
    """
    failed: list[Exception] = []
    for one in things:
        try:
            do(one)
        except QueueError:
            raise
        except Exception as error:
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} could not be done", failed)
