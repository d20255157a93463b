"""Docker's HTTP interface as far as docker-py lacks it, and its errors in one place.

The checkpoint calls are in no release of docker-py and in no API description; they are those of the engine's
`daemon/server/router/checkpoint`, and need a daemon with `experimental` on.
"""

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import docker
import docker.errors
import requests
import urllib3.exceptions

from gleaner.agent.runtime.protocol import RuntimeFault

PATIENCE_S = 120
"""How long the engine may take for an ordinary answer, or pause within a stream."""
LONG_PATIENCE_S = 24 * 3600
"""For calls that last as long as there is data; an engine that dies ends them earlier."""
CHUNK_BYTES = 2**20


@contextmanager
def translated(doing: str) -> Generator[None]:
    """Turn what docker-py and its HTTP libraries raise into `RuntimeFault`. Statuses that mean something to the
    caller are caught before they get here."""
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RuntimeFault(f"{doing}: {explanation(error)}") from error


def explanation(error: Exception) -> str:
    """What the engine said, in one line."""
    said = getattr(error, "explanation", None) or str(error)
    return " ".join(str(said).split())


def status(error: docker.errors.APIError) -> int:
    """The HTTP status."""
    return 0 if error.response is None else error.response.status_code


class Engine(docker.APIClient):
    """docker-py's low-level client, with checkpoints and with raw streams."""

    def create_checkpoint(self, container: str, checkpoint: str) -> None:
        """Write the memory of a container, and leave it as it was, running or paused.

        The engine goes on with it even when the caller is gone. Raises `APIError`.
        """
        answer = self.post(
            self._of(container, "checkpoints"),
            json={"CheckpointID": checkpoint, "CheckpointDir": "", "Exit": False},
            timeout=(PATIENCE_S, LONG_PATIENCE_S),
        )
        _checked(answer)

    def delete_checkpoint(self, container: str, checkpoint: str) -> None:
        """Raises `APIError`."""
        answer = self.delete(self._of(container, f"checkpoints/{checkpoint}"), timeout=PATIENCE_S)
        _checked(answer)

    def start_from(self, container: str, checkpoint: str) -> None:
        """Restore a created container. A 304 means that it runs already, which is wrong here. Raises `APIError`."""
        answer = self.post(
            self._of(container, "start"),
            params={"checkpoint": checkpoint},
            timeout=(PATIENCE_S, LONG_PATIENCE_S),
        )
        _checked(answer)
        if answer.status_code != requests.codes.no_content:
            raise docker.errors.APIError(
                "the container runs already", response=answer, explanation="it runs already, and was not restored"
            )

    def follow(self, container: str) -> Iterator[bytes]:
        """The container's whole output up to its end, as Docker's frames.

        No limit of time: a workload may be silent for hours.
        """
        answer = self.get(
            self._of(container, "logs"),
            params={"follow": 1, "stdout": 1, "stderr": 1},
            stream=True,
            timeout=(PATIENCE_S, None),
        )
        _checked(answer)
        with answer:
            yield from answer.raw.stream(CHUNK_BYTES, decode_content=False)

    def _of(self, container: str, what: str) -> str:
        return f"{self.base_url}/v{self.api_version}/containers/{container}/{what}"


def _checked(answer: requests.Response) -> None:
    try:
        answer.raise_for_status()
    except requests.HTTPError as error:
        docker.errors.create_api_error_from_http_exception(error)


_LOG_PATH = re.compile(r"(?:path= ?|log file: ?)(/\S+/)([\w.-]+\.log)")


def criu_log(message: str) -> tuple[str, str] | None:
    """The folder and name of CRIU's log, where the engine's error names one.

    >>> criu_log("criu failed: type NOTIFY errno 0 path= /run/x/7d/criu-dump.log: unknown")
    ('/run/x/7d/', 'criu-dump.log')
    """
    found = _LOG_PATH.search(message)
    return (found[1], found[2]) if found else None


_CRIU_ERROR = re.compile(r"^\(\d+\.\d+\)\s*(?:\d+:\s*)?Error \([\w./-]+:\d+\):\s*(.+?)\s*$", re.MULTILINE)
_BORING = re.compile(r"Dumping FAILED|Restoring FAILED|RLIMIT_NOFILE for self|Unable to create tun|exited, status=")


def criu_reason(log: str) -> str:
    r"""CRIU's last error that says more than that it failed; empty if there is none.

    >>> criu_reason("(00.1) Error (criu/x.c:1): files: no\n(00.2) Error (criu/cr-dump.c:2111): Dumping FAILED.\n")
    'files: no'
    """
    errors: list[str] = [found for found in _CRIU_ERROR.findall(log) if not _BORING.search(found)]
    telling = [error for error in errors if not error.startswith(("Dump ", "Can't dump task"))]
    return (telling or errors or [""])[-1]
