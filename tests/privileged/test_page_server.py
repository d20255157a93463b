"""Memory that comes while a real process runs: each byte is right, or the process is killed before it reads it."""

import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.privileged.pages_harness import OWN, PAGES, STACK, START, Restored, image, mapping, pagemap, restored
from tests.privileged.root import only_root
from tests.privileged.waiting import wait_until

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.shim import page_watchdog, transfer
from gleaner.agent.privileged.shim.criu_messages import NotUnderstood
from gleaner.agent.privileged.shim.lazy_maps import PAGE, find_plan, later_ranges
from gleaner.agent.privileged.shim.page_server import BLOCK, MOST_BYTES
from gleaner.agent.system.ipc import HandshakeFailed

LOST = "check(range(PAGES // 4), zero=True)\ncheck(range(PAGES // 4, PAGES))"
DOES = {
    "reads what was never written": "check(range(PAGES, PAGES + 16), zero=True)",
    "forks": "in_child(lambda: in_child(lambda: check(range(PAGES))))\ncheck(range(PAGES - 1, -1, -1))",
    "moves": "libc.mremap(START, SIZE // 2, SIZE // 2, 3, NEW)\ncheck(range(PAGES // 2), NEW)\n"
    "check(range(PAGES // 2, PAGES))",
    "throws away": f"libc.madvise(START, SIZE // 4, 4)\n{LOST}",
    "unmaps": f"libc.munmap(START, SIZE // 4)\nlibc.mmap(START, SIZE // 4, 3, 0x100022, 2**64 - 1, 0)\n{LOST}",
    "has its mapping cut in two": "libc.mprotect(START + 5 * PAGE, 3 * PAGE, 1)\ncheck(range(PAGES))",
    "reads with threads while it moves and forks": """
wrong = []
threading.excepthook = wrong.append
threads = [threading.Thread(target=check, args=(range(at, PAGES, 8),)) for at in range(PAGES // 2, PAGES // 2 + 8)]
for thread in threads: thread.start()
for number in range(8):
    length, new = SIZE // 16, NEW + number * SIZE
    libc.mremap(START + number * length, length, length, 3, new)
    in_child(lambda: check(range(number * PAGES // 16, (number + 1) * PAGES // 16), new - number * length))
for thread in threads: thread.join()
assert not wrong, wrong
""",
}


@only_root
@pytest.mark.parametrize("fills", [True, False], ids=["filled", "on demand"])
@pytest.mark.parametrize("does", DOES.values(), ids=DOES)
def test_a_process_reads_what_was_saved_whatever_it_does(does: str, fills: bool) -> None:
    with restored(f"{does}\nprint('right', flush=True)\ninput()") as job:
        feeding = job.feed(fills=fills)
        job.go_on()
        assert job.read() == "right"
        if fills:
            feeding.join(60)
            wait_until(lambda: not Path(f"/proc/{job.watchdog}").exists(), "the watchdog ends when all is there")
            assert job.job.poll() is None


def _kill(name: str) -> Callable[[Restored], object]:
    return lambda job: os.kill(getattr(job, name), signal.SIGKILL)


def _send(length: int, start: int, process: int = 7) -> Callable[[Restored], object]:
    def send(job: Restored) -> None:
        with suppress(OSError):  # the page server does not read to the end
            job.agent.sendall(BLOCK.pack(process, length, start) + bytes(length))

    return send


ENDS = {
    "the page server is killed": _kill("server"),
    "the watchdog is killed": _kill("watchdog"),
    "the node is shut down": lambda job: [os.kill(one, signal.SIGTERM) for one in (job.watchdog, job.server)],
    "the agent goes": lambda job: job.agent.shutdown(socket.SHUT_RDWR),
    "a block of no length": _send(0, START),
    "a block of half a page": _send(PAGE // 2, START),
    "a block that is too long": _send(MOST_BYTES + PAGE, START),
    "a block beside a page": _send(PAGE, START + 8),
    "a block past the end": _send(2 * PAGE, START + (PAGES - 1) * PAGE),
    "a block elsewhere": _send(PAGE, START - PAGE),
    "a block beyond all addresses": _send(PAGE, 2**64 - PAGE),
    "a block of another process": _send(PAGE, START, process=8),
    "no block comes for a minute": pytest.param(lambda _: None, marks=pytest.mark.extended),
}


@only_root
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_process_whose_memory_does_not_come_is_killed_before_it_reads_on(end: Callable[[Restored], object]) -> None:
    with restored() as job:
        job.go_on()
        assert job.read() == "runs"
        (job.cgroup / "freezer.state").write_text("FROZEN")
        end(job)
        assert (job.read(), job.job.wait(60)) == ("", -signal.SIGKILL)


@only_root
def test_a_restore_that_fails_leaves_no_page_server() -> None:
    with restored() as job:  # all its memory never comes, with which it would need no page server
        job.go_on(is_armed=False)
        wait_until(lambda: not Path(f"/proc/{job.server}").exists(), "the page server has ended")
        assert job.job.wait(60) == -signal.SIGKILL


@only_root
def test_the_page_server_may_be_killed_for_lack_of_memory_and_takes_only_so_much() -> None:
    with restored() as job:
        assert Path(f"/proc/{job.server}/oom_score_adj").read_text() != "-1000\n"
        assert "Max address space         1073741824" in Path(f"/proc/{job.server}/limits").read_text()


def test_a_container_counts_as_dead_only_if_that_can_be_read(tmp_path: Path) -> None:
    above, folder = tmp_path / "above", tmp_path / "above" / "container"
    folder.mkdir(parents=True)
    assert not page_watchdog._is_dead(str(folder)), "its processes cannot be read"
    folder.rmdir()
    assert not page_watchdog._is_dead(str(folder)), "the folder above is no cgroup: perhaps nothing is mounted there"
    (above / "cgroup.procs").write_text("1\n")
    assert page_watchdog._is_dead(str(folder))
    folder.mkdir()
    (folder / "cgroup.procs").write_text("7\n")
    assert not page_watchdog._is_dead(str(folder))
    (folder / "cgroup.procs").write_text("")
    assert page_watchdog._is_dead(str(folder))


def test_a_user_job_that_asks_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint is sealed, and what came later would not be."""
    monkeypatch.setattr(page_watchdog, "serving", lambda *_: pytest.fail("a page server for a user job"))
    nothing: Any = None
    for owner in (transfer._Owner(4301, b"k" * 32), transfer._Owner(4301, b""), transfer._Owner(4200, b"k" * 32)):
        with (
            pytest.raises(HandshakeFailed, match="a user job"),
            transfer._serving_pages(Config(4200), nothing, "/nowhere", nothing, owner=owner, wish=True),
        ):
            pass


def test_older_kernels_restore_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    for release, is_new in (("4.18.0-553.el8", False), ("5.14.0-503.el9", False), ("5.15.0-91-generic", True)):
        monkeypatch.setattr("platform.release", lambda value=release: value)
        assert page_watchdog.is_possible(Config(4200, criu="/bin/true")) == is_new
    assert not page_watchdog.is_possible(Config(4200, criu="/bin/false"))
    assert not page_watchdog.is_possible(Config(4200, criu="/nowhere"))


@pytest.mark.parametrize("runs", [[(1, 1, 2)], [(START, 0, 2)], [(START, 2, 2), (START, 1, 2)], [(2**57, 1, 2)]])
def test_a_page_map_that_no_process_has_is_refused(runs: list[tuple[int, int, int]]) -> None:
    with pytest.raises(NotUnderstood):
        later_ranges(pagemap(*runs))


KINDS = {
    "own memory": (0x22, OWN, 0, True),
    "a stack": (0x22, OWN | STACK, 0, False),
    "a stack that grows": (0x122, OWN, 0, False),
    "locked": (0x2022, OWN, 0, False),
    "huge": (0x40022, OWN, 0, False),
    "of a file": (0x2, OWN & 1, 0, False),
    "not for children": (0x22, OWN, 1 << 10, False),
    "zeros for children": (0x22, OWN, 1 << 18, False),
}


@pytest.mark.parametrize(("flags", "status", "advice", "is_lazy"), KINDS.values(), ids=KINDS)
def test_own_memory_comes_later_and_the_rest_is_unmarked(flags: int, status: int, advice: int, is_lazy: bool) -> None:
    """With the mark, CRIU would leave out pages that are in its stream."""
    own = image(mapping(START, 8, flags, status, advice))
    pages = pagemap((START, 2, 4), (START + 2 * PAGE, 3, 6), (START + 5 * PAGE, 1, 1))
    plan = find_plan(1, pages, own, b"")
    later = (START + 2 * PAGE, 3 * PAGE, 2 * PAGE)
    first = (START, 2 * PAGE, 0)
    assert (plan.eager, plan.lazy) == (([first], [later]) if is_lazy else ([first, later], []))
    assert plan.pagemap == pagemap((START, 2, 4), (START + 2 * PAGE, 3, 2 if is_lazy else 4), (START + 5 * PAGE, 1, 1))
    assert plan.pages == "pages-1.img"
    assert not find_plan(1, pages, own, own).lazy, "another process shares it, perhaps since a fork"
