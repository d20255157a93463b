"""The client with which every verb asks control."""

from gleaner.client import Client
from gleaner.control.cli import render


def connect() -> Client:
    """Return a connection to control as the settings name it, with the user's proof."""
    return Client(notice=render.remark)
