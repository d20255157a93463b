"""`glean token`, which manages the tokens of users, admins and readers of the metrics. Control itself makes the tokens
of agents."""

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from gleaner.client.errors import checked
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput, CliError
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import moment
from gleaner.control.effective_settings import load_settings
from gleaner.control.models.tokens import TokenRequest, TokenRow
from gleaner.control.simulation.metrics.tables import Table

app = typer.Typer(no_args_is_help=True, help="Make, list, end and replace tokens.")

LONGEST_SECRET = 256

To = Annotated[Path | None, typer.Option(metavar="FILE", help="Write it to this new file (mode 0600), not to stdout.")]


@app.command()
def create(
    role: Annotated[Literal["user", "admin", "metrics"], typer.Option(help="What the token's holder can do.")],
    name: Annotated[str, typer.Option(help="The name of the token's holder.")],
    group: Annotated[str | None, typer.Option(help="The group whose jobs the user can see.")] = None,
    *,
    manager: Annotated[
        bool, typer.Option("--manager", help="Let the user change all jobs of the group, not only their own.")
    ] = False,
    days: Annotated[int | None, typer.Option(metavar="N", help="The token ends after this many days.")] = None,
    to: To = None,
    local: Annotated[
        bool, typer.Option("--local", help="Write to the database itself: for the first admin, as the service account.")
    ] = False,
) -> Answer:
    """Make a token. It is shown once, because only its hash is stored."""
    if role == "user" and group is None:
        raise BadInput("a user's token needs --group: the group whose jobs it is for")
    if manager and role != "user":
        raise BadInput("--manager needs --role user, because a manager is a user of the group")
    request = checked(TokenRequest, role=role, name=name, group=group, manager=manager, days=days)
    return Answer(_issue(request, local=local) if to is None else _write(to, lambda: _issue(request, local=local)))


@app.command("list")
def list_tokens(
    everything: Annotated[bool, typer.Option("--all", help="Include tokens that have ended.")] = False,
    as_json: AsJson = False,
) -> Answer:
    """List tokens and signed-in browsers. Users see only their own."""
    with connect() as control:
        found = control.tokens(everything=everything)
    return Answer(found if as_json else (_table(found),), as_json)


@app.command()
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="TOKEN...", help="Tokens, as `glean token list` shows them.")],
    as_json: AsJson = False,
) -> Answer:
    """End tokens, or sign browsers out, within seconds."""
    wanted = [_id(each) for each in ids]
    with connect() as control:
        ended = tuple(control.revoke_token(each) for each in wanted)
    return Answer(ended if as_json else (_table(ended),), as_json)


@app.command()
def rotate(
    id_: Annotated[
        str,
        typer.Argument(
            metavar="[TOKEN]", help="A token, as `glean token list` shows it.", show_default="the one in use"
        ),
    ] = "own",
    to: To = None,
) -> Answer:
    """Replace a token with a new one, and end the old one. The new one is shown only once."""
    wanted = _id(id_)

    def made() -> str:
        with connect() as control:
            return control.rotate_token(wanted).token

    return Answer(made() if to is None else _write(to, made))


def _id(text: str) -> str:
    if text != "own" and not re.fullmatch("[0-9a-f]{12}", text):
        raise BadInput(f"{text!r} is not a token's id, which has 12 digits and letters a to f; see `glean token list`")
    return text


def _table(rows: Sequence[TokenRow]) -> Table:
    return Table.of(
        rows,
        {
            "TOKEN": "id", "SESSION OF": "session_of", "ROLE": lambda row: "manager" if row.manager else row.role,
            "NAME": "name", "GROUP": "group", "ISSUED": lambda row: moment(row.issued_s),
            "EXPIRES": lambda row: moment(row.expires_s), "REVOKED": lambda row: moment(row.revoked_s),
        },
    )  # fmt: skip


def _issue(request: TokenRequest, *, local: bool) -> str:
    if local:
        return _issue_locally(request)
    with connect() as control:
        return control.issue_token(**request.model_dump()).token


def _issue_locally(request: TokenRequest) -> str:
    url = load_settings().queue.url
    from gleaner.control.queue.database import check_schema, transaction
    from gleaner.control.queue.database import connect as open_queue
    from gleaner.control.queue.tokens import make

    engine = open_queue(url)
    check_schema(engine)
    with transaction(engine) as db:
        return make(db, **request.model_dump(), now_s=time.time()).token


def _write(path: Path, issued: Callable[[], str]) -> str:
    """Write a token to a new file. The file is created, with room for the token, before a token is issued.

    Otherwise a full disk could lose a new token after the old one has already been revoked.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BadInput(f"{path} already exists; a token is never overwritten") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(" " * LONGEST_SECRET)
            file.flush()
            os.fsync(descriptor)
            secret = issued()
            file.seek(0)
            file.write(secret + "\n")
            file.truncate()
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise CliError(f"{path}: {error.strerror}") from error
        raise
    return f"written to {path}"
