"""`wait` and `logs -f` against a real control program: exit codes, Ctrl-C, a control program that restarts."""

import json
import os
import pty
import subprocess

import pytest
from tests.cli.cli_harness import GLEAN, CliHarness, Service

pytestmark = pytest.mark.slow


def test_wait_ends_with_0_when_every_job_succeeded(harness: CliHarness) -> None:
    first, second = harness.submit(), harness.submit()
    waiting = harness.start("wait", str(first), str(second), "--json")
    for claimed in harness.node.claim():
        harness.node.complete(claimed)
    out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, err) == (0, "")
    assert json.loads(out)["succeeded"] == 2


def test_wait_ends_with_1_when_a_job_failed_or_was_cancelled(harness: CliHarness) -> None:
    number = str(
        json.loads(harness.good("submit", "--image", "a", "--array", "0-2", "--retries", "0", "--json"))["campaign"]
    )
    one, two, three = harness.node.claim()
    harness.node.complete(one)
    harness.node.complete(two, exit_code=7)
    harness.good("cancel", str(three.job))
    code, out, err = harness.run("wait", "--campaign", number, "--json")
    assert (code, err) == (1, "glean: 1 failed, 1 cancelled\n")
    assert json.loads(out)["failed"] == 1


def test_wait_says_when_only_held_jobs_are_left(harness: CliHarness) -> None:
    job = str(harness.submit("--hold"))
    code, _, err = harness.run("wait", job, "--timeout", "5")
    assert code == 1
    assert "all remaining jobs are held" in err


def test_logs_follows_until_the_job_has_ended(harness: CliHarness) -> None:
    job = harness.submit()
    process = harness.start("logs", "-f", str(job))
    (claimed,) = harness.node.claim()
    harness.node.write(claimed, 0, "start", "event 1")
    assert process.stdout
    assert [process.stdout.readline() for _ in range(2)] == ["start\n", "event 1\n"]
    harness.node.write(claimed, 2, "event 2")
    harness.node.complete(claimed)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "event 2\n", "")


def test_wait_goes_on_when_control_was_restarted(harness: CliHarness, service: Service) -> None:
    job = harness.submit("--hold")
    waiting = harness.start("wait", str(job), "--json")
    assert waiting.stderr
    assert waiting.stderr.readline().startswith("glean: all remaining jobs are held")
    service.stop()
    assert waiting.stderr.readline() == "glean: control does not answer; still trying\n"
    service.start()
    harness.good("release", str(job))
    harness.node.complete(harness.node.claim()[0])
    out, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, err) == (0, "")
    assert json.loads(out)["succeeded"] == 1


def on_a_terminal(harness: CliHarness, *arguments: str) -> "tuple[subprocess.Popen[bytes], int]":
    """The program with a terminal for stdout and stderr, and our end of that terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | harness.environment | {"TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([GLEAN, *arguments], cwd=harness.folder, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return process, ours


def read_all(terminal: int) -> bytes:
    seen = b""
    try:
        while more := os.read(terminal, 65536):
            seen += more
    except OSError:  # a terminal whose other end is closed ends with EIO
        pass
    os.close(terminal)
    return seen


def test_wait_draws_a_bar_on_a_terminal(harness: CliHarness) -> None:
    job = harness.submit()
    (claimed,) = harness.node.claim()
    process, terminal = on_a_terminal(harness, "wait", str(job))
    seen = b""
    while b"1 running" not in seen:
        seen += os.read(terminal, 65536)
    harness.node.complete(claimed)
    seen += read_all(terminal)
    assert process.wait(timeout=30) == 0
    assert b"0/1" in seen
    assert b"SUCCEEDED" in seen


def test_a_workloads_control_characters_do_not_drive_the_terminal(harness: CliHarness) -> None:
    job = harness.submit()
    (claimed,) = harness.node.claim()
    harness.node.write(claimed, 0, "\x1b]0;owned\x07tab\there")
    process, terminal = on_a_terminal(harness, "logs", str(job))
    seen = read_all(terminal)
    assert process.wait(timeout=30) == 0
    assert b"\x1b]" not in seen
    assert b"\\x1b]0;owned\\x07tab" in seen
