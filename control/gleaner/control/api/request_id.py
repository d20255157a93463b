"""The id of the present request."""

from structlog.contextvars import get_contextvars

KEY = "request"
"""The id's name in a line of the log."""


def current() -> str:
    """Return the id of the present request, or "" outside of a request."""
    return str(get_contextvars().get(KEY, ""))
