"""Options of a verb as dataclasses: each field of such a parameter is one option of the command line."""

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, cast, get_type_hints

from gleaner.control.cli.output import Answer


def with_option_groups(verb: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return the verb for Typer, which knows no dataclasses. The options stand in the order of the parameters.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Machine:
    ...     nodes: int = 1
    >>> def verb(trace: str, *, machine: Machine) -> Answer:
    ...     return Answer((trace, machine.nodes))
    >>> list(inspect.signature(with_option_groups(verb)).parameters)
    ['trace', 'nodes']
    >>> with_option_groups(verb)(trace="a", nodes=2).value
    ('a', 2)
    """
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter)
            continue
        groups[parameter.name] = cast("type[Any]", kind)
        hints = get_type_hints(kind, include_extras=True)
        parameters += [
            parameter.replace(name=field.name, annotation=hints[field.name], default=field.default)
            for field in fields(kind)
        ]

    @wraps(verb)
    def expanded(**given: Any) -> Answer:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return verb(**given)

    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return expanded
