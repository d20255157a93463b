"""The threads of the routes that use the storage, separate from those of all other routes.

A storage that hangs blocks a thread for as long as it hangs. With separate threads, only callers who need the storage
wait for it.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import partial, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import HTTPException

from gleaner.control.api.access import Caller
from gleaner.control.control_state import ControlState

WAIT_AT_MOST = 64
PIECE_BYTES = 2**20

P = ParamSpec("P")
R = TypeVar("R")
Answer: TypeAlias = Coroutine[Any, Any, R]


def _in(threads_of: Callable[[ControlState], CapacityLimiter]) -> Callable[[Callable[P, R]], Callable[P, Answer[R]]]:
    def decorated(route: Callable[P, R]) -> Callable[P, Answer[R]]:
        @wraps(route)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> R:
            threads = threads_of(cast("Caller", kwargs["caller"]).state)
            if threads.statistics().tasks_waiting >= WAIT_AT_MOST:
                raise HTTPException(503, "too many callers wait for the storage: try again", {"Retry-After": "5"})
            return await run_sync(partial(route, *args, **kwargs), limiter=threads)

        return answer

    return decorated


READS_STORAGE = _in(lambda state: state.storage_threads)
"""The decorator of routes that use the storage, which run in a few separate threads."""
STORES = _in(lambda state: state.storing_thread)
"""The decorator of routes that add an image or an input. This takes minutes, so they run one after the other."""


async def read_on(caller: Caller, chunks: Iterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield chunks from the storage, joined into larger pieces, because using a thread takes longer than reading a
    chunk."""
    while piece := await run_sync(_next_piece, chunks, limiter=caller.state.storage_threads):
        yield piece


def _next_piece(chunks: Iterator[bytes]) -> bytes:
    parts, size_bytes = list[bytes](), 0
    while size_bytes < PIECE_BYTES and (chunk := next(chunks, b"")):
        parts.append(chunk)
        size_bytes += len(chunk)
    return b"".join(parts)
