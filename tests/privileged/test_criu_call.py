"""Runc's request becomes options of CRIU's command line: all that is known, and nothing that is not."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.privileged.shim import criu_call
from gleaner.agent.privileged.shim.criu_call import options
from gleaner.agent.privileged.shim.criu_messages import NotUnderstood, field, fields


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 2**63 - 1) | st.binary(max_size=300)), max_size=10))
def test_a_message_comes_back_as_it_was_written(wanted: list[tuple[int, int | bytes]]) -> None:
    assert list(fields(b"".join(field(number, value) for number, value in wanted))) == wanted


@given(st.binary(max_size=100))
def test_no_bytes_do_more_than_fail_the_call(message: bytes) -> None:
    with contextlib.suppress(NotUnderstood):
        assert all(isinstance(word, str) for word in options(message, 1))


def test_an_option_that_is_not_known_fails_the_call() -> None:
    with pytest.raises(NotUnderstood, match="option 99"):
        options(field(99, 1), 7)
    with pytest.raises(NotUnderstood):
        options(field(98, b"x"), 7)


def test_runcs_folders_are_reached_through_its_own_descriptors() -> None:
    assert options(field(1, 5) + field(17, 6), 42) == ["-D", "/proc/42/fd/5", "-W", "/proc/42/fd/6"]


def test_a_text_stays_one_word_and_no_option_of_its_own() -> None:
    """The agent's text reaches the key of an inherited descriptor alone, and is glued to `fd[N]:`."""
    hostile = field(1, b"pipe:[1] --exec-cmd -- sh") + field(2, 1)
    assert options(field(27, hostile), 7) == ["--inherit-fd", "fd[1]:pipe:[1] --exec-cmd -- sh"]


def test_a_call_that_is_no_save_goes_to_criu_and_needs_nothing_of_ours(tmp_path: Path) -> None:
    """Whoever starts it by hand gets CRIU, with his own rights: it is not setuid, and trusts no variable for more."""
    package = Path(criu_call.__file__).parents[4]
    fake = tmp_path / "criu"
    fake.write_text('#!/bin/sh\necho criu "$@"\n')
    fake.chmod(0o755)
    script = (
        f"import sys; sys.path.insert(0, {str(package)!r}); "
        "from gleaner.agent.privileged.common import config; "
        "from gleaner.agent.privileged.shim import criu_call as criu; "
        f"config.load = lambda: config.Config(1, criu={str(fake)!r}); criu.main()"
    )
    said = subprocess.run(
        [sys.executable, "-IS", "-c", script, "--version"], capture_output=True, text=True, check=False,
        env={**os.environ, "GLEANER_OWN": "/etc"},
    )  # fmt: skip
    assert (said.returncode, said.stdout) == (0, "criu --version\n")


CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
SIBLING = f"""
import ctypes, os, subprocess, time
def sibling(code):  # as CRIU makes it: a child of its parent
    pid = ctypes.CDLL(None).syscall({CLONE}, 0x8000 | 17, 0, 0, 0, 0)
    if pid == 0:
        code()
        os._exit(0)
    return pid
def notified(action, pid=7):
    return subprocess.run(
        {str(Path(criu_call.__file__).with_name("notify.sh"))!r},
        env={{"CRTOOLS_SCRIPT_ACTION": action, "CRTOOLS_INIT_PID": str(pid), "GLEANER_OWN": os.getcwd()}},
    ).returncode
"""


COUNTS_LOOKS = """
class Look:
    def __mul__(self, _): return 20 * open("looks", "a").write("x")
criu._LOOK_S = Look()
"""
"""Looks after CRIU each 20 ms, and writes a letter for each look."""


def hear(tmp_path: Path, fake: str, prepare: str = "", *words: str, saved: int = 0) -> str:
    """Restore, or save, with this in the place of CRIU; return what came of it.

    The order of the container's freezer is in `freezer.state`.
    """
    package = Path(criu_call.__file__).parents[4]
    (tmp_path / "state.json").write_text(json.dumps({"cgroup_paths": {"freezer": str(tmp_path)}}))
    (tmp_path / "freezer.state").write_text("THAWED\n")
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "work").mkdir()
    script = f"""
import fcntl, os, socket, sys
sys.path.insert(0, {str(package)!r})
from gleaner.agent.privileged.shim import criu_call as criu
ours, runcs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
notified, criu._notify = criu._notify, lambda *said: True
criu._must_not_go_on = lambda *said: None
fcntl.flock(os.open(".", os.O_RDONLY), fcntl.LOCK_EX)
{prepare}
try:
    print(criu._run([sys.executable, "-c", {fake!r}, *sys.argv[1:]], ".", ours, 1, saved_pid={saved}))
except criu.NotUnderstood as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30,
        env={**os.environ, "GLEANER_CONTAINER": str(tmp_path)},
    )  # fmt: skip
    assert said.stderr == ""
    return said.stdout.strip()


@pytest.mark.slow
def test_criu_goes_when_the_process_that_it_restores_has_ended(tmp_path: Path) -> None:
    """CRIU hears nothing of its end, and waits: the process is a child of ours, as runc wants it."""
    fake = f"{SIBLING}\nsibling(lambda: os._exit(1))\ntime.sleep(60)"
    assert hear(tmp_path, fake) == "what CRIU restores has ended (is there too little memory?)"


@pytest.mark.parametrize(
    ("last", "came_of_it"),
    [("pre-dump", "not all processes could be stopped within 20 s"), ("network-lock", "0")],
    ids=["before all stand still", "after it"],
)
def test_a_criu_that_waits_for_a_process_in_vain_is_ended_before_it_changes_anything(
    tmp_path: Path, last: str, came_of_it: str
) -> None:
    prepare = f"{COUNTS_LOOKS}criu.time.monotonic = lambda: 21 if os.path.exists('late') else 0"
    fake = f"{SIBLING}\nnotified('pre-dump')\nnotified({last!r})\nopen('late', 'w').close()\n"
    # After it, it is looked at many times, and left alone.
    seen_often = "before = os.path.getsize('looks')\nwhile os.path.getsize('looks') < before + 10: time.sleep(0.01)"
    fake += "time.sleep(60)" if came_of_it != "0" else seen_often
    assert hear(tmp_path, fake, prepare, saved=1) == came_of_it


def test_what_cannot_be_held_back_is_not_restored(tmp_path: Path) -> None:
    """CRIU would let it go on at this point, so its action script ends it."""
    fake = f"""{SIBLING}
os.unlink("freezer.state")
pid = sibling(lambda: time.sleep(60))
notified('pre-resume', pid)
while os.path.exists(f"/proc/{{pid}}") and open(f"/proc/{{pid}}/stat").read().split()[2] != "Z":
    time.sleep(0.02)
"""
    assert hear(tmp_path, fake) == "0"
    assert "cannot be made ready to go on" in (tmp_path / "work" / "call.log").read_text()
