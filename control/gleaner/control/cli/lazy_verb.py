"""Verbs whose modules are imported only when they are used, because importing all of them takes longer than running
most verbs."""

from functools import cached_property
from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand


class LazyVerb(TyperCommand):
    """The name and the summary of a verb, which are enough for `glean --help` and for completion in a shell.

    `place` is `module:function`, or `module:app` for a verb with subcommands. (Typer does not export its types.)
    """

    def __init__(self, name: str, line: str, place: str, **context_settings: Any) -> None:
        super().__init__(name, help=line)
        self._place = place
        self._context_settings = context_settings

    @cached_property
    def whole(self) -> Any:
        """Import the verb's module, and return the command with its options and its whole help."""
        module, _, name = self._place.partition(":")
        verb = getattr(import_module(f"gleaner.control.cli.{module}"), name)
        app = typer.Typer(rich_markup_mode=None)
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=self.name)
        else:
            app.command(self.name, context_settings=self._context_settings)(verb)
        return typer.main.get_group(app).commands[str(self.name)]

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the arguments as the whole command does. The context then belongs to that command."""
        return self.whole.make_context(info_name, args, parent, **extra)
