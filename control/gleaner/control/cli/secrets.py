"""`glean secret`, which manages a group's credentials for servers. A value is never an argument and is never shown."""

import getpass
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gleaner.agent.common.allowed_urls import location
from gleaner.agent.transfer import credentials
from gleaner.client import ClientError, ErrorKind
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import moment
from gleaner.control.input_errors import one_line
from gleaner.control.models.secrets import SecretRow
from gleaner.control.simulation.metrics.tables import Table

app = typer.Typer(no_args_is_help=True, help="Keep your group's credentials for servers.")

Named = Annotated[str, typer.Argument(metavar="NAME", help="Your group's name for the secret.")]
Group = Annotated[str | None, typer.Option(help="For admins: the group to which the secret belongs.")]


@app.command("set")
def set_secret(
    name: Named,
    url: Annotated[
        str,
        typer.Option(
            "--for", metavar="URL", help="Use the secret for all URLs below this: s3://, https:// or roots://."
        ),
    ],
    from_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Read the value from a file, or from stdin with -.", show_default="ask for it"
        ),
    ] = None,
    group: Group = None,
    as_json: AsJson = False,
) -> Answer:
    """Store a secret for the jobs of your group. It replaces an older one with the same name."""
    if why := credentials.url_fault(url):
        raise BadInput(f"--for: {one_line(why)}")
    value = _value(from_file, credentials.EXPECTED[location(url).scheme])
    with connect() as control:
        try:
            return _answer(control.set_secret(name, url=url, value=value, group=group), as_json=as_json)
        except ClientError as error:
            words = {"name": "NAME", "url": "--for", "value": "the value"}
            if error.kind is not ErrorKind.INVALID or error.status or error.option not in words:
                raise
            raise BadInput(words[error.option] + str(error).removeprefix(error.option)) from None


@app.command("list")
def list_secrets(group: Group = None, as_json: AsJson = False) -> Answer:
    """List your group's secrets. Their values are never shown."""
    with connect() as control:
        found = control.secrets(group=group)
    return Answer(found if as_json else (_table(found),), as_json)


@app.command()
def rm(name: Named, group: Group = None, as_json: AsJson = False) -> Answer:
    """Delete a secret. Jobs that need it then wait, or are held."""
    with connect() as control:
        return _answer(control.remove_secret(name, group=group), as_json=as_json)


def _value(from_file: str | None, expected: str) -> str:
    """Return the value from the file, from stdin, or from the terminal, where it is not shown."""
    if from_file is None:
        if not sys.stdin.isatty():
            raise BadInput("the value cannot be asked for without a terminal: give --from-file FILE, or --from-file -")
        return getpass.getpass(f"{expected}: ", stream=sys.stderr).strip()
    most = credentials.LONGEST + 2  # one byte more than allowed, and the line's end
    try:
        if from_file == "-":
            return sys.stdin.read(most).rstrip("\r\n")
        with Path(from_file).open(encoding="utf-8") as file:
            return file.read(most).rstrip("\r\n")
    except OSError as error:
        raise BadInput(f"{from_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{from_file} does not contain one line of plain text") from None


def _answer(row: SecretRow, *, as_json: bool) -> Answer:
    return Answer(row if as_json else (_table((row,)),), as_json)


def _table(rows: Sequence[SecretRow]) -> Table:
    return Table.of(
        rows,
        {
            "SECRET": "name", "GROUP": "group", "KIND": "kind", "FOR": "url",
            "SET": lambda row: moment(row.set_s), "BY": "setter",
        },
    )  # fmt: skip
