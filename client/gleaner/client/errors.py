"""The one error of both clients."""

from enum import StrEnum
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gleaner.control.input_errors import complaint

Model = TypeVar("Model", bound=BaseModel)


class ErrorKind(StrEnum):
    """The reason why a call failed, for programs."""

    REFUSED = "refused"
    """The answer is negative: for example, the job does not exist, or the disk is full."""
    INVALID = "invalid"
    """An option or a setting is wrong. Nothing was done."""
    CONFLICT = "conflict"
    """The current state does not allow this. For example, a job that has ended cannot be cancelled."""
    FORBIDDEN = "forbidden"
    """The caller does not have the right to do this."""
    NO_PROOF = "no proof"
    """There is no usable token, or control does not know it. No other call will work either."""
    AWAY = "away"
    """Control cannot be reached or cannot answer now. A later try might succeed."""
    NOT_CONNECTED = "not connected"
    """There was no connection, so no part of the request has arrived."""
    TIMED_OUT = "timed out"
    """Control has the request, or the network is silent. An immediate retry would only wait again."""


class ClientError(Exception):
    """Control refused the request, or could not be reached.

    The text is one line for a person, from control if it sent one.
    """

    def __init__(self, line: str, *, kind: ErrorKind = ErrorKind.REFUSED, status: int | None = None, option: str = ""):
        super().__init__(line)
        self.kind = kind
        self.status = status
        """The status of control's answer; None if the error did not come from an answer."""
        self.option = option
        """The option of the method that was wrong, with which the text begins; empty if no option was wrong."""

    @property
    def is_away(self) -> bool:
        """Return True if control could not be reached, so that the same call might succeed later."""
        return self.kind in {ErrorKind.AWAY, ErrorKind.NOT_CONNECTED, ErrorKind.TIMED_OUT}


def checked(model: type[Model], **options: object) -> Model:
    """Return the model with these options. Raises `ClientError` with the name of the first wrong option."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"])) or str(first.get("ctx", {}).get("field", "value"))
        raise ClientError(complaint(option, first), kind=ErrorKind.INVALID, option=option) from None
