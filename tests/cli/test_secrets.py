"""`glean secret` against a real control program; a value comes from a file, from stdin or from a terminal."""

import io
import json
import os
import pty
import subprocess
from pathlib import Path

import pytest
from tests.cli.cli_harness import GLEAN, CliHarness

from gleaner.control.queue import secret_key

pytestmark = pytest.mark.slow
VALUE = "AKIAEXAMPLE:wJalrXUtnFEMI"
SCHEMES = "a secret is for a URL that begins with s3:// or https:// or roots://"
CEPH = ("ceph", "--for", "s3://s3.example.org/atlas/")


@pytest.fixture
def harness(harness: CliHarness, tmp_path: Path) -> CliHarness:
    """Return a user's `glean`, and control with a key."""
    assert secret_key.make(tmp_path / "secrets.key")
    (harness.folder / "keys").write_text(VALUE + "\n")
    return harness


def test_a_secret_is_set_listed_and_removed(harness: CliHarness) -> None:
    row = json.loads(harness.good("secret", "set", *CEPH, "--from-file", "keys", "--json"))
    assert (row["name"], row["kind"], row["url"], row["setter"]) == ("ceph", "S3 keys", CEPH[2], "alice")
    assert json.loads(harness.good("secret", "list", "--json")) == [row]
    shown = harness.good("secret", "list")
    assert "ceph" in shown
    assert "S3 keys" in shown
    assert "ceph" in harness.good("secret", "rm", "ceph")
    assert "no secret ceph" in harness.refused("secret", "rm", "ceph", code=1)


def test_the_value_comes_from_stdin(harness: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("me:word\n"))
    row = json.loads(harness.good("secret", "set", "web", "--for", "https://host/a/", "--from-file", "-", "--json"))
    assert row["kind"] == "password"


def test_the_value_is_asked_for_on_the_terminal_and_not_shown(harness: CliHarness) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | harness.environment
    with subprocess.Popen(
        [GLEAN, "secret", "set", *CEPH],
        cwd=harness.folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    ) as asking:  # fmt: skip
        os.close(theirs)
        seen = b""
        while b"ACCESS_KEY:SECRET_KEY: " not in seen:
            seen += os.read(ours, 1000)
        os.write(ours, VALUE.encode() + b"\n")
        try:
            while chunk := os.read(ours, 1000):
                seen += chunk
        except OSError:  # Linux says so that the other side has closed
            pass
    os.close(ours)
    assert asking.returncode == 0, seen
    assert b"S3 keys" in seen
    assert b"wJalr" not in seen


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (CEPH, "give --from-file FILE, or --from-file -"),
        ((*CEPH, "--from-file", "none"), "none: No such file"),
        (("a b", "--for", "https://host/", "--from-file", "keys"), "NAME must begin with a letter"),
        (("a", "--for", "ftp://host/", "--from-file", "keys"), f"--for: {SCHEMES}"),
        (("a", "--for", "https://h/", "--from-file", "keys", "--group", "x y"), "--group must begin with a letter"),
    ],
)
def test_a_mistake_is_one_line_before_control_is_asked(
    harness: CliHarness, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    line = harness.refused("secret", "set", *arguments, code=2)
    assert said in line
    assert "wJalr" not in line
