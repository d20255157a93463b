"""Codes that sign a browser in to the web page."""

from gleaner.control.models.base import Reply


class WebCode(Reply):
    """A code that is good once, for a minute."""

    code: str
    expires_s: float
