"""The calls of Docker's HTTP interface that docker-py lacks, on docker-py's own session.

The checkpoint calls are in no release of docker-py and in no API description; they are those of the engine's
`daemon/server/router/checkpoint`, and need a daemon with `experimental` on. Each call raises docker-py's or requests'
errors (`docker_runtime.translate_errors`).
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import docker.errors
import requests

CHUNK_BYTES = 2**20
_CHANGE = b'"Kind":'
"""It stands once for each change in the engine's list; within a file's name, the quotes would be escaped."""


def request(api: Any, method: str, container: str, path: str, **options: Any) -> requests.Response:
    """Return the answer to a request about a container."""
    url = f"{api.base_url}/v{api.api_version}/containers/{container}/{path}"
    answer: requests.Response = api.request(method, url, **({"timeout": api.timeout} | options))
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)
    return answer


def follow(api: Any, container: str, *, connect_s: float) -> Iterator[bytes]:
    """Yield the container's whole output up to its end, as Docker's frames.

    There is no limit of time: a workload may be silent for hours.
    """
    params = {"follow": 1, "stdout": 1, "stderr": 1}
    with request(api, "GET", container, "logs", params=params, stream=True, timeout=(connect_s, None)) as answer:
        yield from answer.raw.stream(CHUNK_BYTES, decode_content=False)


def count_changes(api: Any, container: str, *, most: int) -> int:
    """Return the number of its own files and folders that a container has changed, made or deleted.

    The count stops past `most`.
    """
    count, rest = 0, b""
    with request(api, "GET", container, "changes", stream=True) as answer:
        for chunk in answer.iter_content(CHUNK_BYTES):
            content = rest + chunk
            count += content.count(_CHANGE)
            if count > most:
                break
            rest = content[-len(_CHANGE) + 1 :]
    return count


class AttachedOutput:
    """A container's output from now on, as Docker's frames, as soon as it is written.

    When a mebibyte of it is unread, the engine lets the container wait. The connection is closed at the end, even when
    nobody has read any of it.

    This is no generator: a generator that was never begun runs no `finally`. urllib3's answer must be closed before
    the connection that it reads from, or urllib3 complains in the agent's log ("Exception ignored in: <HTTPResponse
    ...>").
    """

    def __init__(self, api: Any, container: str) -> None:
        self._connection = api.attach_socket(container, params={"stdout": 1, "stderr": 1, "stream": 1})
        api._disable_socket_timeout(self._connection)  # a workload may be silent for hours

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._connection is None:
            raise StopIteration
        try:
            chunk: bytes = self._connection.read(CHUNK_BYTES)
        except BaseException:
            self.close()
            raise
        if not chunk:
            self.close()
            raise StopIteration
        return chunk

    def close(self) -> None:
        """End the connection; a second call is no error."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(OSError, ValueError):
                connection._response.close()
            with suppress(OSError, ValueError):
                connection.close()

    def __del__(self) -> None:
        self.close()
