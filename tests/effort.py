"""The number of examples that a test draws: all of them in `make test-all`, a quarter in `make test`."""

import os

IS_WHOLE = os.environ.get("GLEANER_TESTS") == "all"
LEAST = 10


def examples(whole: int) -> int:
    """Return the number of examples for this run, of a test that draws `whole` of them in `make test-all`."""
    return whole if IS_WHOLE else max(min(whole, LEAST), whole // 4)
