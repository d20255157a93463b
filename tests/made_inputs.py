"""Small inputs, as a client sends them to control and as they lie in the storage."""

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.made_images import digest

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.job.inputs import CONTENT, INPUT_PART, input_key
from gleaner.agent.messages import StoredInput


def packed(content: bytes | Mapping[str, bytes], name: str = CONTENT) -> bytes:
    """The archive of a file, or of a folder with these files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        files = {name: content} if isinstance(content, bytes) else {f"{name}/{n}": c for n, c in content.items()}
        if not isinstance(content, bytes):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for path, inside in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(inside)
            archive.addfile(member, io.BytesIO(inside))
    whole = made.getvalue().rstrip(b"\0")
    return whole + bytes(-len(whole) % 512 + 1024)


@dataclass(frozen=True)
class MadeInput:
    """One input, by its archive."""

    archive: bytes = packed(b"Beams:eCM = 8000.")

    @property
    def content(self) -> str:
        return digest(self.archive)

    def put(self, **more: object) -> dict[str, Any]:
        return {"content": self.content, "size_bytes": len(self.archive), **more}

    def stored(self, storage: FolderStorage, name: str = "a.cmnd", *, group: str = "g", **more: Any) -> StoredInput:
        """Put it into the storage, unless it is there."""
        key = input_key(group, self.content)
        if key in storage.keys("inputs"):
            storage.delete(key)
        with storage.draft(key) as draft:
            draft.add(INPUT_PART, [self.archive])
            made = draft.publish({"content": self.content})
        size_bytes = len(self.archive)
        return StoredInput(name=name, content=self.content, digest=made.digest, size_bytes=size_bytes, **more)
