"""Head room above a container's limit during its restore: when it is needed, and that only one container has it."""

import json
import mmap
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from gleaner.agent.privileged.shim import head_room
from gleaner.agent.privileged.shim.head_room import Need, lent, need
from gleaner.agent.privileged.shim.seal import Broken
from gleaner.agent.system.ipc import HandshakeFailed

MIB = 2**20
MEASURED = [  # MiB of memory, of all once it went on and at most; KiB of page tables; processes, threads
    (119.1, 119.8, 129.6, 290, 1, 1),
    (35.1, 63.0, 191.3, 200 * 55, 200, 200),
    (6.4, 12.6, 32.9, 55, 1, 201),
]


def test_a_need_is_what_was_measured_and_a_little_more() -> None:
    for memory, after, peak, tables, count, threads in MEASURED:
        found = need(int(memory * MIB), tables * 2**10, 0, count=count, threads=threads)
        assert after < found.after / MIB < after * 1.1
        assert peak < found.peak / MIB < peak * 1.15


def test_what_would_not_fit_into_its_limit_or_the_head_room_is_refused() -> None:
    assert Need(128 * MIB, 192 * MIB, 128 * MIB).refusal() is None
    for refused in (Need(128 * MIB + 1, 140 * MIB, 128 * MIB), Need(60 * MIB, 192 * MIB + 1, 128 * MIB)):
        assert "its limit of 128 MiB allows: give it at least 129 MiB (memory_mib)" in str(refused.refusal())


def test_only_what_child_and_parent_share_is_counted_once() -> None:
    """In real processes: 20 MiB that two children have of their parent, also as if that had gone."""
    with mmap.mmap(-1, 20 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as kept:
        kept.write(os.urandom(20 * MIB))
        with multiprocessing.get_context("fork").Pool(2):
            pids = [os.getpid(), *(child.pid or 0 for child in multiprocessing.active_children())]
            areas = {pid: head_room._areas(pid) for pid in pids}
    with_parent = head_room.private_after(areas, dict.fromkeys(pids[1:], pids[0]))
    assert head_room.private_after(areas, {}) - with_parent >= 40 * MIB


def test_one_container_of_a_node_has_room_at_a_time(tmp_path: Path) -> None:
    config, lock = tmp_path / "config.json", str(tmp_path / "lock")
    config.write_text(json.dumps({"linux": {"resources": {"memory": {"limit": 128 * MIB, "swap": 128 * MIB}}}}))
    with lent(str(tmp_path), lock, time.time() + 60, is_wanted=True):
        assert config.read_text().count(str(192 * MIB)) == 2
        with pytest.raises(HandshakeFailed, match="others"), lent(str(tmp_path), lock, 0, is_wanted=True):
            pass


@pytest.mark.parametrize("names", [("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), ("memory.max",)])
def test_the_limit_is_lowered_again_unless_more_is_in_use(tmp_path: Path, names: tuple[str, ...]) -> None:
    folders = {"memory" if len(names) == 2 else "": str(tmp_path)}
    for name in names:
        (tmp_path / name).write_text(str(192 * MIB))
    head_room.lower_limit(folders, 128 * MIB)
    assert {(tmp_path / name).read_text() for name in names} == {str(128 * MIB)}
    (tmp_path / "memory.stat").write_text(f"anon {120 * MIB}\nshmem {9 * MIB}\n")
    if len(names) == 2:  # the kernel refuses by itself
        (tmp_path / names[0]).unlink()
        (tmp_path / names[0]).mkdir()
    with pytest.raises(Broken, match="more memory than its limit"):
        head_room.lower_limit(folders, 128 * MIB)
