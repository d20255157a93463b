"""The client that every verb uses to reach control."""

from gleaner.client import Client
from gleaner.control.cli import render


def connect() -> Client:
    """Return a connection to control according to the settings, with the user's proof of identity."""
    return Client(notice=render.remark)
