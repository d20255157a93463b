"""One description of each method for both clients.

A method is a generator. It yields each step that takes time, and receives the outcome of the step. `SyncDriver`
performs the steps in the calling thread, and `AsyncDriver` with asyncio. Therefore the requests, their repetition and
their order are written only once, in `verbs` and `connection`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

import httpx

P = ParamSpec("P")
T = TypeVar("T")
G = TypeVar("G")
READ_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One request. Its outcome is an `httpx.Response`, or an `httpx.HTTPError` is raised."""

    method: str
    url: str
    timeout: httpx.Timeout
    params: dict[str, Any] | None = None
    content: str | bytes | None = None
    headers: dict[str, str] | None = None
    receive: Callable[[Iterator[bytes]], None] | None = None
    """The function that receives the body of a successful answer, part by part."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """A pause."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Work on local files that takes a long time. Its outcome is the return value of the function."""

    do: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Item(Generic[T]):
    """A value for the caller who iterates over the method's answers. It has no outcome."""

    value: T


Step: TypeAlias = ApiCall | Sleep | Work | Item[Any]
Steps: TypeAlias = Generator[Step, Any, T]
Items: TypeAlias = Generator[ApiCall | Sleep | Work | Item[T], Any, Any]


class SyncDriver:
    """The driver that performs steps in the calling thread."""

    _http_class = httpx.Client
    _http: httpx.Client

    def perform(self, begin: Callable[[], Steps[T]]) -> T:
        """Perform the steps and return their result."""
        *_, result = self.iterate(lambda: _with_result(begin()))
        return cast("T", result)

    def iterate(self, begin: Callable[[], Items[T]]) -> Iterator[T]:
        """Perform the steps and yield each item."""
        with closing(begin()) as steps:
            outcome: Any = None
            error: BaseException | None = None
            while (step := _advance(steps, outcome, error)) is not None:
                outcome = error = None
                if isinstance(step, Item):
                    yield step.value
                    continue
                try:
                    outcome = self._do(step)
                except BaseException as caught:
                    error = caught

    def _do(self, step: ApiCall | Sleep | Work) -> object:
        if isinstance(step, Work):
            return step.do()
        if isinstance(step, Sleep):
            time.sleep(step.seconds)
            return None
        response = self._http.send(_request(self._http, step), stream=True)
        try:
            if response.is_error or step.receive is None:
                response.read()
            else:
                step.receive(response.iter_bytes(READ_BYTES))
        finally:
            response.close()
        return response


class AsyncDriver:
    """The driver that performs steps with asyncio. Work on files runs in another thread."""

    _http_class = httpx.AsyncClient
    _http: httpx.AsyncClient

    async def perform(self, begin: Callable[[], Steps[T]]) -> T:
        """Perform the steps and return their result."""
        items = [item async for item in self.iterate(lambda: _with_result(begin()))]
        return cast("T", items[-1])

    async def iterate(self, begin: Callable[[], Items[T]]) -> AsyncIterator[T]:
        """Perform the steps and yield each item."""
        with closing(begin()) as steps:
            outcome: Any = None
            error: BaseException | None = None
            while (step := _advance(steps, outcome, error)) is not None:
                outcome = error = None
                if isinstance(step, Item):
                    yield step.value
                    continue
                try:
                    outcome = await self._do(step)
                except BaseException as caught:
                    error = caught

    async def _do(self, step: ApiCall | Sleep | Work) -> object:
        if isinstance(step, Work):
            return await asyncio.to_thread(step.do)
        if isinstance(step, Sleep):
            await asyncio.sleep(step.seconds)
            return None
        response = await self._http.send(_request(self._http, step), stream=True)
        try:
            if response.is_error or step.receive is None:
                await response.aread()
            else:
                parts = _from_thread(response.aiter_bytes(READ_BYTES), asyncio.get_running_loop())
                await asyncio.to_thread(step.receive, parts)
        finally:
            await response.aclose()
        return response


class _Method(Generic[P, G]):
    """A method of both clients, described by its steps."""

    def __init__(self, steps: Callable[Concatenate[Any, P], G]) -> None:
        self.steps = steps
        update_wrapper(self, steps)  # type: ignore[arg-type]

    def _of(self, client: SyncDriver | AsyncDriver | None, do: str) -> Any:
        """Return the method of this client. The driver's method `do` performs its steps.

        Without a client, return the description itself.
        """
        if client is None:
            return self

        def method(*options: P.args, **named: P.kwargs) -> Any:
            return getattr(client, do)(lambda: self.steps(client, *options, **named))

        return update_wrapper(method, self.steps)


class Verb(_Method[P, Steps[T]], Generic[P, T]):
    """A method with one result: `client.job(7)`, and `await client.job(7)`."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SyncDriver, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncDriver, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: SyncDriver | AsyncDriver | None, owner: type) -> Any:
        """Return the method of this client."""
        return self._of(client, "perform")


class ItemVerb(_Method[P, Items[T]], Generic[P, T]):
    """A method to iterate over: `for row in client.all_jobs()`, and `async for row in client.all_jobs()`."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: SyncDriver, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncDriver, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: SyncDriver | AsyncDriver | None, owner: type) -> Any:
        """Return the method of this client."""
        return self._of(client, "iterate")


def _advance(steps: Items[T], outcome: object, error: BaseException | None) -> ApiCall | Sleep | Work | Item[T] | None:
    """Return the next step, or None after the last one."""
    try:
        return steps.send(outcome) if error is None else steps.throw(error)
    except StopIteration:
        return None


def _with_result(steps: Steps[T]) -> Items[Any]:
    """Yield the steps, and the result as the last item."""
    result = yield from steps
    yield Item(result)


def _from_thread(parts: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> Iterator[bytes]:
    """Yield in another thread the parts that are read in the thread of the loop."""

    async def read() -> bytes:
        return await anext(parts, b"")

    while part := asyncio.run_coroutine_threadsafe(read(), loop).result():
        yield part


def _request(http: httpx.Client | httpx.AsyncClient, call: ApiCall) -> httpx.Request:
    return http.build_request(
        call.method, call.url, params=call.params, content=call.content, headers=call.headers, timeout=call.timeout
    )
