"""The program of the child process (see `process`)."""

import os
import pickle
import resource
import signal
import sys
from typing import TYPE_CHECKING, NoReturn, cast

from gleaner.agent.system import openat
from gleaner.agent.transfer.process import PROGRESS, TemporaryFailure, TransferFailure

if TYPE_CHECKING:
    from gleaner.agent.transfer.deliver import DeliverRequest
    from gleaner.agent.transfer.fetch import FetchRequest


def main() -> int:
    """Answer one request and return the exit status. A failure is reported in one line without the credential."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would contain the credential
    signal.signal(signal.SIGTERM, _end)
    request = cast("DeliverRequest | FetchRequest", pickle.load(sys.stdin.buffer))  # noqa: S301  # from the agent
    errors = os.dup(2)
    with openat.closing_fd(os.open(os.devnull, os.O_WRONLY)) as nothing:
        os.dup2(nothing, 2)  # the agent does not read library output during the request
    try:
        numbers = request.serve(lambda: openat.write_all(1, PROGRESS))
        openat.write_all(1, " ".join(map(str, numbers)).encode())
    except (TransferFailure, OSError) as error:
        credential = request.access.credential
        line = str(error) if credential is None else credential.hidden_in(str(error))
        openat.write_all(errors, line.encode(errors="replace"))
        return error.status if isinstance(error, TransferFailure) else TemporaryFailure.status
    return 0


def _end(_signal: int, _frame: object) -> NoReturn:
    sys.exit(TemporaryFailure.status)  # the remains at the target are removed on the way


if __name__ == "__main__":
    status = TemporaryFailure.status
    try:
        status = main()
    finally:
        os._exit(status)  # at once, even if threads of libraries still run
