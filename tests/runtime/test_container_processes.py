"""The count of what a container's processes have written: real processes, in a folder that passes for /proc."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from gleaner.agent.runtime.container_processes import written_bytes
from gleaner.agent.runtime.interface import ContainerId

A, B = ContainerId("a"), ContainerId("b")
WRITES = """
import subprocess, sys
for line in sys.stdin:
    if line == "itself\\n":
        open("/dev/null", "wb").write(bytes(1000))
    elif line == "its child\\n":
        subprocess.run(["head", "-c", "5000", "/dev/zero"], stdout=subprocess.DEVNULL, check=True)
    else:
        sum(range(100_000))
    print("done", file=sys.stderr, flush=True)
"""
DONE = len("done\n")


def test_what_a_process_and_its_ended_children_write_is_counted_and_computing_is_not(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITES], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        place = tmp_path / "1"
        place.mkdir()
        (place / "cgroup").write_text("0::/gleaner/a\n")
        (place / "io").symlink_to(f"/proc/{child.pid}/io")
        counts = [written_bytes(A, processes=tmp_path) or 0]
        for what in ("nothing", "itself", "its child"):
            child.stdin.write(f"{what}\n")
            child.stdin.flush()
            assert child.stderr.readline() == "done\n"
            counts.append(written_bytes(A, processes=tmp_path) or 0)
        child.stdin.close()
    steps = [after - before - DONE for before, after in pairwise(counts)]
    assert steps[:2] == [0, 1000]
    assert steps[2] >= 5000


def test_the_count_of_a_container_of_which_a_process_hides_its_own_is_not_known(tmp_path: Path) -> None:
    for number, container in enumerate("aab"):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "cgroup").write_text(f"0::/docker-{container}.scope\n")
        (place / "io").write_text("rchar: 5\nwchar: 7\n")
    assert [written_bytes(one, processes=tmp_path) for one in (A, B)] == [14, 7]
    (tmp_path / "1" / "io").unlink()
    assert [written_bytes(one, processes=tmp_path) for one in (A, B)] == [7, 7], "it has ended"
    (tmp_path / "1" / "io").mkdir()
    assert [written_bytes(one, processes=tmp_path) for one in (A, B)] == [None, 7]
