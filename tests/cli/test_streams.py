"""The streams of `glean` that are full, closed, of another encoding, or that nobody reads."""

import os
import subprocess

import pytest
from tests.cli.cli_harness import GLEAN, CliHarness
from tests.cli.test_commands import submit

pytestmark = pytest.mark.slow


def test_a_reader_that_goes_away_is_no_error_to_talk_about(harness: CliHarness) -> None:
    submit(harness)
    process = harness.start("list")
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) in {0, 1}


def with_streams(harness: CliHarness, arguments: str, streams: str) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of `glean` with some of its streams redirected by a shell."""
    submit(harness)
    words = ["sh", "-c", f"exec {GLEAN} {arguments} {streams}"]
    done = subprocess.run(words, env=os.environ | harness.environment, capture_output=True, text=True, check=False)
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
    harness: CliHarness, full: str, arguments: str, code: int, said: str
) -> None:
    assert with_streams(harness, arguments, full) == (code, "", said)


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
    harness: CliHarness, closed: str, arguments: str, code: int, said: str
) -> None:
    assert with_streams(harness, arguments, closed) == (code, "", said)


def test_a_line_that_the_encoding_of_stdout_lacks_is_shown_all_the_same(harness: CliHarness) -> None:
    job = submit(harness)
    (claimed,) = harness.node.claim()
    harness.node.write(claimed, 0, "σ = 3 µb")
    harness.environment["PYTHONIOENCODING"] = "ascii"
    out, err = harness.start("logs", str(job)).communicate(timeout=60)
    assert (out, err) == ("\\u03c3 = 3 \\xb5b\n", "")
