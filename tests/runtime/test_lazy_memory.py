"""The agent's side of memory that comes later, from a real storage to the memory of a real process, without CRIU."""

import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path

from tests.privileged.pages_harness import (
    LOOK,
    OWN,
    PAGES,
    PROCESS,
    STACK,
    START,
    content_of,
    image,
    mapping,
    pagemap,
    restored,
)  # fmt: skip
from tests.privileged.root import only_root

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.privileged.shim.lazy_maps import PAGE
from gleaner.agent.privileged.shim.page_server import BEGIN, BLOCK
from gleaner.agent.runtime.criu_streams import PREFIX
from gleaner.agent.runtime.lazy_memory import ORDER_PART, LazyMemory
from gleaner.agent.system.ipc import receive_all

EAGER = 3
"""So many pages of a stack come before the others."""


def saved(folder: Path, *others: str, order: Sequence[int] = (), pages: int = PAGES) -> FolderArchive:
    """Return a checkpoint of the process of the harness, with some pages that come first."""
    storage = FolderStorage(folder)
    storage.prepare()
    stack = START // 2
    images = {
        f"mm-{PROCESS}.img": image(mapping(stack, EAGER, 0x22, OWN | STACK) + mapping(START, pages, 0x22, OWN)),
        f"pagemap-{PROCESS}.img": pagemap((stack, EAGER, 6), (START, pages, 6)),
        "pages-1.img": b"s" * EAGER * PAGE + b"".join(map(content_of, range(pages))),
    }
    with storage.draft("jobs/1/x") as draft:
        for name, content in {**images, **dict.fromkeys(others, b"")}.items():
            draft.add(PREFIX + name, [content])
        if order:
            draft.add(ORDER_PART, [json.dumps([(PROCESS, START + page * PAGE) for page in order]).encode()])
        published = draft.publish({})
    return storage.open(published.key, published.digest)


def test_criu_gets_the_whole_memory_if_the_node_cannot_have_it_later(tmp_path: Path) -> None:
    archive = saved(tmp_path)
    memory = LazyMemory(archive)
    for name in archive.parts:
        assert b"".join(memory.chunks(name.removeprefix(PREFIX))) == b"".join(archive.read(name))
    assert memory.wait()


def test_a_job_with_a_namespace_of_users_gets_all_its_memory_first(tmp_path: Path) -> None:
    """Root does not hear of its forks."""
    assert LazyMemory(saved(tmp_path, "userns-9.img")).plans == {}


def _sent(connection: socket.socket, pages: int) -> list[tuple[int, int]]:
    """Return the place and the size of each block, in the order in which they come."""
    sent: list[tuple[int, int]] = []
    while sum(size for _, size in sent) < pages * PAGE:
        _, size, address = BLOCK.unpack(receive_all(connection, BLOCK.size))
        sent.append((address - START, len(receive_all(connection, size))))
    return sent


def test_what_was_waited_for_the_last_time_comes_first(tmp_path: Path) -> None:
    pages = random.Random(7).sample(range(PAGES), 20)
    archive = saved(tmp_path, order=[*pages, PAGES + 7])
    ours, theirs = socket.socketpair()
    LazyMemory(archive).begin(ours)
    theirs.sendall(BEGIN)
    sent = _sent(theirs, PAGES)
    theirs.close()
    found = [next(number for number, (at, size) in enumerate(sent) if 0 <= page * PAGE - at < size) for page in pages]
    assert max(found) < len(set(found)), "a block that was not waited for came before one that was"
    assert {at for at, _ in sent} | {PAGES * PAGE} == {0} | {at + size for at, size in sent}


def test_the_memory_that_follows_a_page_that_is_waited_for_comes_next(tmp_path: Path) -> None:
    """A process that reads on waits once, and not for each block."""
    waited = 2 * PAGES
    archive = saved(tmp_path, pages=8 * PAGES)
    ours, theirs = socket.socketpair()
    LazyMemory(archive).begin(ours)
    theirs.sendall(BEGIN + BLOCK.pack(PROCESS, PAGE, START + waited * PAGE))
    sent = _sent(theirs, 8 * PAGES)
    theirs.close()
    first = next(number for number, (at, size) in enumerate(sent) if at <= waited * PAGE < at + size)
    places = [at for at, _ in sent[first:]]
    places = places[: places.index(max(places)) + 1]
    assert places == sorted(at for at, _ in sent)[-len(places) :], "a block that does not follow it was in between"


def _flip(folder: Path) -> None:
    (pack,) = folder.rglob("blocks.pack")
    content = bytearray(pack.read_bytes())
    for at in range(1000, len(content) // 2, 5000):
        content[at] ^= 1
    pack.write_bytes(content)


@only_root
def test_a_process_whose_block_has_rotted_is_killed_before_it_reads_it(tmp_path: Path) -> None:
    archive = saved(tmp_path)
    _flip(tmp_path)
    with restored(LOOK) as job:
        memory = LazyMemory(archive)
        memory.begin(job.agent)
        job.go_on()
        assert "right" not in (job.read(), job.read())
        assert job.job.wait(60) == -9
        assert not memory.wait()
        assert isinstance(memory.failure, ArchiveBroken)
        assert not memory.is_sent
