"""Archives of container images: what is read is the image to the letter, and what is hostile is one line."""

import gzip
import io
import json
import tarfile
from itertools import chain

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.made_images import MadeImage, digest, hexed, link, of_sizes, tar

from gleaner.control.cli.image_archive import NotAnImage, SavedImage, read
from gleaner.control.models.images import PIECE_BYTES


def opened(content: bytes, architecture: str = "amd64") -> SavedImage:
    return read(io.BytesIO(content), architecture=architecture)


def refused(content: bytes, architecture: str = "amd64") -> str:
    with pytest.raises(NotAnImage) as found:
        opened(content, architecture)
    line = str(found.value)
    assert line
    return line


def is_whole(found: SavedImage, image: MadeImage) -> bool:
    contents = b"".join(image.layers)
    assert b"".join(found.pieces()) == contents
    assert [layer.diff_id for layer in found.layers] == [digest(layer) for layer in image.layers]
    assert [layer.size_bytes for layer in found.layers] == [len(layer) for layer in image.layers]
    return found.config.encode() == image.config and found.architecture == image.architecture


@pytest.mark.parametrize("packed", [False, True])
def test_both_forms_of_an_archive_are_the_same_image(packed: bool) -> None:
    image = MadeImage()
    for files in (image.files(packed=packed), image.oci_files(packed=packed), image.oci_files(platform=False)):
        assert is_whole(opened(tar(files)), image)


def test_an_archive_with_both_forms_in_it_is_read() -> None:
    """Docker writes such ones since version 25."""
    image = MadeImage()
    assert is_whole(opened(tar(image.oci_files(packed=False) | image.files())), image)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_layer_that_is_there_twice_may_be_a_link(kind: bytes) -> None:
    once = tar({"a": b"1"})
    image = MadeImage((once, tar({"b": b"2"}), once))
    files = image.files()
    (entry,) = json.loads(files["manifest.json"])
    entry["Layers"][2] = "again/layer.tar"
    files["manifest.json"] = json.dumps([entry]).encode()
    first = entry["Layers"][0]
    again = link("again/layer.tar", f"../{first}" if kind == tarfile.SYMTYPE else first, kind)
    assert is_whole(opened(tar(files, again)), image)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.sampled_from([0, 1, 511, 512, PIECE_BYTES - 1024, PIECE_BYTES, PIECE_BYTES + 1]), min_size=1, max_size=3
    )
)
def test_pieces_are_all_of_one_size_but_the_last_and_are_the_layers_together(sizes: list[int]) -> None:
    image = of_sizes(sizes)
    found = opened(tar(image.files()))
    pieces = list(found.pieces())
    assert pieces == image.pieces()
    assert list(found.pieces()) == pieces  # it can be read again


def test_what_leads_out_is_refused() -> None:
    image = MadeImage()
    files = image.files()
    for name in ("../etc/passwd", "/etc/passwd", "a/../../b"):
        assert "leads out" in refused(tar({name: b"x"} | files))
    assert "leads out" in refused(tar(files, link("a/layer.tar", "../../../etc/passwd")))
    assert "leads out" in refused(tar(files, link("layer.tar", "/etc/passwd")))
    for hostile in (tar({"../../etc/cron.d/x": b"x"}), tar({"a": b""}, link("b", "../../x", tarfile.LNKTYPE))):
        assert "leads out" in refused(tar(MadeImage((hostile,)).files()))


def test_links_within_a_layer_may_lead_anywhere() -> None:
    """They are followed in the container alone."""
    image = MadeImage((tar({"a": b""}, link("sh", "/bin/bash"), link("b", "../../usr/b")),))
    assert is_whole(opened(tar(image.files())), image)


def test_devices_and_names_that_stand_there_twice_are_refused() -> None:
    files = MadeImage().files()
    device = tarfile.TarInfo("disk")
    device.type = tarfile.BLKTYPE
    assert "neither a file nor a folder" in refused(tar(files, device))
    again = tarfile.TarInfo("manifest.json")
    assert "twice" in refused(tar(files, again))


def test_another_architecture_is_refused_and_can_be_asked_for() -> None:
    image = MadeImage(architecture="arm64")
    assert refused(tar(image.files())).startswith("it is for linux/arm64, and linux/amd64 is wanted")
    assert "0 images for linux/amd64" in refused(tar(image.oci_files()))
    assert is_whole(opened(tar(image.files()), "arm64"), image)


def test_more_than_one_image_is_refused() -> None:
    first, second = MadeImage(), MadeImage((tar({"x": b"y"}),))
    both = json.loads(first.files()["manifest.json"]) + json.loads(second.files()["manifest.json"])
    files = first.files() | second.files() | {"manifest.json": json.dumps(both).encode()}
    assert refused(tar(files)) == "it holds 2 images, and one is wanted: save one name alone"
    indices = [json.loads(image.oci_files()["index.json"])["manifests"] for image in (first, second)]
    files = (
        first.oci_files()
        | second.oci_files()
        | {"index.json": json.dumps({"manifests": list(chain(*indices))}).encode()}
    )
    assert "2 images" in refused(tar(files))
    assert "0 images" in refused(tar(first.files() | {"manifest.json": b"[]"}))


def test_of_several_platforms_the_wanted_one_is_taken() -> None:
    mine, other = MadeImage(), MadeImage(architecture="arm64")
    indices = [json.loads(image.oci_files()["index.json"])["manifests"] for image in (mine, other)]
    windows = {"digest": digest(b"not in it"), "platform": {"architecture": "amd64", "os": "windows"}}
    listed = {"manifests": [windows, *chain(*indices)]}
    files = mine.oci_files() | other.oci_files() | {"index.json": json.dumps(listed).encode()}
    assert is_whole(opened(tar(files)), mine)
    assert is_whole(opened(tar(files), "arm64"), other)


def test_layers_may_be_compressed_with_zstd() -> None:
    image = MadeImage()
    files = image.files()
    (entry,) = json.loads(files["manifest.json"])
    halves = (image.layers[0][:700], image.layers[0][700:])
    packed = b"".join(zstandard.compress(half) for half in halves)  # several frames, as some writers make them
    assert is_whole(opened(tar(files | {entry["Layers"][0]: packed})), image)


def test_missing_or_exchanged_layers_are_refused() -> None:
    image = MadeImage()
    files = image.files()
    (entry,) = json.loads(files["manifest.json"])
    without = {name: content for name, content in files.items() if name != entry["Layers"][1]}
    assert refused(tar(without)).startswith("there is no")
    assert "is not the one" in refused(tar(files | {entry["Layers"][1]: tar({"other": b""})}))
    fewer = [entry | {"Layers": entry["Layers"][:1]}]
    assert "1 layers" in refused(tar(files | {"manifest.json": json.dumps(fewer).encode()}))
    oci = image.oci_files()
    assert "is not what it says" in refused(tar(oci | {f"blobs/sha256/{hexed(image.config)}": image.config + b" "}))


def test_what_cannot_be_read_here_says_what_to_do() -> None:
    image = MadeImage()
    files = image.files()
    assert "gunzip it first" in refused(gzip.compress(tar(files)))
    (entry,) = json.loads(files["manifest.json"])
    assert "cannot be read" in refused(tar(files | {entry["Layers"][0]: b"\x28\xb5\x2f\xfd" + bytes(100)}))
    assert "no archive of `docker save`" in refused(tar({"readme": b"hello"}))


def test_a_layer_that_grows_beyond_all_limits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gleaner.control.cli.image_archive.MOST_BYTES", 2**20)
    assert "larger than" in refused(tar(MadeImage((tar({"zeros": bytes(2**21)}),)).files(packed=True)))


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_no_bytes_at_all_are_more_than_one_refusal(content: bytes) -> None:
    refused(content)


WHOLE = tar(MadeImage().files(packed=True))
OCI = tar(MadeImage().oci_files())


@settings(deadline=None, max_examples=200)
@given(st.sampled_from([WHOLE, OCI]), st.integers(0, max(len(WHOLE), len(OCI)) - 1), st.integers(1, 255))
def test_an_archive_with_one_wrong_byte_is_the_same_image_or_refused(content: bytes, at: int, change: int) -> None:
    damaged = bytearray(content)
    damaged[at % len(damaged)] ^= change
    try:
        found = opened(bytes(damaged))
    except NotAnImage:
        return
    assert digest(found.config.encode()) == MadeImage().image_id or found.config.encode() != MadeImage().config
    for layer, stored in zip(found.layers, _layers(found), strict=True):
        assert layer.diff_id == digest(stored)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([WHOLE, OCI]), st.integers(0, max(len(WHOLE), len(OCI)) - 1))
def test_an_archive_that_is_cut_off_is_refused_or_lacks_only_zeros(content: bytes, at: int) -> None:
    cut = content[: at % len(content)]
    try:
        assert is_whole(opened(cut), MadeImage())
    except NotAnImage:
        return


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["Config", "Layers", "manifests", "digest", "layers", "config", "rootfs", "diff_ids"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.sampled_from(["manifest.json", "index.json"]), JSONS)
def test_any_json_in_place_of_the_table_of_contents_is_refused(name: str, said: object) -> None:
    files = {k: v for k, v in (MadeImage().files() | MadeImage().oci_files()).items() if k[-5:] != ".json"}
    refused(tar(files | {name: json.dumps(said).encode()}))


def _layers(found: SavedImage) -> list[bytes]:
    contents = b"".join(found.pieces())
    cut: list[bytes] = []
    for layer in found.layers:
        cut.append(contents[: layer.size_bytes])
        contents = contents[layer.size_bytes :]
    return cut
