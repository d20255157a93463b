"""Imports of the server's side for the command line. A user's installation does not have them."""

from collections.abc import Generator
from contextlib import contextmanager

from gleaner.control.cli.failures import BadInput, Failure
from gleaner.control.input_errors import one_line


@contextmanager
def server_parts() -> Generator[None]:
    """Import and use the server's modules. A missing library or a refusal of the queue becomes one clear line."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gleaner"):
            raise
        raise BadInput(f"{error.name} is not installed here: pip install 'gleaner-hpc[control]'") from error
    except Exception as error:
        if not _is_refusal(error):
            raise
        raise Failure(one_line(str(error))) from error


def _is_refusal(error: Exception) -> bool:
    try:
        from gleaner.control.queue.errors import QueueError
    except ModuleNotFoundError:
        return False
    return isinstance(error, QueueError)
