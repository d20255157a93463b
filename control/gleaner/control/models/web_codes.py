"""Codes that sign a browser in to the web page."""

from gleaner.control.models.base import Reply


class WebCode(Reply):
    """A code that can be used once, within a minute."""

    code: str
    expires_s: float
