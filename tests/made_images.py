"""Small container images, as archives of `docker save`, as OCI layouts, and as what a client sends to control."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gleaner.control.models.images import PIECE_BYTES


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def hexed(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar(files: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """An archive of these files, and of members without content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for member in more:
            archive.addfile(member)
    return made.getvalue()


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, to
    return made


@dataclass(frozen=True)
class MadeImage:
    """One image, by the contents of its layers."""

    layers: tuple[bytes, ...] = (tar({"bin/pi": b"3.14159"}), tar({"etc/seed": b"1"}))
    architecture: str = "amd64"

    @property
    def config(self) -> bytes:
        diffs = [digest(layer) for layer in self.layers]
        said = {"architecture": self.architecture, "os": "linux", "config": {"Cmd": ["pi"]}}
        return json.dumps(said | {"rootfs": {"type": "layers", "diff_ids": diffs}}).encode()

    @property
    def image_id(self) -> str:
        return digest(self.config)

    def files(self, *, packed: bool = False) -> dict[str, bytes]:
        """The members of an archive of `docker save`."""
        stored = [gzip.compress(layer) if packed else layer for layer in self.layers]
        names = [f"{hexed(layer)}/layer.tar" for layer in stored]
        entry: dict[str, Any] = {
            "Config": f"{hexed(self.config)}.json",
            "RepoTags": ["gleaner/pi:latest"],
            "Layers": names,
        }
        return {
            entry["Config"]: self.config,
            **dict(zip(names, stored, strict=True)),
            "manifest.json": json.dumps([entry]).encode(),
        }

    def oci_files(self, *, packed: bool = True, platform: bool = True) -> dict[str, bytes]:
        """The members of an OCI layout."""
        stored = [gzip.compress(layer) if packed else layer for layer in self.layers]
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "config": {"digest": self.image_id, "size": len(self.config)},
                "layers": [{"digest": digest(layer), "size": len(layer)} for layer in stored],
            }
        ).encode()
        named: dict[str, Any] = {"digest": digest(manifest), "size": len(manifest)}
        if platform:
            named["platform"] = {"architecture": self.architecture, "os": "linux"}
        blobs = {f"blobs/sha256/{hexed(blob)}": blob for blob in (self.config, manifest, *stored)}
        return {
            **blobs,
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps({"manifests": [named]}).encode(),
        }

    def pieces(self) -> list[bytes]:
        content = b"".join(self.layers)
        return [content[start : start + PIECE_BYTES] for start in range(0, len(content), PIECE_BYTES)]

    def push(self, name: str = "pi:1", **more: object) -> dict[str, Any]:
        """The request of a client whose pieces are all there."""
        return {
            "name": name,
            "config": self.config.decode(),
            "layers": [{"diff_id": digest(layer), "size_bytes": len(layer)} for layer in self.layers],
            "pieces": [digest(piece) for piece in self.pieces()],
        } | more


def of_sizes(sizes: Sequence[int]) -> MadeImage:
    """An image whose layers have one file each, of these sizes."""
    return MadeImage(tuple(tar({f"file-{number}": bytes([number]) * size}) for number, size in enumerate(sizes)))
