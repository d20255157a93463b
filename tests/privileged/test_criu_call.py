"""Runc's request becomes options of CRIU's command line: all that is known, and nothing that is not."""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.privileged.scripts import python
from tests.privileged.waiting import wait_until

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


def ends(pid: int) -> bool:
    """Return True once the process has ended, which a signal only begins."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([ended], [], [], 30)[0])
    finally:
        os.close(ended)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in a notification"])
def test_criu_and_what_it_has_started_go_when_runc_has_gone(tmp_path: Path, *, late: bool) -> None:
    """Else CRIU would wait for a word that never comes, and keep the container frozen."""
    fake = (
        'sleep 60 & echo $! $$ >pids; [ "$1" = no ] || echo pre-dump >notifications; read -r answer <answers; sleep 60'
    )
    script = f"""
import fcntl, os, socket, sys, threading, time
from gleaner.agent.privileged.shim import criu_call as criu
ours, runcs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
fcntl.flock(os.open(".", os.O_RDONLY), fcntl.LOCK_EX)  # gleaner-runc is there
def leave():
    while {not late} and not (os.path.exists("pids") and os.path.getsize("pids")):
        time.sleep(0.02)
    {not late} or runcs.recv(99)
    runcs.close()
threading.Thread(target=leave).start()
try:
    criu._run(["sh", "-c", {fake!r}, "sh", {"yes" if late else "no"!r}], {str(tmp_path)!r}, ours, 1)
except (criu.NotUnderstood, OSError) as error:
    print("gone")
"""
    said = subprocess.run(
        python(script), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=20,
        env={**os.environ, "GLEANER_CONTAINER": str(tmp_path)},
    )  # fmt: skip
    assert said.stdout == "gone\n", said.stderr
    assert all(ends(int(pid)) for pid in (tmp_path / "pids").read_text().split())


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
    (tmp_path / "state.json").write_text(json.dumps({"cgroup_paths": {"freezer": str(tmp_path)}}))
    (tmp_path / "freezer.state").write_text("THAWED\n")
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "work").mkdir()
    script = f"""
import fcntl, os, socket, sys
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
        python(script, *words), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30,
        env={**os.environ, "GLEANER_CONTAINER": str(tmp_path)},
    )  # fmt: skip
    assert said.stderr == ""
    return said.stdout.strip()


@pytest.mark.slow
def test_criu_goes_when_the_process_that_it_restores_has_ended(tmp_path: Path) -> None:
    """CRIU hears nothing of its end, and waits: the process is a child of ours, as runc wants it."""
    fake = f"{SIBLING}\nsibling(lambda: os._exit(1))\ntime.sleep(60)"
    assert hear(tmp_path, fake) == "what CRIU restores has ended (is there too little memory?)"


@pytest.mark.slow
def test_criu_goes_when_the_process_that_it_traces_has_ended(tmp_path: Path) -> None:
    """To nobody but CRIU the kernel says so, and in the last step CRIU does not listen."""
    wait = "while not os.path.exists('traced'): time.sleep(0.02)"
    fake = f"""{SIBLING}
def restored():
    {wait}
    os._exit(1)
pid = sibling(restored)
assert ctypes.CDLL(None).ptrace(0x4206, pid, None, None) == 0  # PTRACE_SEIZE
open('traced', 'w').close()
time.sleep(60)
"""
    assert hear(tmp_path, fake) == "what CRIU restores has ended (is there too little memory?)"


def test_criu_goes_when_gleaner_runc_has_gone(tmp_path: Path) -> None:
    assert hear(tmp_path, "import time; time.sleep(60)", "criu.is_held = lambda own: False") == "gleaner-runc has gone"


def test_criu_undoes_a_save_when_runc_has_gone(tmp_path: Path) -> None:
    """Killed in the middle of it, it might leave the job in disorder."""
    fake = f"""{SIBLING}
while not os.path.exists('looks') or os.path.getsize('looks') < 2: time.sleep(0.01)  # it has seen that runc has gone
open('answer', 'w').write(str(notified('post-dump')))
os._exit(3)
"""
    prepare = f"{COUNTS_LOOKS}criu._notify = notified; criu.unsavable.refused_files = lambda pid: None; runcs.close()"
    assert hear(tmp_path, fake, prepare, saved=1) == "3"
    assert (tmp_path / "answer").read_text() == "1"


@pytest.mark.parametrize(("is_held", "left"), [(True, "FROZEN\n"), (False, "THAWED\n")])
def test_a_save_of_which_gleaner_runc_was_killed_leaves_nothing_frozen(
    tmp_path: Path, is_held: bool, left: str
) -> None:
    """Its agent has let it go on meanwhile, and CRIU, as it found it frozen, freezes it again."""
    fake = "open('freezer.state', 'w').write('FROZEN\\n'); raise SystemExit(3)"
    prepare = f"criu.is_held = lambda own: {is_held}"
    assert hear(tmp_path, fake, prepare, "--freeze-cgroup", str(tmp_path), saved=1) == "3"
    assert (tmp_path / "freezer.state").read_text() == left


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


def test_what_a_killed_criu_has_brought_back_goes_at_once(tmp_path: Path) -> None:
    """Before it is looked for: it goes on when CRIU is gone, and nobody may have judged it."""
    fake = f"""{SIBLING}
pid = sibling(lambda: time.sleep(60))
open('pid', 'w').write(str(pid))
notified('post-restore', pid)
os.kill(os.getpid(), 9)
"""
    assert hear(tmp_path, fake, "criu.processes.kill_descendants = lambda pid: None") == "-9"
    assert ends(int((tmp_path / "pid").read_text()))


def test_what_cannot_be_held_back_is_not_restored(tmp_path: Path) -> None:
    """CRIU would let it go on at this point, or wait for ever, so both are ended."""
    fake = f"""{SIBLING}
os.unlink("freezer.state")
pid = sibling(lambda: time.sleep(60))
open('pid', 'w').write(str(pid))
notified('pre-resume', pid)
time.sleep(60)
"""
    assert hear(tmp_path, fake) == "1"
    assert ends(int((tmp_path / "pid").read_text()))
    assert "cannot be made ready to go on" in (tmp_path / "work" / "call.log").read_text()


def test_what_a_killed_criu_has_brought_back_goes_with_it(tmp_path: Path) -> None:
    back = "open('pid.new', 'w').write(str(os.getpid())), os.rename('pid.new', 'pid'), time.sleep(60)"
    fake = f"{SIBLING}\nsibling(lambda: ({back}))\nwhile not os.path.exists('pid'): pass\nos.kill(os.getpid(), 9)"
    assert hear(tmp_path, fake) == "-9"
    assert ends(int((tmp_path / "pid").read_text()))


@contextlib.contextmanager
def called(
    tmp_path: Path, fake: str, request: bytes = field(1, criu_call.RESTORE) + field(2, field(13, b"/"))
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Yield `criu_call` as runc calls it, for a restore by default, with this program as CRIU; and runc's socket."""
    (tmp_path / "criu").write_text(fake)
    (tmp_path / "criu").chmod(0o755)
    (tmp_path / "work").mkdir()
    script = f"""
import sys
from gleaner.agent.privileged.common import config; from gleaner.agent.privileged.shim import criu_call as criu
config.load = lambda: config.Config(1, criu={str(tmp_path / "criu")!r})
criu.mount_confinement.enter = lambda *said: None
criu.main()
"""
    ours, runcs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with runcs, subprocess.Popen(
        python(script, "swrk", str(ours.fileno())), cwd=tmp_path, pass_fds=[ours.fileno()],
        env={**os.environ, "GLEANER_OWN": str(tmp_path), "GLEANER_CONTAINER": str(tmp_path), "GLEANER_UID": "1"},
    ) as hearing:  # fmt: skip
        ours.close()
        runcs.settimeout(30)
        runcs.send(request)
        try:
            yield hearing, runcs
        finally:
            hearing.kill()


def test_what_nobody_knows_of_does_not_go_on(tmp_path: Path) -> None:
    """gleaner-runc, and perhaps runc, have gone when CRIU has just brought it back."""
    fake = f"""#!{sys.executable}
{SIBLING}
import sys
if sys.argv[1] == "restore":
    pid = sibling(lambda: time.sleep(60))
    open("pid", "w").write(str(pid))
    open(sys.argv[sys.argv.index("--pidfile") + 1], "w").write(str(pid))
"""
    with called(tmp_path, fake) as (hearing, _):
        assert hearing.wait(30) == 1
    assert ends(int((tmp_path / "pid").read_text()))


def test_what_was_looked_at_by_nobody_does_not_go_on(tmp_path: Path) -> None:
    """At this one notification CRIU goes on whatever it is told."""
    for pipe in ("notifications", "answers"):
        os.mkfifo(tmp_path / pipe)
    with subprocess.Popen(["sleep", "60"]) as restored:
        said = subprocess.run(
            [Path(criu_call.__file__).with_name("notify.sh")], check=False, timeout=20,
            env={
                "CRTOOLS_SCRIPT_ACTION": "pre-resume",
                "CRTOOLS_INIT_PID": str(restored.pid),
                "GLEANER_OWN": str(tmp_path),
            },
        )  # fmt: skip
        assert said.returncode == 1
        assert restored.wait(20) == -9


@pytest.mark.parametrize("is_waiting", [False, True])
def test_criu_hears_a_no_when_what_answers_it_is_killed(tmp_path: Path, is_waiting: bool) -> None:
    """Else it would wait for an answer that never comes, and runc for CRIU, until the agent's end."""
    notify = Path(criu_call.__file__).with_name("notify.sh")
    fake = f"""
{"" if is_waiting else ": >here; while [ ! -e gone ]; do sleep 0.02; done"}
CRTOOLS_SCRIPT_ACTION=post-dump GLEANER_OWN={tmp_path} {notify}
echo $? >status.new; mv status.new status
"""
    script = f"""
import socket, sys
from gleaner.agent.privileged.shim import criu_call as criu
ours, runcs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
criu._notify = lambda *said: (open("here", "w").close(), ours.recv(1))
criu._run(["sh", "-c", {fake!r}], {str(tmp_path)!r}, ours, 1)
"""
    with subprocess.Popen(python(script), cwd=tmp_path) as hearing:
        wait_for(tmp_path / "here")
        hearing.kill()
        assert hearing.wait(60) == -9
    (tmp_path / "gone").touch()
    wait_for(tmp_path / "status")
    assert (tmp_path / "status").read_text() == "1\n"


def wait_for(path: Path) -> None:
    wait_until(path.exists, f"{path.name} is there")
