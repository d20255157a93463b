"""Before CRIU saves: what is deleted and open must not lie behind a symbolic link, for CRIU would follow it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.privileged.root import only_root

from gleaner.agent.privileged.shim import unsavable
from gleaner.agent.privileged.shim.unsavable import shown

HOLDS = {
    "an open file": "held = open(d + '/x', 'w'); os.unlink(held.name)",
    "an open folder": "os.mkdir(d + '/x'); held = os.open(d + '/x', os.O_RDONLY); os.rmdir(d + '/x')",
    "its own folder": "os.mkdir(d + '/x'); os.chdir(d + '/x'); os.rmdir(d + '/x')",
    "a mapped file": (
        "f = open(d + '/x', 'w+b'); f.write(bytes(4096)); f.flush(); held = mmap.mmap(f.fileno(), 4096); f.close();"
        " os.unlink(d + '/x')"
    ),
    "an open pipe": "os.mkfifo(d + '/x'); held = os.open(d + '/x', os.O_RDWR); os.unlink(d + '/x')",
    "a file of a child": (
        "held = open(d + '/x', 'w'); os.unlink(held.name); child = os.fork(); child or time.sleep(60); held.close()"
    ),
}


@contextmanager
def holding(place: Path, how: str, then: str) -> Iterator[int]:
    """A process that holds `place/a/d/x`, which is deleted, and has then done something to what lies above it."""
    (place / "a" / "d").mkdir(parents=True)
    script = f"import mmap, os, sys, time; d = sys.argv[1] + '/a/d'; {how}; {then}; print(flush=True); time.sleep(60)"
    words = [sys.executable, "-c", script, str(place)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as one:
        try:
            assert one.stdout is not None
            one.stdout.readline()
            yield one.pid
        finally:
            os.killpg(one.pid, 9)


@only_root
@pytest.mark.parametrize("how", HOLDS.values(), ids=HOLDS)
def test_what_lies_behind_a_link_is_refused_in_one_line(tmp_path: Path, how: str) -> None:
    with holding(tmp_path, how, "os.rmdir(d); os.symlink('/etc', d)") as pid:
        why = unsavable.refused_files(pid)
    assert why is not None
    assert f"it holds {shown(f'{tmp_path}/a/d/x')} open, which is deleted" in why.text
    assert f"{shown(f'{tmp_path}/a/d')} is a symbolic link" in why.text
    assert "\n" not in why.text
    assert why.lasts


@only_root
def test_a_link_further_up_counts_too_since_criu_leaves_out_what_is_missing(tmp_path: Path) -> None:
    up = "os.rmdir(d); os.rmdir(os.path.dirname(d)); os.symlink('/etc', os.path.dirname(d))"
    with holding(tmp_path, HOLDS["an open file"], up) as pid:
        why = unsavable.refused_files(pid)
    assert why is not None
    assert f"{shown(f'{tmp_path}/a')} is a symbolic link" in why.text


@only_root
@pytest.mark.parametrize("then", ["pass", "os.rmdir(d)", "os.rmdir(d); open(d, 'w')"])
def test_what_is_deleted_behind_no_link_may_be_saved(tmp_path: Path, then: str) -> None:
    with holding(tmp_path, HOLDS["an open file"], then) as pid:
        assert unsavable.refused_files(pid) is None


@only_root
def test_a_name_that_says_deleted_itself_is_no_way_round(tmp_path: Path) -> None:
    how = "held = open(d + '/x (deleted)', 'w'); os.unlink(held.name)"
    with holding(tmp_path, how, "os.rmdir(d); os.symlink('/etc', d)") as pid:
        why = unsavable.refused_files(pid)
    assert why is not None
    assert "x (deleted)' open, which is deleted" in why.text


@only_root
def test_memory_with_the_name_of_a_path_is_no_file(tmp_path: Path) -> None:
    """CRIU knows such memory by its device. Its name may hold slashes."""
    (tmp_path / "link").symlink_to("/etc")
    with holding(tmp_path, f"held = os.memfd_create('{tmp_path}/link/x')", "pass") as pid:
        assert unsavable.refused_files(pid) is None


SENT = (
    "f = open(d + '/x', 'w'); os.unlink(f.name); import socket; pair = socket.socketpair();"
    " socket.send_fds(pair[0], [b'x'], [f.fileno()]); f.close()"
)
SENT_TWICE = "more = socket.socketpair(); socket.send_fds(more[0], [b'x'], [pair[1].fileno()]); pair[1].close()"


@only_root
@pytest.mark.parametrize("then", ["pass", SENT_TWICE])
def test_a_file_on_its_way_through_a_socket_is_no_way_round(tmp_path: Path, then: str) -> None:
    with holding(tmp_path, SENT, f"{then}; os.rmdir(d); os.symlink('/etc', d)") as pid:
        why = unsavable.refused_files(pid)
    assert why is not None
    assert "nobody has received yet" in why.text
    assert not why.lasts


@only_root
def test_a_file_that_was_received_is_looked_at_again(tmp_path: Path) -> None:
    with holding(tmp_path, SENT, "held = socket.recv_fds(pair[1], 9, 9)") as pid:
        assert unsavable.refused_files(pid) is None


HALF = "[open(f'{d}/{n}' + 'n' * 200, 'w').close() for n in range(500)]; held = os.scandir(d); next(held)"


@only_root
@pytest.mark.parametrize(
    "then",
    [
        "held.close()",
        "[os.unlink(f'{d}/{name}') for name in os.listdir(d)]",
        "import shutil; shutil.rmtree(d)",
        "held.close(); held = [os.open(one, os.O_RDONLY) for one in ('/proc', '/sys/kernel')];"
        " [os.lseek(one, 2, os.SEEK_SET) for one in held]",
        "held.close(); [os.unlink(f'{d}/{name}') for name in os.listdir(d)[9:]]; held = os.scandir(d); next(held)",
    ],
    ids=["closed", "no names left", "deleted", "of the kernel", "short"],
)
def test_a_folder_that_has_no_more_names_may_be_saved(tmp_path: Path, then: str) -> None:
    with holding(tmp_path, HALF, then) as pid:
        assert unsavable.refused_files(pid) is None


@given(st.lists(st.sampled_from(["a", "b", "link", "file", "..."]), min_size=1, max_size=6))
def test_no_way_through_a_link_is_overlooked(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Compared with the kernel's own walk over each part of the way that is there."""
    root = tmp_path_factory.getbasetemp() / "tree"
    if not root.exists():
        for folder in (root, root / "a", root / "a" / "b", root / "b"):
            folder.mkdir()
            (folder / "link").symlink_to(root)
            (folder / "file").touch()
    ways = ["/".join(steps[:end]) for end in range(1, len(steps))]
    expected = next((way for way in ways if (root / way).is_symlink()), None)
    assert unsavable.link_on_the_way(str(root), "/" + "/".join(steps)) == (expected and f"/{expected}")
