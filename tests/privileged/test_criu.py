"""What runc asks of CRIU becomes options of its command line: all that is known, and nothing that is not."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.privileged import criu
from gleaner.agent.privileged.criu import options
from gleaner.agent.privileged.protobuf import NotUnderstood, field, fields


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 2**63 - 1) | st.binary(max_size=300)), max_size=10))
def test_a_message_comes_back_as_it_was_written(wanted: list[tuple[int, int | bytes]]) -> None:
    assert list(fields(b"".join(field(number, value) for number, value in wanted))) == wanted


@given(st.binary(max_size=100))
def test_no_bytes_do_more_than_fail_the_call(message: bytes) -> None:
    with contextlib.suppress(NotUnderstood, UnicodeDecodeError, KeyError):
        assert all(isinstance(word, str) for word in options(message, 1))


def test_an_option_that_is_not_known_fails_the_call() -> None:
    with pytest.raises(NotUnderstood, match="option 99"):
        options(field(99, 1), 7)
    with pytest.raises(NotUnderstood):
        options(field(98, b"x"), 7)


def test_runcs_folders_are_reached_through_its_own_descriptors() -> None:
    assert options(field(1, 5) + field(17, 6), 42) == ["-D", "/proc/42/fd/5", "-W", "/proc/42/fd/6"]


def test_a_text_stays_one_word_and_no_option_of_its_own() -> None:
    """What comes from the agent is in the key of an inherited descriptor alone: it is glued to `fd[N]:`."""
    hostile = field(1, b"pipe:[1] --exec-cmd -- sh") + field(2, 1)
    assert options(field(27, hostile), 7) == ["--inherit-fd", "fd[1]:pipe:[1] --exec-cmd -- sh"]


def test_a_call_that_is_no_save_goes_to_criu_and_needs_nothing_of_ours(tmp_path: Path) -> None:
    """Whoever starts it by hand gets CRIU, with his own rights: it is not setuid, and trusts no variable for more."""
    package = Path(criu.__file__).parents[1]
    fake = tmp_path / "criu"
    fake.write_text('#!/bin/sh\necho criu "$@"\n')
    fake.chmod(0o755)
    script = (
        f"import sys; sys.path.insert(0, {str(package)!r}); from privileged import config, criu; "
        f"config.load = lambda: config.Config(1, criu={str(fake)!r}); criu.main()"
    )
    said = subprocess.run(
        [sys.executable, "-IS", "-c", script, "--version"], capture_output=True, text=True, check=False,
        env={**os.environ, "GLEANER_OWN": "/etc"},
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (0, "criu --version\n")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in a notification"])
def test_criu_and_what_it_has_started_go_when_runc_has_gone(tmp_path: Path, *, late: bool) -> None:
    """Else CRIU would wait for a word that never comes, and keep the container frozen."""
    package = Path(criu.__file__).parents[1]
    fake = 'sleep 60 & echo $! $$ >pids; [ "$1" = no ] || echo pre-dump >said; read -r answer <answered; sleep 60'
    script = f"""
import socket, sys, threading, time
sys.path.insert(0, {str(package)!r})
from privileged import criu
ours, runcs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
def leave():
    time.sleep(0.3) if {not late} else runcs.recv(99)
    runcs.close()
threading.Thread(target=leave).start()
try:
    criu._run(["sh", "-c", {fake!r}, "sh", {"yes" if late else "no"!r}], {str(tmp_path)!r}, ours, 1)
except (criu.NotUnderstood, OSError) as error:
    print("gone")
"""
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=20
    )
    assert said.stdout == "gone\n", said.stderr
    assert not any(alive(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_criu_goes_when_what_hears_it_is_killed(tmp_path: Path) -> None:
    """Else it would wait for an answer that never comes, and runc for CRIU, until the agent's end."""
    package = Path(criu.__file__).parents[1]
    script = f"""
import socket, sys
sys.path.insert(0, {str(package)!r})
from privileged import criu
ours, runcs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
criu._run(["sh", "-c", "echo $$ >pid.new; mv pid.new pid; exec sleep 60"], {str(tmp_path)!r}, ours, 1)
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path) as hearing:
        while not (tmp_path / "pid").exists():
            time.sleep(0.02)
        fake = int((tmp_path / "pid").read_text())
        assert alive(fake)
        hearing.kill()
        assert hearing.wait(20) == -9
    until_s = time.monotonic() + 20
    while alive(fake) and time.monotonic() < until_s:
        time.sleep(0.02)
    assert not alive(fake)
