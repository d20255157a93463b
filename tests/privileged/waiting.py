"""A wait for what another process or the kernel does, with a limit."""

import time
from collections.abc import Callable


def wait_until(is_so: Callable[[], bool], what: str, *, limit_s: float = 60) -> None:
    """Return when `is_so` is true. Fail after `limit_s`, and name what has not happened."""
    until_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < until_s, f"not within {limit_s} s: {what}"
        time.sleep(0.01)
