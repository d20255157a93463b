"""The number of examples and cases of a test: all of them in `make test-all`, fewer in `make test`."""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

IS_WHOLE = os.environ.get("GLEANER_TESTS") == "all"
LEAST = 10


def examples(whole: int) -> int:
    """Return the number of examples for this run, of a test that draws `whole` of them in `make test-all`."""
    return whole if IS_WHOLE else max(min(whole, LEAST), whole // 4)


def a_few(cases: Iterable[Any], first: int) -> list[ParameterSet]:
    """Return the cases of a test as parameters. Those after the `first` ones are a part of `make test-all` alone."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.extended] if number >= first else []
        )
        for number, case in enumerate(cases)
    ]
