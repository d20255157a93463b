"""The one error of both clients."""

from enum import StrEnum
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from gleaner.control.input_errors import complaint

Model = TypeVar("Model", bound=BaseModel)


class ErrorKind(StrEnum):
    """The reason why a call failed, for programs."""

    REFUSED = "refused"
    """The answer is negative: there is no such job, or the disk is full."""
    INVALID = "invalid"
    """An option or a setting is wrong. Nothing was done."""
    CONFLICT = "conflict"
    """The thing is in a state that does not allow this. A job that has ended cannot be cancelled."""
    FORBIDDEN = "forbidden"
    """Control does not allow this to the caller."""
    NO_PROOF = "no proof"
    """There is no usable token, or control does not know it. No other call will work either."""
    AWAY = "away"
    """Control cannot be reached or cannot answer now. Asking again later may help."""
    NOT_CONNECTED = "not connected"
    """There was no connection, so nothing of the request has arrived."""
    TIMED_OUT = "timed out"
    """Control has the request, or the network is silent. Asking again at once would only wait again."""


class ClientError(Exception):
    """Control refused, or could not be asked. The text is one line for a person, control's own where it gave one."""

    def __init__(self, line: str, *, kind: ErrorKind = ErrorKind.REFUSED, status: int | None = None, option: str = ""):
        super().__init__(line)
        self.kind = kind
        self.status = status
        """The status of control's answer; None if the error did not come from an answer."""
        self.option = option
        """The option of the method that was wrong, with which the text begins; empty if there was none."""

    @property
    def is_away(self) -> bool:
        """True if control could not be asked, so that the same call may work later."""
        return self.kind in {ErrorKind.AWAY, ErrorKind.NOT_CONNECTED, ErrorKind.TIMED_OUT}


def checked(model: type[Model], **options: object) -> Model:
    """Return the model with these options. Raises `ClientError` that names the first wrong one."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        option = ".".join(map(str, first["loc"])) or str(first.get("ctx", {}).get("field", "value"))
        raise ClientError(complaint(option, first), kind=ErrorKind.INVALID, option=option) from None
