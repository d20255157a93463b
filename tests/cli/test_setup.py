"""`glean setup` by hand, below a folder: shown, done, done again, taken back, and refused in one line."""

import os
import pty
import subprocess
import threading
from pathlib import Path

import pytest
from tests.cli.cli_harness import GLEAN
from tests.setup.test_steps import tree

from gleaner.agent.common.clock import SystemClock
from gleaner.control.cli import app
from gleaner.control.cli.setup import LOOK_EVERY_S, STARTS_WITHIN_S, once_started, until_in_force
from gleaner.control.doctor.finding import CheckState, Finding

AUTHORITY = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
CLIENT = ("client", "--url", "https://head:8642")


class WaitingClock(SystemClock):
    """A clock on which only waiting takes time."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def monotonic_s(self) -> float:
        return self.waited_s

    def wait(self, event: threading.Event, patience_s: float) -> bool:
        self.waited_s += patience_s
        return event.is_set()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A system that does not run."""
    place = tmp_path / "root"
    (place / "etc").mkdir(parents=True)
    return place


def setup(root: Path, *arguments: str) -> int:
    return app.run(["setup", *arguments, "--root", str(root)])


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that was said."""
    said = capsys.readouterr().err
    assert said.startswith("glean: ")
    assert said.count("\n") == 1
    return said


def test_a_client_is_shown_made_and_taken_back(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = root.parent / "ca.pem"
    authority.write_text(AUTHORITY)
    before = tree(root)
    assert setup(root, *CLIENT, "--ca-file", str(authority), "--dry-run") == 0
    assert 'ca_file = "/etc/gleaner/tls/ca.pem"' in capsys.readouterr().out
    assert tree(root) == before
    assert setup(root, *CLIENT, "--ca-file", str(authority), "--yes") == 0
    assert (root / "etc/gleaner/tls/ca.pem").read_text() == AUTHORITY
    made = tree(root)
    capsys.readouterr()
    assert setup(root, "client", "--yes") == 0  # the answers are known
    assert capsys.readouterr().out == "all is as it should be\n"
    assert tree(root) == made
    assert setup(root, "client", "--remove", "--dry-run") == 0
    assert tree(root) == made
    assert setup(root, "client", "--remove", "--yes") == 0
    assert tree(root) == before


def test_a_new_address_replaces_the_settings_unless_somebody_has_changed_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = root / "etc/gleaner/gleaner.toml"
    for address in ("https://head:8642", "https://other:8642"):
        assert setup(root, "client", "--url", address, "--yes") == 0
        assert f'url = "{address}"' in file.read_text()
    file.write_text(f"{file.read_text()}timeout_s = 5\n")
    capsys.readouterr()
    assert setup(root, *CLIENT, "--yes") == 0
    assert "gleaner.toml stays as it is" in capsys.readouterr().err
    assert "other" in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("client", "--yes"), "Say it with --url"),
        (("client", "--url", "head:8642", "--yes"), "must be like https://"),
        ((*CLIENT, "--ca-file", "/dev/null", "--yes"), "no certificate in PEM"),
        ((*CLIENT, "--from", "/etc/hostname", "--yes"), "no file of glean setup control"),
        ((*CLIENT, "--skip", "nothing", "--yes"), "there is no such step"),
        (CLIENT, "nobody is here to agree"),
    ],
)
def test_what_will_not_do_is_one_line_and_changes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    before = tree(root)
    assert setup(root, *arguments) in (1, 2)
    assert said in refusal(capsys)
    assert tree(root) == before


def test_a_control_that_does_not_answer_is_named_before_anything_is_changed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.run(["setup", "client", "--url", "http://127.0.0.1:1", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "would be refused: control: " in shown.err
    assert shown.out.endswith("nothing was changed\n")


@pytest.mark.slow
def test_people_are_asked_and_may_say_no(root: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [GLEAN, "setup", "client", "--root", str(root)], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as asked:
        os.write(ours, b"https://head:8642\nn\n")
        _, said = asked.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert asked.returncode == 1
    assert "as you wish: nothing was changed" in said.decode()
    assert tree(root).keys() == {"etc"}


def test_setup_waits_for_a_control_program_that_is_slow_to_start() -> None:
    answers, silent = (
        Finding("control", CheckState.OK, "it answers"),
        Finding("control", CheckState.FAULT, "connection refused"),
    )
    clock = WaitingClock()
    nodes = Finding("nodes", CheckState.FAULT, "down")  # not one of those that are waited for
    looks = iter([(silent, nodes), (silent, nodes), (answers, nodes)])
    assert once_started((silent,), lambda: next(looks), ("control",), clock) == (answers, nodes)
    assert clock.waited_s == 3 * LOOK_EVERY_S


def test_setup_does_not_wait_for_ever() -> None:
    silent = Finding("control", CheckState.FAULT, "connection refused")
    clock = WaitingClock()
    assert once_started((silent,), lambda: (silent,), ("control",), clock) == (silent,)
    assert STARTS_WITHIN_S <= clock.waited_s < STARTS_WITHIN_S + LOOK_EVERY_S


def test_what_a_restart_of_slurmctld_mends_is_no_fault_before_it() -> None:
    epilog, control = (
        Finding("Epilog", CheckState.FAULT, "none"),
        Finding("control", CheckState.FAULT, "connection refused"),
    )
    assert until_in_force((epilog, control)) == (
        (control,), "until then the doctor misses what slurm.conf says now: Epilog",
    )  # fmt: skip
    assert until_in_force((control,)) == ((control,), "")
