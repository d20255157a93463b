"""Reuse blocks of the previous checkpoint. A new archive shares the packs of the older one through hard links.

So the older archive can be deleted at any time. A pack of which the new archive uses less than half is not shared,
since a few blocks would then keep a whole old checkpoint on the disk. Instead, the blocks in use are copied in their
stored form.

Each block is read and verified before the new archive relies on it. Otherwise a damaged block would break the new
archive as well, and every later one. A pack with such a block is not shared. A block that the older archive has
verified since it was opened is not read again.
"""

import os
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import structlog

from gleaner.agent.checkpoints.archive import FolderArchive, footer_of, open_pack, pack_name
from gleaner.agent.checkpoints.chunking import MOST_BYTES, PACKS, Block, Blocks, Damaged
from gleaner.agent.checkpoints.pack_writer import Pack
from gleaner.agent.checkpoints.workers import Workers
from gleaner.agent.system.openat import closing_fd, pread_all, pread_into

log = structlog.get_logger()


class KnownBlocks:
    """The blocks that a new archive can share with an older one."""

    def __init__(
        self,
        blocks: Iterable[Blocks],
        packs: Mapping[int, int],
        pack_bytes: Mapping[int, int],
        *,
        files: Mapping[int, int],
        verified: bytes,
        workers: Workers,
    ) -> None:
        """Take the older archive's blocks and packs.

        `packs` maps the older archive's pack numbers to those of the new one. `pack_bytes` maps the new numbers to
        sizes, and `files` maps them to open files, which `end` closes. `verified` contains a 1 for each block that has
        just been verified.
        """
        self._blocks = Blocks(b"".join(part.records for part in blocks))
        self._packs = packs
        self._pack_bytes = pack_bytes
        numbers = sorted(range(len(self._blocks)), key=self._blocks.digest)
        self._by_digest = array("I", numbers)
        self._in_use = bytearray(len(numbers))
        self._verified = verified
        self._files = dict(files)
        self._workers = workers
        self._own = threading.local()
        self.rotten: set[int] = set()
        """The packs with a damaged block, by the new archive's numbers."""

    def find(self, digest: bytes, buffer: bytearray, start: int) -> Block | None:
        """Return the block with this digest as the new archive refers to it, or None if it is missing or damaged.

        The block's content is in the buffer, starting at `start`. Several threads can call this.
        """
        at = bisect_left(self._by_digest, digest, key=self._blocks.digest)
        if at == len(self._by_digest):
            return None
        number = self._by_digest[at]
        block = self._blocks[number]
        if block.digest != digest or block.stored_bytes == 0 or block.pack not in self._packs:
            return None
        pack = self._packs[block.pack]
        if not self._in_use[number]:
            if pack in self.rotten:
                return None
            if not self._verified[number] and not self._is_stored_well(block, pack, buffer, start):
                log.warning("a block of an older checkpoint is damaged and is stored again", pack=pack)
                self.rotten.add(pack)
                return None
            self._in_use[number] = True
        return block._replace(pack=pack)

    def _is_stored_well(self, block: Block, pack: int, buffer: bytearray, start: int) -> bool:
        """Return True if the stored block is still as it was written.

        A raw block needs no second hash, because it is compared with the content that has just been hashed.
        """
        file = self._files[pack]
        try:
            if block.stored_bytes == block.size_bytes:
                room = self._room()[: block.size_bytes]
                return pread_into(file, room, block.offset) and buffer.startswith(room, start)
            self._workers.decode(block, pread_all(file, block.stored_bytes, block.offset))
        except (OSError, Damaged):
            return False
        return True

    def _room(self) -> memoryview:
        """Return the calling thread's buffer for one block, as new memory for each block would cost more than reading
        the block."""
        if not hasattr(self._own, "room"):
            self._own.room = memoryview(bytearray(MOST_BYTES))
        room: memoryview = self._own.room
        return room

    def end(self) -> None:
        """Close the files. Call this only when no thread looks for blocks any more."""
        for file in self._files.values():
            with suppress(OSError):
                os.close(file)
        self._files.clear()

    def settle(self, folder: int, parts: Sequence[Blocks], pack: Pack) -> list[int]:
        """Share the packs of which enough is used, and copy blocks of the others into the draft's own pack.

        Return the sizes of the shared packs, from number 1 on, with 0 for a missing one. Raises `Damaged`.
        """
        bytes_in_use = self._bytes_in_use()
        shared_bytes = [0] * (PACKS - 1)
        for number, size_bytes in self._pack_bytes.items():
            is_whole = number not in self.rotten
            if bytes_in_use[number] and is_whole and is_worth_keeping(bytes_in_use[number], size_bytes):
                shared_bytes[number - 1] = size_bytes
                continue
            if bytes_in_use[number]:
                _copy(self._files[number], number, parts, pack, self._workers)
            os.unlink(pack_name(number), dir_fd=folder)
        return shared_bytes

    def _bytes_in_use(self) -> dict[int, int]:
        """Return the stored bytes in use for each shared pack. Blocks of a dropped part are included."""
        bytes_in_use = dict.fromkeys(self._pack_bytes, 0)
        for block, is_in_use in zip(self._blocks, self._in_use, strict=True):
            if is_in_use:
                bytes_in_use[self._packs[block.pack]] += block.stored_bytes
        return bytes_in_use


def is_worth_keeping(bytes_in_use: int, size_bytes: int) -> bool:
    """Return True if enough of a pack of this size is in use to make sharing it worthwhile.

    >>> is_worth_keeping(50, 100), is_worth_keeping(49, 100)
    (True, False)
    """
    return 2 * bytes_in_use >= size_bytes


def link_packs(folder: int, before: FolderArchive, workers: Workers) -> KnownBlocks | None:
    """Link the packs of the previous archive into a draft's folder. Return None if none can be linked.

    If there are too many packs, the largest are linked.
    """
    packs: dict[int, int] = {}
    pack_bytes: dict[int, int] = {}
    files: dict[int, int] = {}
    largest = sorted(range(PACKS), key=lambda number: before.layout.pack_bytes[number], reverse=True)[: PACKS - 1]
    with suppress(FileNotFoundError, NotADirectoryError), before.folder() as older:
        if not _is_still_there(older, before):
            return None
        for number in sorted(number for number in largest if before.layout.pack_bytes[number]):
            new = len(packs) + 1
            if (file := _link_pack(older, number, folder, new, before)) is not None:
                packs[number] = new
                pack_bytes[new] = before.layout.pack_bytes[number]
                files[new] = file
    if not packs:
        return None
    blocks, verified = before.layout.blocks.values(), before.verified
    return KnownBlocks(blocks, packs, pack_bytes, files=files, verified=verified, workers=workers)


def _is_still_there(older: int, before: FolderArchive) -> bool:
    """Return True if the folder still contains this archive, and not another one with the same key."""
    try:
        file_bytes = before.layout.pack_bytes[0]
        with closing_fd(open_pack(older, 0, file_bytes)) as file:
            return footer_of(file, file_bytes) == before.layout.footer
    except (OSError, Damaged):
        return False


def _link_pack(older: int, number: int, folder: int, new: int, before: FolderArchive) -> int | None:
    """Link a pack and open it. Return None if it cannot be linked, or has the wrong size."""
    try:
        os.link(pack_name(number), pack_name(new), src_dir_fd=older, dst_dir_fd=folder, follow_symlinks=False)
    except OSError:  # the pack no longer exists, or the file system allows no hard links or no more of them
        return None
    try:
        return open_pack(folder, new, before.layout.pack_bytes[number])
    except (OSError, Damaged):  # a fault of the older archive must not break the new one
        os.unlink(pack_name(new), dir_fd=folder)
        return None


def _copy(file: int, number: int, parts: Sequence[Blocks], pack: Pack, workers: Workers) -> None:
    """Append to `pack` the blocks of one older pack that the parts use, and make the parts refer to the copies."""
    copies: dict[int, int] = {}
    for part in parts:
        for at, block in enumerate(part):
            if block.pack != number:
                continue
            if block.offset not in copies:
                content = pread_all(file, block.stored_bytes, block.offset)
                workers.decode(block, content)
                copies[block.offset] = pack.append(content)
            part.replace(at, block._replace(pack=0, offset=copies[block.offset]))
