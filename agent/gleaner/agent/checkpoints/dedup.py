"""Blocks that the checkpoint before holds: a new archive shares the packs that they are in, by hard links.

So the older archive can be deleted at any time. A pack of which the new archive uses less than half is not kept: its
blocks are copied, as they are stored, or else a few of them would hold a whole old checkpoint on the disk.

Each block is read and compared before the new archive relies on it. Else a block that has rotted since the older
archive was written would break the new archive too, and with it every later one. A pack with such a block is not kept.
A block that the older archive has read and compared itself, since it was opened, is not read once more.
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
from gleaner.agent.system.openat import opened, pread_all, pread_into

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
        read_well: bytes,
        workers: Workers,
    ) -> None:
        """Take the older archive's blocks and packs.

        `packs` maps the older archive's pack numbers to the new one's. `pack_bytes` maps the new numbers to sizes, and
        `files` maps them to open files, which `end` closes. `read_well` has a 1 for each block that was just compared.
        """
        self._blocks = Blocks(b"".join(part.records for part in blocks))
        self._packs = packs
        self._pack_bytes = pack_bytes
        numbers = sorted(range(len(self._blocks)), key=self._blocks.digest)
        self._by_digest = array("I", numbers)
        self._used = bytearray(len(numbers))
        self._read_well = read_well
        self._files = dict(files)
        self._workers = workers
        self._own = threading.local()
        self.rotten: set[int] = set()
        """The packs, by the new archive's numbers, with a block that is not what was written."""

    def find(self, digest: bytes, buffer: bytearray, start: int) -> Block | None:
        """Return the block with this digest as the new archive refers to it; None unless it is stored well.

        The block's content is in the buffer from `start` on. Safe from several threads.
        """
        at = bisect_left(self._by_digest, digest, key=self._blocks.digest)
        if at == len(self._by_digest):
            return None
        number = self._by_digest[at]
        block = self._blocks[number]
        if block.digest != digest or block.stored_bytes == 0 or block.pack not in self._packs:
            return None
        pack = self._packs[block.pack]
        if not self._used[number]:
            if pack in self.rotten:
                return None
            if not self._read_well[number] and not self._is_stored_well(block, pack, buffer, start):
                log.warning("what an older checkpoint has stored is damaged, and is stored anew", pack=pack)
                self.rotten.add(pack)
                return None
            self._used[number] = True
        return block._replace(pack=pack)

    def _is_stored_well(self, block: Block, pack: int, buffer: bytearray, start: int) -> bool:
        """Return True if the block is stored as it was written.

        A raw block needs no second hash: it is compared with the content that has just been hashed.
        """
        file = self._files[pack]
        try:
            if block.stored_bytes == block.size_bytes:
                room = self._room()[: block.size_bytes]
                return pread_into(file, room, block.offset) and buffer.startswith(room, start)
            self._workers.decoded(block, pread_all(file, block.stored_bytes, block.offset))
        except (OSError, Damaged):
            return False
        return True

    def _room(self) -> memoryview:
        """Return the calling thread's buffer for one block: new memory for each block would cost more than reading."""
        if not hasattr(self._own, "room"):
            self._own.room = memoryview(bytearray(MOST_BYTES))
        found: memoryview = self._own.room
        return found

    def end(self) -> None:
        """Close the files, when no thread looks for blocks any more."""
        for file in self._files.values():
            with suppress(OSError):
                os.close(file)
        self._files.clear()

    def settle(self, folder: int, parts: Sequence[Blocks], pack: Pack) -> list[int]:
        """Keep the packs that are worth it in the draft's folder, and copy the rest into the draft's own pack.

        Return the sizes of the packs that are kept, from number 1 on; 0 where there is none. Raises `Damaged`.
        """
        used_bytes = self._used_bytes()
        kept_bytes = [0] * (PACKS - 1)
        for number, size_bytes in self._pack_bytes.items():
            is_whole = number not in self.rotten
            if used_bytes[number] and is_whole and is_worth_keeping(used_bytes[number], size_bytes):
                kept_bytes[number - 1] = size_bytes
                continue
            if used_bytes[number]:
                _copy(self._files[number], number, parts, pack, self._workers)
            os.unlink(pack_name(number), dir_fd=folder)
        return kept_bytes

    def _used_bytes(self) -> dict[int, int]:
        """Return the stored bytes that were found in each shared pack. A part that was given up counts too."""
        used = dict.fromkeys(self._pack_bytes, 0)
        for block, is_used in zip(self._blocks, self._used, strict=True):
            if is_used:
                used[self._packs[block.pack]] += block.stored_bytes
        return used


def is_worth_keeping(used_bytes: int, size_bytes: int) -> bool:
    """Return True if enough of a pack of this size is used to share the pack.

    >>> is_worth_keeping(50, 100), is_worth_keeping(49, 100)
    (True, False)
    """
    return 2 * used_bytes >= size_bytes


def inherit(folder: int, before: FolderArchive, workers: Workers) -> KnownBlocks | None:
    """Link the packs of the archive before into a draft's folder. Return None if none can be linked.

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
            if (file := _linked(older, number, folder, new, before)) is not None:
                packs[number] = new
                pack_bytes[new] = before.layout.pack_bytes[number]
                files[new] = file
    if not packs:
        return None
    blocks, read_well = before.layout.blocks.values(), before.read_well
    return KnownBlocks(blocks, packs, pack_bytes, files=files, read_well=read_well, workers=workers)


def _is_still_there(older: int, before: FolderArchive) -> bool:
    """Return True if the folder holds the archive that was opened, and not another one of this key."""
    try:
        file_bytes = before.layout.pack_bytes[0]
        with opened(open_pack(older, 0, file_bytes)) as file:
            return footer_of(file, file_bytes) == before.layout.footer
    except (OSError, Damaged):
        return False


def _linked(older: int, number: int, folder: int, new: int, before: FolderArchive) -> int | None:
    """Link a pack and open it. Return None if it cannot be linked, or has not the size that it should have."""
    try:
        os.link(pack_name(number), pack_name(new), src_dir_fd=older, dst_dir_fd=folder, follow_symlinks=False)
    except OSError:  # the pack is gone, or the file system has no hard links, or no more of them
        return None
    try:
        return open_pack(folder, new, before.layout.pack_bytes[number])
    except (OSError, Damaged):  # what is wrong with the older archive must not cost the new one
        os.unlink(pack_name(new), dir_fd=folder)
        return None


def _copy(file: int, number: int, parts: Sequence[Blocks], pack: Pack, workers: Workers) -> None:
    """Copy what the parts use of a pack to the end of another pack, and let the parts refer to the copies."""
    copied: dict[int, int] = {}
    for part in parts:
        for at, block in enumerate(part):
            if block.pack != number:
                continue
            if block.offset not in copied:
                stored = pread_all(file, block.stored_bytes, block.offset)
                workers.decoded(block, stored)
                copied[block.offset] = pack.append(stored)
            part.replace(at, block._replace(pack=0, offset=copied[block.offset]))
