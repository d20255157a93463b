"""A forged index: it says where the blocks are, which the manifest does not."""

from pathlib import Path

import pytest

from gleaner.agent.checkpoints.chunking import FOOTER_BYTES, index_of, parse_index
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken

KEY = "jobs/7/attempt-3/checkpoint-2"


@pytest.mark.parametrize("offset", [2**20, 2**63, 2**64 - 1])
def test_a_forged_index_that_leads_out_of_its_pack_is_broken(storage: FolderStorage, root: Path, offset: int) -> None:
    with storage.draft(KEY) as draft:
        draft.add("pages", [b"content" * 400])
        digest = draft.publish({}).digest
    pack = root / KEY / "blocks.pack"
    whole = pack.read_bytes()
    start = whole.index(len(whole).to_bytes(8, "little"))
    pack_bytes, (part,) = parse_index(whole[start:-FOOTER_BYTES], whole[-FOOTER_BYTES:], [1])
    part.replace(0, part[0]._replace(offset=offset))
    pack.write_bytes(whole[:start] + b"".join(index_of(pack_bytes, [part])))
    with pytest.raises(ArchiveBroken):
        list(storage.open(KEY, digest).read("pages"))
