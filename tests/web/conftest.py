"""The real app with a real queue, for each test; see `tests.api.conftest`."""

from tests.api.conftest import harness

__all__ = ["harness"]
