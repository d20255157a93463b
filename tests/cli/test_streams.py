"""The streams of `glean` that are full, closed, of another encoding, or that nobody reads."""

import os
import subprocess

import pytest
from tests.cli.cli_harness import GLEAN, CliHarness

pytestmark = pytest.mark.slow


def test_a_reader_that_goes_away_is_no_error_to_talk_about(harness: CliHarness) -> None:
    harness.submit()
    process = harness.start("list")
    assert process.stdout
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) in {0, 1}


@pytest.mark.parametrize(
    ("streams", "arguments", "code", "said"),
    [
        (">/dev/full", "list", 1, "glean: cannot write the answer: No space left on device\n"),
        ("2>/dev/full", "show 4711", 1, ""),
        (">&-", "list --json", 1, "glean: cannot write the answer: stdout is closed\n"),
        (">&-", "logs 1", 1, "glean: cannot write the answer: stdout is closed\n"),
        ("<&- >&- 2>&-", "list", 1, ""),
    ],
)
def test_a_full_or_closed_stream_is_one_line_and_no_traceback(
    harness: CliHarness, streams: str, arguments: str, code: int, said: str
) -> None:
    harness.submit()
    words = ["sh", "-c", f"exec {GLEAN} {arguments} {streams}"]
    done = subprocess.run(words, env=os.environ | harness.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)


def test_a_line_that_the_encoding_of_stdout_lacks_is_shown_all_the_same(harness: CliHarness) -> None:
    job = harness.submit()
    (claimed,) = harness.node.claim()
    harness.node.write(claimed, 0, "σ = 3 µb")
    harness.environment["PYTHONIOENCODING"] = "ascii"
    out, err = harness.start("logs", str(job)).communicate(timeout=60)
    assert (out, err) == ("\\u03c3 = 3 \\xb5b\n", "")
