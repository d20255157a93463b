"""`glean web`: the way to the web page without copying a token."""

import webbrowser
from typing import Annotated

import typer

from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import Failure
from gleaner.control.cli.output import Answer


def web(
    opens: Annotated[
        bool, typer.Option("--open", help="Open the address in this machine's browser instead of printing it.")
    ] = False,
) -> Answer:
    """Print the address of the web page. It signs one browser in as you, once, within a minute."""
    with connect() as control:
        address = control.web_address()
    if not opens:
        return Answer(address)
    if not webbrowser.open(address):
        raise Failure("no browser could be started here: leave out --open, and open the address where you sit")
    return Answer(None)
