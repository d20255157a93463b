"""Both clients. They have the same methods, performed by the calling thread or with asyncio."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gleaner.client.connection import Connection
from gleaner.client.errors import ClientError, ErrorKind
from gleaner.client.steps import AsyncDriver, SyncDriver
from gleaner.client.verbs import Verbs
from gleaner.control.input_errors import InputError, complaint

if TYPE_CHECKING:
    from gleaner.control.settings import ClientSettings


class _Connected(Verbs):
    """The options of both clients, from which their connection is made."""

    _http_class: Any
    _http: Any

    def __init__(
        self,
        *,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        settings = _settings(url=url, token_file=token_file, ca_file=ca_file, timeout_s=timeout_s)
        self._connection = Connection(settings, token=token, notice=notice)
        self._http = self._http_class(**self._connection.http_options)


class Client(_Connected, SyncDriver):
    """A client that waits for control's answers.

    An option that is not set has the value that `glean config` shows below `[client]`. `token` is the token itself,
    instead of a file that contains it. `notice` is called with a line for a person when a call takes a long time.
    """

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Connected, AsyncDriver):
    """A client that uses asyncio. Its options and methods are those of `Client`, and each method is awaited."""

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _settings(**given: Any) -> "ClientSettings":
    """Return the settings of `glean`, with these values in place of the configured ones. Raises `ClientError`."""
    from pydantic import ValidationError

    from gleaner.control.effective_settings import load_settings
    from gleaner.control.settings import ClientSettings

    try:
        loaded = load_settings().client
        return ClientSettings.model_validate(loaded.model_dump() | {k: v for k, v in given.items() if v is not None})
    except InputError as error:
        raise ClientError(str(error), kind=ErrorKind.INVALID) from error
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0])
        raise ClientError(complaint(option, first), kind=ErrorKind.INVALID, option=option) from None
