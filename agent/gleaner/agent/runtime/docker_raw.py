"""Make the calls of Docker's HTTP interface that docker-py lacks, through docker-py's own session.

The checkpoint calls are in no release of docker-py and in no API description. They are defined in the engine's
`daemon/server/router/checkpoint`, and need a daemon with `experimental` switched on. Each call raises the errors of
docker-py or requests (`docker_runtime.translate_errors`).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import docker.errors
import requests

CHUNK_BYTES = 2**20
_CHANGE = b'"Kind":'
"""This text occurs once for each change in the engine's list, because quotes within a file's name are escaped."""


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
    """Yield the container's whole output up to its end, in Docker's frames.

    There is no time limit, because a workload can be silent for hours.
    """
    params = {"follow": 1, "stdout": 1, "stderr": 1}
    with request(api, "GET", container, "logs", params=params, stream=True, timeout=(connect_s, None)) as answer:
        yield from answer.raw.stream(CHUNK_BYTES, decode_content=False)


def count_changes(api: Any, container: str, *, most: int) -> int:
    """Return how many files and folders outside its mounts a container has changed, made or deleted.

    The count stops once it exceeds `most`.
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


def attach(api: Any, container: str, *, connect_s: float) -> Iterator[bytes]:
    """Return a container's output from now on, in Docker's frames, as soon as it is written.

    If a mebibyte of output is unread, the engine makes the container wait. Dropping the iterator closes the connection.
    """
    params = {"stdout": 1, "stderr": 1, "stream": 1}  # without an upgrade, the frames are the body of the answer
    answer = request(api, "POST", container, "attach", params=params, stream=True, timeout=(connect_s, None))
    return iter(partial(answer.raw.read1, CHUNK_BYTES), b"")
