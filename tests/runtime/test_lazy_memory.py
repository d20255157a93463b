"""The agent's side of memory that comes later, from a real storage to the memory of a real process, without CRIU."""

import json
import random
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.privileged.pages_harness import PAGES, PROCESS, START, content_of, image, mapping, pagemap, restored
from tests.privileged.root import only_root
from tests.privileged.waiting import wait_until

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.privileged.shim.lazy_maps import PAGE
from gleaner.agent.privileged.shim.page_server import BEGIN, BLOCK
from gleaner.agent.runtime.criu_streams import PREFIX
from gleaner.agent.runtime.lazy_memory import ORDER_PART, find_lazy_memory
from gleaner.agent.system.ipc import receive_all

MORE = 8 * PAGES
EAGER, STACK, INIT = 3, START // 2, START * 2
"""So many pages of a stack come before the others, and so does the memory of the init, at these places."""


def saved(folder: Path, *others: str, order: Sequence[int] = (), pages: int = PAGES) -> FolderArchive:
    """Return a checkpoint of the process of the harness, with some pages that come first."""
    storage = FolderStorage(folder)
    storage.prepare()
    images = {
        "mm-1.img": image(mapping(INIT, 1)),
        "pagemap-1.img": pagemap((INIT, 1, 6)),
        f"mm-{PROCESS}.img": image(mapping(STACK, EAGER, flags=0x122) + mapping(START, pages)),
        f"pagemap-{PROCESS}.img": pagemap((STACK, EAGER, 6), (START, pages, 6)),
        "pages-1.img": b"s" * EAGER * PAGE + b"".join(map(content_of, range(pages))),
    }
    with storage.draft("jobs/1/x") as draft:
        for name, content in {**images, **dict.fromkeys(others, images["pagemap-1.img"])}.items():
            draft.add(PREFIX + name, [content])
        if order:
            draft.add(ORDER_PART, [json.dumps([(PROCESS, START + page * PAGE) for page in order]).encode()])
        published = draft.publish({})
    return storage.open(published.key, published.digest)


def test_criu_gets_the_whole_memory_if_the_node_cannot_have_it_later(tmp_path: Path) -> None:
    archive = saved(tmp_path)
    memory: Any = find_lazy_memory(archive)
    for name in archive.parts:
        assert b"".join(memory.chunks(name.removeprefix(PREFIX))) == b"".join(archive.read(name))
    assert memory.wait()


def test_criu_gets_what_comes_first_without_the_mark_and_the_rest_not_at_all(tmp_path: Path) -> None:
    memory: Any = find_lazy_memory(saved(tmp_path))
    memory.begin(socket.socketpair()[0])
    images = {"pagemap-1.img": pagemap((INIT, 1, 4)), "pages-1.img": b"s" * EAGER * PAGE}
    images[f"pagemap-{PROCESS}.img"] = pagemap((STACK, EAGER, 4), (START, PAGES, 2))
    assert {name: b"".join(memory.chunks(name)) for name in images} == images


@pytest.mark.parametrize("other", ["pagemap-2.img", "userns-9.img"])
def test_several_processes_or_a_namespace_of_users_get_all_memory_first(tmp_path: Path, other: str) -> None:
    """A page that is missing at a fork would no longer be shared, and root does not hear of forks in a namespace."""
    assert find_lazy_memory(saved(tmp_path, other)) is None


def _sent(archive: FolderArchive, asked: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Return the place and the size of each block, in the order in which they come."""
    ours, theirs = socket.socketpair()
    memory: Any = find_lazy_memory(archive)
    memory.begin(ours)
    theirs.sendall(BEGIN + b"".join(BLOCK.pack(PROCESS, PAGE, START + page * PAGE) for page in asked))
    wait_until(lambda: len(memory.waits) == len(asked), "what is waited for is known")
    sent: list[tuple[int, int]] = []
    while sum(size for _, size in sent) < MORE * PAGE:
        _, size, address = BLOCK.unpack(receive_all(theirs, BLOCK.size))
        sent.append((address - START, len(receive_all(theirs, size))))
    theirs.close()
    return sent


def test_what_was_waited_for_the_last_time_comes_first(tmp_path: Path) -> None:
    pages = random.Random(7).sample(range(MORE), 20)
    sent = _sent(saved(tmp_path, order=[*pages, MORE + 7], pages=MORE))
    found = [next(number for number, (at, size) in enumerate(sent) if 0 <= page * PAGE - at < size) for page in pages]
    assert max(found) < len(set(found)), "a block that was not waited for came before one that was"
    assert {at for at, _ in sent} | {MORE * PAGE} == {0} | {at + size for at, size in sent}


def test_the_memory_that_follows_a_page_that_is_waited_for_comes_next(tmp_path: Path) -> None:
    """A process that reads on waits once, and not for each block."""
    waited = 2 * PAGES
    sent = _sent(saved(tmp_path, pages=MORE), asked=[waited])
    first = next(number for number, (at, size) in enumerate(sent) if at <= waited * PAGE < at + size)
    assert first < 10, "only blocks that were being read already come before it"
    places = [at for at, _ in sent[first:]]
    places = places[: places.index(max(places)) + 1]
    assert places == sorted(at for at, _ in sent)[-len(places) :], "a block that does not follow it was in between"


@only_root
def test_a_process_whose_block_has_rotted_is_killed_before_it_reads_it(tmp_path: Path) -> None:
    archive = saved(tmp_path)
    (pack,) = tmp_path.rglob("blocks.pack")
    content, half = pack.read_bytes(), pack.stat().st_size // 2
    pack.write_bytes(content[:1000] + bytes(half) + content[1000 + half :])  # the page map is before that
    with restored() as job:
        memory: Any = find_lazy_memory(archive)
        memory.begin(job.agent)
        job.go_on()
        assert "right" not in (job.read(), job.read())
        assert job.job.wait(60) == -9
        assert not memory.wait()
        assert isinstance(memory.failure, ArchiveBroken)
