"""`glean token`: tokens for users and admins (an agent's is made by control itself)."""

import os
import time
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from gleaner.control.api.shapes import TokenRequest
from gleaner.control.cli.answer import Answer
from gleaner.control.cli.client import connect
from gleaner.control.cli.config import load_settings
from gleaner.control.cli.failures import BadInput, Failure
from gleaner.control.cli.server import server_parts
from gleaner.control.cli.wording import complaint

app = typer.Typer(no_args_is_help=True, help="Make tokens.")


class Role(StrEnum):
    """Who a token is for."""

    USER = "user"
    ADMIN = "admin"


@app.command()
def create(
    role: Annotated[Role, typer.Option(help="What its owner may do.")],
    name: Annotated[str, typer.Option(help="Whose it is.")],
    group: Annotated[str | None, typer.Option(help="The group whose jobs a user may see and change.")] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="A new file, mode 0600; else printed.")] = None,
    local: Annotated[
        bool, typer.Option("--local", help="Write to the database itself: for the first admin, as the service account.")
    ] = False,
) -> Answer:
    """Make a token. It is shown once; only its hash is kept."""
    if role is Role.USER and group is None:
        raise BadInput("a user's token needs --group: the group whose jobs it is for")
    try:
        request = TokenRequest(role=role, name=name, group=group)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(complaint(f"--{first['loc'][0]}", first)) from None
    if to is None:
        return Answer(_issue(request, local=local))
    return Answer(_write(to, request, local=local))


def _issue(request: TokenRequest, *, local: bool) -> str:
    if local:
        return _issue_locally(request)
    with connect() as control:
        return control.issue_token(request).token


def _issue_locally(request: TokenRequest) -> str:
    url = load_settings().queue.url
    with server_parts():
        from gleaner.control.queue.engine import check_schema, transaction
        from gleaner.control.queue.engine import connect as open_queue
        from gleaner.control.queue.tokens import issue

        engine = open_queue(url)
        check_schema(engine)
        with transaction(engine) as db:
            return issue(db, role=request.role, name=request.name, group=request.group, now_s=time.time())


def _write(path: Path, request: TokenRequest, *, local: bool) -> str:
    """Make the file first, so that no token is issued that nobody has."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BadInput(f"{path} is there already; a token is never overwritten") from None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(_issue(request, local=local) + "\n")
    except BaseException as error:
        with suppress(OSError):
            path.unlink()
        if isinstance(error, OSError):
            raise Failure(f"{path}: {error.strerror}") from error
        raise
    return f"written to {path}"
