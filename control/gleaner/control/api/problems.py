"""The only module that turns errors into answers, each of one line and without a stack trace.

Every error in a route becomes a `Problem` with a suitable status. An unexpected error is our bug. Its trace is logged,
and the caller receives one line.
"""

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, cast

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from structlog.contextvars import get_contextvars

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.system.untrusted import storable
from gleaner.control.input_errors import InputError
from gleaner.control.models.base import Problem
from gleaner.control.queue.errors import (
    Conflict,
    Invalid,
    KeyFault,
    NotFound,
    NotYours,
    QueueBusy,
    QueueError,
    SchemaMismatch,
)

LONGEST_LINE = 600
REQUEST = "request"
"""The key of a request's id in a line of the log."""
EVERY_ERROR = (HTTPException, RequestValidationError, QueueError, SQLAlchemyError, StorageError, Exception)
"""The framework looks first for the handler of an error's own class, and then for those of its base classes."""
_STATUS: Mapping[type[Exception], int] = {
    NotFound: 404, NotYours: 403, Conflict: 409, Invalid: 422, InputError: 422, StorageError: 502
}  # fmt: skip
"""The status for errors whose message is for the caller. A class is listed before its base class."""
_LATER = {"Retry-After": "5"}

Documented = dict[int | str, dict[str, Any]]

_MEANINGS = {
    401: "No token, or one that control does not know",
    403: "The token does not allow this",
    404: "There is no such thing",
    409: "Refused: the job is not in a state that allows it, or the attempt is not the current one",
    413: "The body is larger than control takes",
    422: "The input is wrong; the line names the field",
    502: "The storage folder does not give what the queue names",
    503: "Control cannot do it now: the database is busy or away, or another control program leads. Ask again later",
}

_log = structlog.get_logger(__name__)


def request_id() -> str:
    """Return the id of the current request, or "" outside of a request."""
    return str(get_contextvars().get(REQUEST, ""))


def documented(*statuses: int) -> Documented:
    """Return the possible answers of one route for the OpenAPI document, including those of every route."""
    return {
        status: {"model": Problem, "description": _MEANINGS[status]} for status in sorted({401, 403, 503, *statuses})
    }


def answer(status: int, detail: str, *, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a `Problem` of one line with a limited length, whatever `detail` contains."""
    line = " ".join(detail.split())
    if len(line) > LONGEST_LINE:
        line = line[: LONGEST_LINE - 1] + "…"
    return JSONResponse(Problem(detail=storable(line)).model_dump(), status_code=status, headers=dict(headers or {}))


def answer_to(error: Exception) -> JSONResponse:
    """Return the answer to any error that reaches the edge of the API."""
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return answer(status, str(error))
    match error:
        case HTTPException():
            # FastAPI answers 400 for some rare bodies that are not JSON, which is also invalid input
            status = 422 if error.status_code == 400 else error.status_code
            return answer(status, str(error.detail), headers=error.headers)
        case RequestValidationError():
            return answer(422, describe(error.errors()))
        case QueueBusy() | SchemaMismatch() | KeyFault():
            return answer(503, str(error), headers=_LATER)
        case QueueError() | SQLAlchemyError():
            _log.error("the queue failed", trace=_trace(error))
            return answer(503, "the queue's database failed; control's log shows how", headers=_LATER)
        case RuntimeError() if isinstance(error.__cause__, StorageError):  # in a stream, which then ends early
            _log.error("an answer broke off", why=str(error.__cause__))
            return answer(502, str(error.__cause__))
        case _:
            _log.error("unexpected", trace=_trace(error))
            where = f" (request {number})" if (number := request_id()) else ""
            return answer(500, f"something is wrong in control itself; its log shows what{where}")


def _trace(error: Exception) -> str:
    # Return text, since a renderer of exceptions might show local variables, which can include a token.
    return "".join(traceback.format_exception(error))


def describe(errors: Sequence[Any]) -> str:
    """Return one line that names the first invalid field of the input and its error.

    >>> describe([{"loc": ("body", "job", "cpus"), "msg": "Input should be greater than 0", "type": "greater_than"}])
    'job.cpus: input should be greater than 0'
    """
    first = cast("dict[str, Any]", errors[0])
    where = [str(part) for part in first["loc"]]
    if where and where[0] in {"body", "query", "path"} and len(where) > 1:
        where = where[1:]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "there is no such field"
    elif first["type"] == "json_invalid":
        where, message = ["body"], f"not JSON: {first.get('ctx', {}).get('error', '')}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{'.'.join(where)}: {message[:1].lower()}{message[1:]}{more}"


async def _handle(request: Request, error: Exception) -> JSONResponse:
    told = answer_to(error)
    if told.status_code == 405:
        # The framework names only the methods of the first route, but a path can have two routes.
        path = getattr(request.scope.get("route"), "path", "")
        methods = cast("FastAPI", request.app).openapi()["paths"].get(path, {})
        told.headers["Allow"] = ", ".join(sorted(method.upper() for method in methods))
    return told


def install(app: FastAPI) -> None:
    """Install the handlers, so that this module answers every error of the app's routes."""
    for kind in EVERY_ERROR:
        app.add_exception_handler(kind, _handle)
