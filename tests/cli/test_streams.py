"""The streams of `glean` that are full, closed, of another encoding, or that nobody reads."""

import os
import subprocess

import pytest
from tests.cli.desk import GLEAN, Desk
from tests.cli.test_commands import submit

pytestmark = pytest.mark.slow


def test_a_reader_that_goes_away_is_no_error_to_talk_about(desk: Desk) -> None:
    submit(desk)
    process = desk.start("list")
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(timeout=20) in {0, 1}


def with_streams(desk: Desk, arguments: str, streams: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of `glean` with some of its streams redirected by a shell."""
    submit(desk)
    words = ["sh", "-c", f"exec {GLEAN} {arguments} {streams}"]
    done = subprocess.run(words, env=os.environ | desk.environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("full", "arguments", "code", "said"),
    [
        (">/dev/full", "list", 1, "glean: cannot write the answer: No space left on device\n"),
        (">/dev/full", "list --help", 1, "glean: cannot write the answer: No space left on device\n"),
        ("2>/dev/full", "show 4711", 1, ""),
        ("2>/dev/full", "show", 2, ""),
    ],
)
def test_an_answer_that_cannot_be_written_is_one_line(
    desk: Desk, full: str, arguments: str, code: int, said: str
) -> None:
    assert with_streams(desk, arguments, full) == (code, "", said)


@pytest.mark.parametrize(
    ("closed", "arguments", "code", "said"),
    [
        (">&-", "list", 1, "glean: cannot write the answer: stdout is closed\n"),
        (">&-", "list --json", 1, "glean: cannot write the answer: stdout is closed\n"),
        (">&-", "logs 1", 1, "glean: cannot write the answer: stdout is closed\n"),
        ("2>&-", "show 4711", 1, ""),
        ("<&- >&- 2>&-", "list", 1, ""),
    ],
)
def test_a_closed_stdout_or_stderr_is_one_line_and_no_traceback(
    desk: Desk, closed: str, arguments: str, code: int, said: str
) -> None:
    assert with_streams(desk, arguments, closed) == (code, "", said)


def test_a_line_that_the_encoding_of_stdout_lacks_is_shown_all_the_same(desk: Desk) -> None:
    job = submit(desk)
    (claimed,) = desk.node.claim()
    desk.node.write(claimed, 0, "σ = 3 µb")
    desk.environment["PYTHONIOENCODING"] = "ascii"
    out, err = desk.start("logs", str(job)).communicate(timeout=60)
    assert (out, err) == ("\\u03c3 = 3 \\xb5b\n", "")
