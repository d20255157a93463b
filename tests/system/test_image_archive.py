"""Archives of images in the shapes that people reported: a push and a node take the same, or refuse it in one line."""

import gzip
import io
import json
import struct
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made_images import MadeImage, digest, hexed, link, tar

from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.helper import image_store
from gleaner.agent.system import image_archive, tar_pack
from gleaner.agent.system.image_archive import ArchivedImage, check, content, find, policy_of
from gleaner.agent.system.tar_policy import Hostile
from gleaner.control.cli.images import DECOMPRESSORS

MOST = 2**30
GOOD = MadeImage()
SAVED, LAYOUT = tar(GOOD.files(packed=True)), tar(GOOD.oci_files())


def pushed(
    archive: bytes, architecture: str = "amd64", name: str = "", *, most_bytes: int = MOST
) -> tuple[ArchivedImage, bytes]:
    """The image as a push reads it, and the archive that it sends."""
    plain, file = io.BytesIO(), io.BufferedReader(io.BytesIO(archive))
    is_packed = image_archive.unpack(file, plain, DECOMPRESSORS, most_bytes)
    image = find(plain if is_packed else file, architecture=architecture, name=name)
    files = image_archive.stored(image, check(image, policy_of(most_bytes), DECOMPRESSORS), DECOMPRESSORS)
    size = tar_pack.packed_bytes(files)
    sent = b"".join(tar_pack.pack_files(files))
    assert len(sent) == size
    return image, sent


def refused(archive: bytes, architecture: str = "amd64", name: str = "") -> str:
    with pytest.raises(Hostile) as found:
        pushed(archive, architecture, name)
    line = str(found.value)
    assert line
    assert "\n" not in line
    return line


def on_a_node(sent: bytes, image_id: str, folder: Path) -> dict[str, bytes | None]:
    """The files that a node unpacks, by their names; None for a link."""
    settings = Config(1, bundles=str(folder / "root"))
    with tempfile.TemporaryFile() as file:
        file.write(sent)
        file.flush()
        assert image_store.import_image(settings, file.fileno(), image_id) == image_id
    found = image_store.find(settings, image_id)
    assert found is not None
    own = {"etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/passwd"}
    return {
        name: None if path.is_symlink() else path.read_bytes()
        for path in Path(found.rootfs).rglob("*")
        if (path.is_file() or path.is_symlink()) and (name := str(path.relative_to(found.rootfs))) not in own
    }


def layer(*members: tuple[str, bytes | str, Any], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer of files, of links, or of members of a kind: name, content or target, and more."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as archive:
        for name, text, more in members:
            member = tarfile.TarInfo(name)
            if isinstance(text, str):
                member.linkname = text
            for key, value in more.items():
                setattr(member, key, value)
            member.size = len(text) if isinstance(text, bytes) else 0
            archive.addfile(member, io.BytesIO(text) if isinstance(text, bytes) else None)
    return made.getvalue()


def of(*members: tuple[str, bytes | str, Any], form: int = tarfile.PAX_FORMAT) -> bytes:
    return tar(MadeImage((layer(*members, form=form),)).files())


def together(*images: Mapping[str, bytes], extra: tuple[dict[str, Any], ...] = ()) -> bytes:
    """One OCI layout of several, and of other entries of the index."""
    entries = chain(*(json.loads(files["index.json"])["manifests"] for files in images), extra)
    merged = {name: blob for files in images for name, blob in files.items()}
    return tar(merged | {"index.json": json.dumps({"manifests": list(entries)}).encode()})


def sparse(form: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with Path(folder, "holes").open("wb") as file:
            file.truncate(4 << 20)
            file.seek(1 << 20)
            file.write(b"here")
        made = subprocess.run(
            ["tar", "-C", folder, "--sparse", f"--format={form}", "-cf", "-", "holes"], capture_output=True, check=True
        )
    return tar(MadeImage((made.stdout,)).files())


def with_capability() -> bytes:
    """A layer with a file's capability whose bytes are no text."""
    record = b"SCHILY.xattr.security.capability=" + struct.pack("<IIIII", 0x02000001, 0x2000, 0, 0, 0x0A0A3D0A) + b"\n"
    record = b"%d %s" % (len(record) + 3, record)
    head = tarfile.TarInfo("PaxHeaders/x")
    head.type, head.size = tarfile.XHDTYPE, len(record)
    return head.tobuf(tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512) + layer(("bin/ping", b"ping", {}))


def artifact(**more: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The entry of something that is no image in an index, and its blobs."""
    manifest = json.dumps({"config": {"digest": digest(b"{}")}, "layers": []} | more).encode()
    blobs = {f"blobs/sha256/{hexed(one)}": one for one in (manifest, b"{}")}
    return {"digest": digest(manifest)}, blobs | {"index.json": b'{"manifests": []}'}


KIND = {name: {"type": getattr(tarfile, f"{name}TYPE")} for name in ("DIR", "SYM", "LNK", "CHR", "FIFO", "CONT")}
PI: dict[str, bytes | None] = {"bin/pi": b"3.14159", "etc/seed": b"1"}
LONG = "opt/" + "/".join(["d" * 90] * 4)
V2 = MadeImage((tar({"bin/pi": b"v2"}),), about={"variant": "v2"})
SIGNATURE, SIGNATURE_BLOBS = artifact()
ATTESTATION = {"digest": digest(b"not in it"), "platform": {"architecture": "unknown", "os": "unknown"}}
ZSTD = zstandard.compress(GOOD.layers[0][:700]) + zstandard.compress(GOOD.layers[0][700:])
SKIPPED = struct.pack("<II", 0x184D2A50, 100) + bytes(100)
TWICE = MadeImage((*GOOD.layers, GOOD.layers[0]))
TAKEN: dict[str, tuple[bytes, dict[str, bytes | None]]] = {
    "docker save": (tar(GOOD.files()), PI),
    "docker save with gzip": (SAVED, PI),
    "an OCI layout": (LAYOUT, PI),
    "both forms, as Docker writes since version 25": (tar(GOOD.oci_files(packed=False) | GOOD.files()), PI),
    "zstd": (tar(MadeImage(pack=zstandard.compress).oci_files()), PI),
    "zstd of several frames": (tar(MadeImage(GOOD.layers[:1], pack=lambda _: ZSTD + SKIPPED).files(packed=True)),
                               {"bin/pi": b"3.14159"}),
    "gzip of several members": (
        tar(MadeImage(pack=lambda b: gzip.compress(b[:600]) + gzip.compress(b[600:])).oci_files()), PI),
    "a whole archive with gzip": (gzip.compress(SAVED), PI),
    "only amd64/v2": (tar(V2.oci_files()), {"bin/pi": b"v2"}),
    "an attestation, which is not there": (together(GOOD.oci_files(), extra=(ATTESTATION,)), PI),
    "a signature": (together(GOOD.oci_files(platform=False), SIGNATURE_BLOBS, extra=(SIGNATURE,)), PI),
    "two names of one image": (together(GOOD.oci_files(annotations={"org.opencontainers.image.ref.name": "1"}),
                                        GOOD.oci_files(annotations={"org.opencontainers.image.ref.name": "2"})), PI),
    "a layer twice": (tar(TWICE.files()), PI),
    "a layer without an end": (tar(MadeImage((layer(("a", b"1" * 512, {}))[:1024],)).files()), {"a": b"1" * 512}),
    "long paths": (of((f"{LONG}/f", b"x", {"uid": 3_000_000_000, "mtime": 1.5})), {f"{LONG}/f": b"x"}),
    "long paths of GNU": (of((f"{LONG}/f", b"x", {"uid": 2**31}), form=tarfile.GNU_FORMAT), {f"{LONG}/f": b"x"}),
    "a capability": (tar(MadeImage((with_capability(),)).files()), {"bin/ping": b"ping"}),
    "paths twice": (of(("a", "", KIND["DIR"]), ("a/b", b"1", {}), ("a", "", KIND["DIR"]), ("a/b", b"2", {})),
                    {"a/b": b"2"}),
    "absolute names": (of(("/abs/f", b"x", {}), ("./rel", b"y", {}), ("abs/h", "/abs/f", KIND["LNK"])),
                       {"abs/f": b"x", "rel": b"y", "abs/h": b"x"}),
    "a hard link to a symbolic link": (of(("a", "b", KIND["SYM"]), ("b", b"x", {}), ("c", "a", KIND["LNK"])),
                                       {"a": None, "b": b"x", "c": None}),
    "a hard link without its folder": (of(("a", b"x", {}), ("b/c/d", "a", KIND["LNK"])), {"a": b"x", "b/c/d": b"x"}),
    "links that lead out, in the container alone": (of(("a", "/bin/sh", KIND["SYM"]), ("b", "../../x", KIND["SYM"])),
                                                    {"a": None, "b": None}),
    "devices and pipes": (of(("dev/null", "", KIND["CHR"]), ("run/p", "", KIND["FIFO"]), ("a", b"x", {})), {"a": b"x"}),
    "marks of deleted files that are hard links": (
        tar(MadeImage((tar({"t/a": b"1", "t/b": b"2", "t/c": b"3"}), layer(
            ("t/.wh.a", b"", {}), ("t/.wh.b", "t/.wh.a", KIND["LNK"]), ("t/.wh..wh.aufs", b"", {})))).files()),
        {"t/c": b"3"}),
    "holes": (sparse("pax"), {"holes": bytes(1 << 20) + b"here" + bytes((3 << 20) - 4)}),
    "holes of GNU": (sparse("gnu"), {"holes": bytes(1 << 20) + b"here" + bytes((3 << 20) - 4)}),
}  # fmt: skip


@pytest.mark.parametrize("what", [*TAKEN])
def test_what_a_push_takes_is_what_a_node_unpacks(tmp_path: Path, what: str) -> None:
    archive, files = TAKEN[what]
    image, sent = pushed(archive)
    assert on_a_node(sent, image.id, tmp_path) == files


def changed(files: dict[str, bytes] | None = None, **more: bytes) -> bytes:
    """An archive with something else in place of these members."""
    names = {"manifest": "manifest.json", "config": f"{hexed(GOOD.config)}.json", "index": "index.json"}
    return tar((GOOD.files() if files is None else files) | {names[key]: value for key, value in more.items()})


ENTRY: dict[str, Any] = json.loads(GOOD.files()["manifest.json"])[0]
FIRST, SECOND = ENTRY["Layers"]
WITHOUT = {name: one for name, one in GOOD.files().items() if name != SECOND}
REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "empty file"),
    "a page": (b"<html>sign in</html>" * 100, "cannot be read"),
    "the files of a container": (GOOD.layers[0], "neither manifest.json nor index.json"),
    "no layers": (tar(MadeImage(()).files()), "it has no layers"),
    "layers that are null": (changed(config=json.dumps({"rootfs": {"diff_ids": None}}).encode()), "it has no layers"),
    "only an artifact": (together(SIGNATURE_BLOBS, extra=(SIGNATURE,)), "no image"),
    "no image": (changed(manifest=b"[]"), "no image"),
    "another system": (tar(MadeImage(about={"os": "windows"}).files()), "it holds windows/amd64, and one for linux"),
    "another machine": (tar(MadeImage(architecture="arm", about={"variant": "v7"}).files()), "it holds linux/arm/v7"),
    "a configuration with a mark of order": (changed(config=b"\xef\xbb\xbf" + GOOD.config), "BOM"),
    "a configuration that is no JSON": (changed(config=b"\xff"), "cannot be read"),
    "a configuration that is too long": (changed(config=b" " * (2**24 + 1)), "is too long"),
    "a configuration that is a list": (changed(config=b"[]"), "no image"),
    "JSON that is too deep": (changed(manifest=b"[" * 100_000), "cannot be read"),
    "a file outside": (changed(manifest=json.dumps([ENTRY | {"Config": "/etc/passwd"}]).encode()), "there is no"),
    "a file above": (changed(manifest=json.dumps([ENTRY | {"Config": "../x"}]).encode()), "leads out"),
    "a member that leads out": (changed(GOOD.files() | {"../etc/passwd": b"x"}), "leads out"),
    "a digest that is a path": (tar(GOOD.oci_files(digest="sha256:../../../etc/passwd")), "is no digest"),
    "a digest of nothing": (tar(GOOD.oci_files(digest=f"sha256:{'0' * 64}")), "there is no"),
    "a blob that is another": (tar(GOOD.oci_files() | {f"blobs/sha256/{hexed(GOOD.config)}": b"{}"}), "not what it"),
    "a layer that is missing": (tar(WITHOUT), "there is no"),
    "a layer that leads out": (tar(WITHOUT, link(SECOND, "/etc/passwd")), "there is no"),
    "a layer too few": (changed(manifest=json.dumps([ENTRY | {"Layers": [FIRST]}]).encode()), "1 layers"),
    "a layer that is another": (changed(GOOD.files() | {SECOND: tar({"evil": b"!"})}), "is not the one"),
    "a layer with more behind its end": (changed(GOOD.files() | {SECOND: GOOD.layers[1] + b"more"}), "is not the one"),
    "gzip that is damaged": (changed(GOOD.files() | {SECOND: gzip.compress(GOOD.layers[1])[:60]}), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("what", [*REFUSED])
def test_what_is_no_whole_image_is_refused_in_one_line(what: str) -> None:
    archive, why = REFUSED[what]
    assert why in refused(archive)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_layer_that_is_there_twice_may_be_a_link(kind: bytes) -> None:
    files = TWICE.files()
    entry = ENTRY | {"Config": f"{hexed(TWICE.config)}.json", "Layers": [FIRST, SECOND, "again/layer.tar"]}
    again = link("again/layer.tar", f"../{FIRST}" if kind == tarfile.SYMTYPE else FIRST, kind)
    assert pushed(tar(files | {"manifest.json": json.dumps([entry]).encode()}, again))[0].id == TWICE.image_id


def test_of_several_images_the_chosen_one_is_taken() -> None:
    other = MadeImage(GOOD.layers[:1], name="lab/other:1")
    both = [json.loads(image.files()["manifest.json"])[0] for image in (GOOD, other)]
    archive = tar(GOOD.files() | other.files() | {"manifest.json": json.dumps(both).encode()})
    assert "gleaner/pi:latest, lab/other:1" in refused(archive)
    assert pushed(archive, name="docker.io/lab/other:1")[0].id == other.image_id
    assert "and not lab/third" in refused(archive, name="lab/third")
    arm = MadeImage(architecture="arm64")
    archive = together(GOOD.oci_files(), V2.oci_files(), arm.oci_files())
    chosen = {"amd64": GOOD, "amd64/v2": V2, "arm64": arm}
    assert {kind: pushed(archive, kind)[0].id for kind in chosen} == {k: one.image_id for k, one in chosen.items()}
    assert "linux/amd64/v4 is wanted" in refused(archive, "amd64/v4")


def test_the_same_image_is_sent_as_the_same_bytes_without_a_name() -> None:
    assert pushed(SAVED)[1] == pushed(LAYOUT)[1] == GOOD.stored
    with tarfile.open(fileobj=io.BytesIO(TWICE.stored)) as archive:
        names = archive.getnames()
        contents = {name: archive.extractfile(name).read() for name in names}  # type: ignore[union-attr]
    (entry,) = json.loads(contents["manifest.json"])
    assert len(set(names)) == len(names) == 4
    assert entry["RepoTags"] is None
    assert contents[entry["Config"]] == TWICE.config
    assert tuple(contents[name] for name in entry["Layers"]) == TWICE.layers


def test_what_grows_beyond_all_limits_is_refused() -> None:
    zeros = MadeImage((tar({"zeros": bytes(2**21)}),))
    for archive in (tar(zeros.files(packed=True)), gzip.compress(tar(zeros.files()))):
        with pytest.raises(Hostile, match="larger than"):
            pushed(archive, most_bytes=2**20)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([SAVED, LAYOUT]), st.integers(0, max(len(SAVED), len(LAYOUT)) - 1), st.integers(0, 255))
def test_an_archive_with_one_wrong_byte_or_cut_off_is_a_whole_image_or_refused(
    archive: bytes, at: int, change: int
) -> None:
    at %= len(archive)
    damaged = archive[:at] + (bytes([archive[at] ^ change]) + archive[at + 1 :] if change else b"")
    try:
        image, _ = pushed(damaged)
    except Hostile as error:
        assert str(error)
        return
    assert [digest(b"".join(content(layer))) for layer in image.layers] == [layer.diff_id for layer in image.layers]
