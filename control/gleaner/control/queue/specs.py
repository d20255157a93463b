"""What to run: stored once for a campaign, filled in for each of its jobs when it is read."""

from collections.abc import Mapping, Sequence
from typing import Any

from gleaner.agent.protocol import SelfSave

_INDEX = "{index}"


def self_save(stored: Mapping[str, Any] | None) -> SelfSave | None:
    """How the workload saves itself, as it is stored."""
    return None if stored is None else SelfSave.model_validate(stored)


def filled_in(
    command: Sequence[str], environment: Mapping[str, str], index: int | None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Command and environment with the run's index in place of `{index}`; unchanged for a job without one.

    >>> filled_in(["run", "--seed={index}"], {"RUN": "r{index}"}, 7)
    (('run', '--seed=7'), {'RUN': 'r7'})
    """
    if index is None:
        return tuple(command), dict(environment)
    written = str(index)
    return (
        tuple(word.replace(_INDEX, written) for word in command),
        {name: value.replace(_INDEX, written) for name, value in environment.items()},
    )
