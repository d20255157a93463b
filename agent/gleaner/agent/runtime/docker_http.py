"""The part of Docker's HTTP interface that docker-py lacks, and Docker's errors in one place.

The checkpoint calls are in no release of docker-py and in no API description; they are those of the engine's
`daemon/server/router/checkpoint`, and need a daemon with `experimental` on.
"""

import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import docker
import docker.errors
import requests
import urllib3.exceptions

from gleaner.agent.runtime.interface import RuntimeFault

PATIENCE_S = 120
"""The most time that the engine may take for an ordinary answer, or may pause within a stream."""
LONG_PATIENCE_S = 24 * 3600
"""For calls that last as long as there is data; an engine that dies ends them earlier."""
CHUNK_BYTES = 2**20
_REMOVE_PATIENCE_S = 60
_LONGEST_LINE = 500
_CHANGE = b'"Kind":'
"""It stands once for each change in the engine's list; within a file's name, the quotes would be escaped."""


class BadAnswer(docker.errors.DockerException):
    """The engine's answer is not what it should be."""


@contextmanager
def translate_errors(doing: str) -> Generator[None]:
    """Turn the errors of docker-py and its HTTP libraries, and `BadAnswer`, into `RuntimeFault`.

    The caller catches errors that mean something to it before they get here.
    """
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RuntimeFault(f"{doing}: {explanation(error)}") from error


@contextmanager
def reading_answer() -> Generator[None]:
    """Turn the errors that Python raises for a malformed answer into `BadAnswer`.

    Only what reads an answer of the engine belongs in this context: an error of our own would pass for the engine's.
    """
    try:
        yield
    except requests.RequestException:  # some of them are a `ValueError`, too
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        line = f"Docker's answer is not understood ({type(error).__name__}: {error})"
        raise BadAnswer(line[:_LONGEST_LINE]) from error


def explanation(error: Exception) -> str:
    """Return the engine's words in one line."""
    text = getattr(error, "explanation", None) or str(error)
    return " ".join(str(text).split())


def status(error: docker.errors.APIError) -> int:
    """Return the HTTP status; 0 if there was no response."""
    return 0 if error.response is None else error.response.status_code


def new_checkpoint() -> str:
    """Return a name for a checkpoint that no other one has."""
    return f"gleaner-{secrets.token_hex(8)}"


class ContainerState(NamedTuple):
    """The part of the engine's answer about a container that says how the container is."""

    is_running: bool
    """True for a paused container, too."""
    is_paused: bool
    was_out_of_memory: bool
    exit_code: int


@reading_answer()
def state_of(inspected: Mapping[str, Any]) -> ContainerState:
    """Return the state in an answer of `Engine.inspect`."""
    state = inspected["State"]
    return ContainerState(
        is_running=bool(state["Running"]),
        is_paused=bool(state["Paused"]),
        was_out_of_memory=bool(state["OOMKilled"]),
        exit_code=int(state["ExitCode"]),
    )


class Engine:
    """The calls that the runtime needs, with types; docker-py's own are too loose to be checked.

    Each raises docker-py's `APIError` (the engine refuses), `BadAnswer`, or an error of `requests`: see
    `translate_errors`.
    """

    def __init__(self, url: str, *, patience_s: int = PATIENCE_S) -> None:
        with reading_answer():
            self._api: Any = docker.APIClient(base_url=url, version="auto", timeout=patience_s)

    @reading_answer()
    def version(self) -> Mapping[str, Any]:
        answer: dict[str, Any] = self._api.version()
        return answer

    @reading_answer()
    def info(self) -> Mapping[str, Any]:
        answer: dict[str, Any] = self._api.info()
        return answer

    @reading_answer()
    def pull(self, image: str) -> None:
        """Pull the given tag or digest, or else `latest`. Without a tag, the engine would pull all of them."""
        self._api.pull(image, tag=None if "@" in image or ":" in image.rpartition("/")[2] else "latest")

    def load(self, archive: Iterator[bytes]) -> str:
        """Load images from an archive of `docker save`. Return why the engine has not taken them; "" if it has."""
        lines: Iterable[Mapping[str, Any]] = self._api.load_image(archive)
        with reading_answer():
            return next((" ".join(str(line["error"]).split()) for line in lines if "error" in line), "")

    @reading_answer()
    def image_id(self, image: str) -> str:
        """Return the id of the image that has this name now."""
        answer: str = self._api.inspect_image(image)["Id"]
        return answer

    @reading_answer()
    def image_names(self) -> tuple[str, ...]:
        """Return the names of all images that have one."""
        found: Iterable[Mapping[str, Any]] = self._api.images()
        return tuple(name for image in found for name in image["RepoTags"] or () if name != "<none>:<none>")

    @reading_answer()
    def image_facts(self, image: str) -> tuple[str, int]:
        """Return the id and the size in bytes of the image that has this name now."""
        answer: Mapping[str, Any] = self._api.inspect_image(image)
        return str(answer["Id"]), int(answer["Size"])

    @reading_answer()
    def remove_image(self, image: str) -> None:
        """Take this name from an image, and remove an image without a name. Refused while a container uses it."""
        self._api.remove_image(image)

    def close(self) -> None:
        """Close the connections to the engine."""
        self._api.close()

    def create(
        self, name: str, *, host: Mapping[str, Any], annotations: Mapping[str, str] | None = None, **config: Any
    ) -> str:
        """Create a container and return its id. `host` and `config` are as for docker-py's `create_...` functions.

        Annotations go to the runtime below the engine; docker-py does not know them.
        """
        host_config: dict[str, Any] = self._api.create_host_config(network_mode="none", **host)
        if annotations:
            host_config["Annotations"] = dict(annotations)
        with reading_answer():
            answer: dict[str, str] = self._api.create_container(name=name, host_config=host_config, **config)
            return answer["Id"]

    def start(self, container: str, *, patience_s: int = PATIENCE_S) -> None:
        """Start a container. With the shim this may restore it, which takes as long as its memory is read."""
        _check_status(self._api.post(self._url(container, "start"), timeout=(PATIENCE_S, patience_s)))

    @reading_answer()
    def pause(self, container: str) -> None:
        self._api.pause(container)

    @reading_answer()
    def unpause(self, container: str) -> None:
        self._api.unpause(container)

    @reading_answer()
    def kill(self, container: str, signal: str = "SIGKILL") -> None:
        self._api.kill(container, signal)

    @reading_answer()
    def wait(self, container: str) -> int | None:
        """Return the exit code; None if the container has not ended within `PATIENCE_S`."""
        try:
            answer: dict[str, int] = self._api.wait(container, timeout=PATIENCE_S)
        except (requests.ReadTimeout, requests.ConnectionError) as error:
            if isinstance(error, requests.ReadTimeout) or "timed out" in str(error):
                return None
            raise
        return answer["StatusCode"]

    def remove(self, container: str) -> None:
        """Remove a container that runs or not, or was left half removed. One that is not there is no error."""
        give_up_s = time.monotonic() + _REMOVE_PATIENCE_S
        while True:
            try:
                with reading_answer():
                    self._api.remove_container(container, force=True, v=True)
            except docker.errors.NotFound:
                return
            except docker.errors.APIError:  # a removal is under way, or a mount is busy for a moment
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.2)

    @contextmanager
    def remove_on_failure(self, container: str) -> Generator[None]:
        """Remove a container in the making if anything goes wrong in the context, so that nothing of it is left."""
        try:
            yield
        except BaseException:
            with suppress(docker.errors.DockerException, requests.RequestException):
                self.remove(container)
            raise

    @reading_answer()
    def inspect(self, container: str) -> Mapping[str, Any]:
        answer: dict[str, Any] = self._api.inspect_container(container)
        return answer

    @reading_answer()
    def stats(self, container: str) -> Mapping[str, Any]:
        """Return the figures of this moment, without the second that the engine else takes to measure a rate."""
        answer: dict[str, Any] = self._api.stats(container, stream=False, one_shot=True)
        return answer

    @reading_answer()
    def labels_of_containers(self, label: str) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of each container that has this one, ended ones too."""
        answer: list[dict[str, Any]] = self._api.containers(all=True, filters={"label": label})
        return {one["Id"]: one["Labels"] for one in answer}

    @reading_answer()
    def written_bytes(self, container: str) -> int:
        """Return the size of what the container has written into its own files, as the engine counts it."""
        answer: requests.Response = self._api.get(
            self._url(container, "json"), params={"size": 1}, timeout=self._api.timeout
        )
        _check_status(answer)
        return int(answer.json().get("SizeRw") or 0)

    @reading_answer()
    def changed(self, container: str, *, most: int) -> int:
        """Return the number of its own files and folders that a container has changed, made or deleted.

        The count stops past `most`.
        """
        answer: requests.Response = self._api.get(
            self._url(container, "changes"), stream=True, timeout=self._api.timeout
        )
        count, rest = 0, b""
        with answer:
            _check_status(answer)
            for chunk in answer.iter_content(CHUNK_BYTES):
                content = rest + chunk
                count += content.count(_CHANGE)
                if count > most:
                    break
                rest = content[-len(_CHANGE) + 1 :]
        return count

    def create_checkpoint(self, container: str, checkpoint: str) -> None:
        """Write the memory of a container, and leave the container as it was, running or paused.

        The engine goes on with that even when the caller is gone.
        """
        body = {"CheckpointID": checkpoint, "CheckpointDir": "", "Exit": False}
        _check_status(
            self._api.post(self._url(container, "checkpoints"), json=body, timeout=(PATIENCE_S, LONG_PATIENCE_S))
        )

    def delete_checkpoint(self, container: str, checkpoint: str) -> None:
        """Delete a checkpoint's files in the engine's data folder."""
        _check_status(self._api.delete(self._url(container, f"checkpoints/{checkpoint}"), timeout=PATIENCE_S))

    @reading_answer()
    def attach(self, container: str) -> Iterator[bytes]:
        """Return the container's output from this call on, as Docker's frames, as soon as it is written.

        When a mebibyte of it is unread, the engine lets the container wait.
        """
        connection = self._api.attach_socket(container, params={"stdout": 1, "stderr": 1, "stream": 1})
        self._api._disable_socket_timeout(connection)  # a workload may be silent for hours
        return _AttachedOutput(connection)

    def follow(self, container: str) -> Iterator[bytes]:
        """Yield the container's whole output up to its end, as Docker's frames.

        There is no limit of time: a workload may be silent for hours.
        """
        answer: requests.Response = self._api.get(
            self._url(container, "logs"),
            params={"follow": 1, "stdout": 1, "stderr": 1},
            stream=True,
            timeout=(PATIENCE_S, None),
        )
        with answer:
            _check_status(answer)
            yield from answer.raw.stream(CHUNK_BYTES, decode_content=False)

    def _url(self, container: str, what: str) -> str:
        return f"{self._api.base_url}/v{self._api.api_version}/containers/{container}/{what}"


class _AttachedOutput:
    """The chunks of an attached connection, which is closed at their end, even when nobody has read any of them.

    This is no generator: a generator that was never begun runs no `finally`. urllib3's answer must be closed before
    the connection that it reads from, or urllib3 complains in the agent's log ("Exception ignored in: <HTTPResponse
    ...>").
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

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


@reading_answer()
def _check_status(answer: requests.Response) -> None:
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)
