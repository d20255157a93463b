"""A child process that answers questions: a request is a line of JSON on its stdin, an answer one on its stdout."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, cast

from gleaner.agent.system import untrusted
from gleaner.agent.system.untrusted import text_of
from gleaner.control.slurm.interface import ClusterUnavailable

PIECE_BYTES = 65536


class Child:
    """The child process. It ends at `end`, or with this program, since its stdin is closed then.

    After a method has raised `ClusterUnavailable`, only `end` may be called.
    """

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as the child lives
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                cwd="/",
                start_new_session=True,  # Ctrl-C is for us, and we end it
            )
        except OSError as error:
            self._errors.close()
            raise ClusterUnavailable(f"{name} cannot be started: {words[0]}: {error.strerror}") from error

    def ask(self, request: Mapping[str, object], *, timeout_s: float) -> dict[str, object]:
        """Ask the child, and return its answer.

        Raises `ClusterUnavailable` if there is no answer in time or none that can be read, or if the child has ended.
        """
        until_s = time.monotonic() + timeout_s
        # Earlier complaints of the child do not matter any more, and the file must not grow for months.
        self._errors.seek(0)
        self._errors.truncate()
        try:
            _stream(self._process.stdin).write(json.dumps(request).encode() + b"\n")
            _stream(self._process.stdin).flush()
            line = self._line(until_s)
        except TimeoutError as error:
            raise ClusterUnavailable(f"Slurm does not answer: {self._name} took more than {timeout_s:g} s") from error
        except (EOFError, BrokenPipeError) as error:
            raise ClusterUnavailable(f"{self._name}'s process has ended: {self._complaint()}") from error
        return answer_in(line, self._name)

    def end(self) -> None:
        """Kill the child."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            try:
                _stream(stream).close()
            except BrokenPipeError:  # the child had not read its last request
                continue
        self._process.wait()
        self._errors.close()

    def _line(self, until_s: float) -> bytes:
        answers = _stream(self._process.stdout).fileno()
        ready = select.poll()
        ready.register(answers, select.POLLIN)
        pieces: list[bytes] = []
        while not (pieces and pieces[-1].endswith(b"\n")):
            if not ready.poll(max(until_s - time.monotonic(), 0) * 1000):
                raise TimeoutError
            piece = os.read(answers, PIECE_BYTES)
            if not piece:
                raise EOFError
            pieces.append(piece)
        return b"".join(pieces)

    def _complaint(self) -> str:
        self._errors.seek(0)
        lines = text_of(self._errors.read()).split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def answer_in(line: bytes, name: str) -> dict[str, object]:
    """Return the answer in a line of the child's: it has what the child `said`, or why it has `failed`.

    Raises `ClusterUnavailable`.
    """
    try:
        answer = untrusted.json_of(line, for_display=True)
        if not answer.keys() & {"said", "failed"}:
            raise ValueError("it is neither an answer nor a failure")
    except (ValueError, AttributeError) as error:
        raise ClusterUnavailable(f"{name} said {line[:80]!r} where an answer was expected: {error}") from error
    return cast("dict[str, object]", answer)


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # noqa: S101 - asked for at the start
    return stream
