"""The id of the request that is being answered."""

from structlog.contextvars import get_contextvars

KEY = "request"
"""The id's name in a line of the log."""


def current() -> str:
    """Return the id of the request that is being answered; "" outside of one."""
    return str(get_contextvars().get(KEY, ""))
