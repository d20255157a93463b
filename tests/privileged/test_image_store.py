"""Images by what they contain: nothing counts that is not what its digests say, and nothing half."""

import io
import os
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.made_images import MadeImage, digest, link, tar

from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.helper import image_store
from gleaner.agent.privileged.helper.image_store import find, forget, import_image
from gleaner.agent.runtime.images import archive_of
from gleaner.agent.system.tar_policy import Hostile


def configuration(*layers: bytes) -> bytes:
    return MadeImage(layers).config


def saved(*layers: bytes, name: str = "a/b:1") -> dict[str, bytes]:
    """The files of an archive as `docker save` writes it."""
    return MadeImage(layers, name=name).files()


def layout(*layers: bytes, name: str = "a/b:1") -> dict[str, bytes]:
    """The files of an OCI layout, its layers compressed."""
    return MadeImage(layers).oci_files(annotations={"org.opencontainers.image.ref.name": name})


def take(settings: Config, files: dict[str, bytes], name: str = "a/b:1") -> str:
    with tempfile.TemporaryFile() as file:
        file.write(tar(files))
        file.flush()
        return import_image(settings, file.fileno(), name)


LAYERS = (tar({"etc/one": b"1", "etc/two": b"2"}), tar({"etc/.wh.one": b"", "new": b"3"}))


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return Config(1, bundles=str(tmp_path / "root"))


@pytest.mark.parametrize("form", [saved, layout])
def test_an_image_is_found_by_its_name_and_its_id(settings: Config, form: Callable[..., dict[str, bytes]]) -> None:
    image_id = take(settings, form(*LAYERS))
    assert image_id == digest(configuration(*LAYERS))
    for name in ("a/b:1", image_id, "docker.io/a/b:1"):
        found = find(settings, name)
        assert found is not None
        assert found.id == image_id
        assert found.config["config"] == {"Cmd": ["pi"]}
    assert found is not None
    files = {str(path.relative_to(found.rootfs)) for path in Path(found.rootfs).rglob("*") if path.is_file()}
    assert files == {"etc/two", "new", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/passwd"}
    assert find(settings, "a/b:2") is None
    assert find(settings, f"sha256:{'0' * 64}") is None
    forget(settings, "a/b:1")
    assert find(settings, image_id) is None
    assert kept(settings) == []


@pytest.mark.parametrize("name", ["etc", "dev", "proc", "sys", "job"])
def test_an_image_with_a_link_where_runc_mounts_a_folder_is_refused_in_one_line(settings: Config, name: str) -> None:
    image = saved(tar({"real/file": b"1"}), tar({}, link(name, "real")))
    with pytest.raises(Hostile, match=f"its /{name} is no folder but a link or a file: build it with a folder there"):
        take(settings, image)
    assert kept(settings) == []


def test_a_link_where_runc_mounts_a_file_is_replaced_by_a_file(settings: Config, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    image_id = take(settings, saved(tar({}, link("etc/resolv.conf", str(outside)), link("etc/hosts", "../none"))))
    found = find(settings, image_id)
    assert found is not None
    for name in ("resolv.conf", "hosts", "hostname"):
        path = Path(found.rootfs) / "etc" / name
        assert path.is_file()
        assert not path.is_symlink()
    assert outside.read_text() == "kept"


def kept(settings: Config) -> list[str]:
    folder = Path(settings.bundles) / "images"
    return sorted(path.name for path in folder.iterdir() if path.name not in ("names.json", ".lock", ".import"))


good = saved(*LAYERS)
evil = tar({"etc/evil": b"!"})
REFUSED = {
    "a layer is another one": {name: evil if content == LAYERS[1] else content for name, content in good.items()},
    "another machine's": MadeImage(LAYERS, architecture="z80", name="a/b:1").files(),
    "another name": saved(*LAYERS, name="a/c:1"),
}


@pytest.mark.parametrize("what", [*REFUSED])
def test_what_is_not_as_it_says_does_not_count(settings: Config, what: str) -> None:
    """`tests/system/test_image_archive.py` has all that the reader refuses."""
    with pytest.raises(Hostile):
        take(settings, REFUSED[what])
    assert find(settings, "a/b:1") is None
    assert kept(settings) == []
    take(settings, good)


def test_only_a_plain_file_is_read(settings: Config, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    folder = os.open(tmp_path, os.O_RDONLY)
    for descriptor in (reader, folder):
        with pytest.raises(Hostile, match="plain file"):
            import_image(settings, descriptor, "a/b:1")
        os.close(descriptor)
    os.close(writer)


UNIT = 10 * 2**10


def of_size(size: int, letter: bytes, name: str) -> dict[str, bytes]:
    return saved(tar({"file": letter * size}), name=name)


def test_an_image_that_grows_when_it_is_unpacked_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Config(1, bundles=str(tmp_path), most_image_bytes=250 * UNIT)
    monkeypatch.setattr(image_store, "_unpack", None)
    for layer in (tar({"file": bytes(3 * 2**20)}), tar({f"file-{number}": b"" for number in range(1000)})):
        with pytest.raises(Hostile, match="of the 2 MiB that images may take on this node 2 are free"):
            take(settings, MadeImage((layer,), name="a/b:1").files(packed=True))
        assert kept(settings) == []


def unused(settings: Config, image_id: str, age_s: float) -> None:
    """Let the last use of an image lie so far back."""
    at_s = time.time() - age_s
    os.utime(Path(settings.bundles) / "images" / image_id.replace(":", "-") / "size.json", (at_s, at_s))


def take_pushed(settings: Config, letter: bytes) -> str:
    """Take in an image without a name, as a group pushes it."""
    image = MadeImage((tar({"file": letter * 65 * UNIT}),))
    with tempfile.TemporaryFile() as file:
        file.write(image.stored)
        file.flush()
        return import_image(settings, file.fileno(), image.image_id)


@pytest.mark.slow
def test_pushed_images_make_room_for_others_and_the_one_used_least_recently_goes_first(tmp_path: Path) -> None:
    settings = Config(1, bundles=str(tmp_path), most_image_bytes=250 * UNIT)
    ids = [take_pushed(settings, letter) for letter in (b"a", b"b", b"c")]
    for image_id, age_s in zip(ids, (2000, 3000, 1000), strict=True):
        unused(settings, image_id, age_s)
    assert [image.image_id for image in image_store.unnamed(settings)] == [ids[1], ids[0], ids[2]]
    Bundle(settings, "job").make({"labels": {}, "image_id": ids[1], "rootfs": "/", "made_s": 1}, {})
    new = take_pushed(settings, b"d")
    assert {name.replace("-", ":") for name in kept(settings)} == {ids[1], ids[2], new}
    assert not image_store.drop(settings, ids[1]), "a container uses it"
    assert not image_store.drop(settings, new), "it is fresh"
    assert image_store.drop(settings, ids[2])
    unused(settings, new, 5000)
    assert find(settings, new) is not None  # a use
    with pytest.raises(Hostile, match="the others have names, or are in use"):
        take(settings, of_size(150 * UNIT, b"x", "x:1"), "x:1")


def test_all_files_belong_to_root_and_none_is_setuid(settings: Config) -> None:
    member = tarfile.TarInfo("su")
    member.mode, member.uid, member.gid = 0o6755, 1234, 1234
    closed = tarfile.TarInfo("closed")
    closed.type, closed.mode = tarfile.DIRTYPE, 0o555
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(member)
        archive.addfile(closed)
    found = find(settings, take(settings, saved(made.getvalue(), tar({"closed/file": b"of a later layer"}))))
    assert found is not None
    facts = (Path(found.rootfs) / "su").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o7777) == (os.geteuid(), os.getegid(), 0o755)
    assert (Path(found.rootfs) / "closed").stat().st_mode & 0o777 == 0o555
    assert (Path(found.rootfs) / "closed" / "file").read_bytes() == b"of a later layer"


def test_the_same_image_taken_in_by_many_is_unpacked_once(settings: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    unpacked: list[str] = []
    unpack_one = image_store._unpack

    def counted(*given: Any, **more: Any) -> None:
        unpacked.append("once")
        unpack_one(*given, **more)

    monkeypatch.setattr(image_store, "_unpack", counted)
    threads = [threading.Thread(target=take, args=(settings, good)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert unpacked == ["once"]
    assert find(settings, "a/b:1") is not None


def test_what_a_crash_left_half_unpacked_does_not_count_and_goes(
    settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "rename", lambda *_: os._exit(7))
    child = os.fork()
    if child == 0:
        take(settings, good)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    monkeypatch.undo()
    assert [name[:6] for name in kept(settings)] == [".part-"]
    assert find(settings, digest(configuration(*LAYERS))) is None
    image_id = take(settings, good)
    assert kept(settings) == [image_id.replace(":", "-")]


def test_a_layout_in_a_folder_is_handed_over_as_one_file(settings: Config, tmp_path: Path) -> None:
    for name, content in layout(*LAYERS).items():
        path = tmp_path / "images" / "a_b_1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "images" / "saved_1.tar").write_bytes(tar(saved(*LAYERS, name="saved:1")))
    for name in ("a/b:1", "saved:1"):
        with archive_of(tmp_path / "images", name) as descriptor:
            assert descriptor is not None
            assert import_image(settings, descriptor, name) == digest(configuration(*LAYERS))
    with archive_of(tmp_path / "images", "c:1") as descriptor:
        assert descriptor is None
