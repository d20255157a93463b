"""Small container images, as archives of `docker save`, as OCI layouts, and as what is sent to control and stored."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gleaner.agent.system import image_archive, tar_pack


def digest(content: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


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
    name: str = "gleaner/pi:latest"
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    """More of the configuration."""
    pack: Callable[[bytes], bytes] = gzip.compress
    """The compression of its layers, where they are compressed."""

    @property
    def config(self) -> bytes:
        diffs = [digest(layer) for layer in self.layers]
        said = {"architecture": self.architecture, "os": "linux", "config": {"Cmd": ["pi"]}} | self.about
        return json.dumps(said | {"rootfs": {"type": "layers", "diff_ids": diffs}}).encode()

    @property
    def image_id(self) -> str:
        return digest(self.config)

    def files(self, *, packed: bool = False) -> dict[str, bytes]:
        """The members of an archive of `docker save`."""
        stored = [self.pack(layer) if packed else layer for layer in self.layers]
        names = [f"{hexed(layer)}/layer.tar" for layer in stored]
        entry: dict[str, Any] = {
            "Config": f"{hexed(self.config)}.json",
            "RepoTags": [self.name],
            "Layers": names,
        }
        return {
            entry["Config"]: self.config,
            **dict(zip(names, stored, strict=True)),
            "manifest.json": json.dumps([entry]).encode(),
        }

    def oci_files(
        self, *, packed: bool = True, platform: bool = True, algorithm: str = "sha256", **more: Any
    ) -> dict[str, bytes]:
        """The members of an OCI layout. `more` is in the index."""
        stored = [self.pack(layer) if packed else layer for layer in self.layers]
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "config": {"digest": digest(self.config, algorithm), "size": len(self.config)},
                "layers": [{"digest": digest(layer, algorithm), "size": len(layer)} for layer in stored],
            }
        ).encode()
        named: dict[str, Any] = {"digest": digest(manifest, algorithm), "size": len(manifest)}
        if platform:
            named["platform"] = {"architecture": self.architecture, "os": "linux"} | self.about
        blobs = {
            f"blobs/{digest(blob, algorithm).replace(':', '/')}": blob for blob in (self.config, manifest, *stored)
        }
        return {
            **blobs,
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps({"manifests": [named | more]}).encode(),
        }

    @property
    def stored(self) -> bytes:
        """The archive in which it is sent to control and stored."""
        image = image_archive.find(io.BytesIO(tar(self.files())), architecture="")
        return b"".join(tar_pack.pack_files(image_archive.stored(image, [len(layer) for layer in self.layers])))

    def push(self, name: str = "pi:1", **more: object) -> dict[str, Any]:
        """The request of a client that has sent it."""
        return {"name": name, "image_id": self.image_id, "size_bytes": len(self.stored)} | more


def of_sizes(sizes: Sequence[int]) -> MadeImage:
    """An image whose layers have one file each, of these sizes."""
    return MadeImage(tuple(tar({f"file-{number}": bytes([number]) * size}) for number, size in enumerate(sizes)))
