"""Images that groups push, on a node with the helper: the real helper takes in what control has stored."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.made_images import MadeImage, tar
from tests.privileged.test_helper import served

from gleaner.agent.checkpoints.interface import ArchiveBroken
from gleaner.agent.privileged.common.config import Config
from gleaner.agent.privileged.helper import image_store
from gleaner.agent.privileged.helper import main as helper_main
from gleaner.agent.runtime.helper_client import HelperClient
from gleaner.agent.runtime.helper_runtime import RuncRuntime
from gleaner.agent.runtime.interface import ImageRefused

LAYERS = (tar({"etc/seed": b"1"}), tar({"bin/pi": b"3.14159"}))


def stored(image: MadeImage) -> Iterator[bytes]:
    """The archive that control stores, in chunks."""
    return iter(image.stored[at : at + 4096] for at in range(0, len(image.stored), 4096))


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A helper that takes images in itself, and not in a process of its own, which reads the node's settings."""
    found = served(tmp_path, os.getuid())
    monkeypatch.setattr(helper_main, "_import", lambda file, name: image_store.import_image(found, file, name))
    return found


@pytest.fixture
def runtime(helper: Config) -> RuncRuntime:
    if os.getuid() != 0:
        pytest.skip("the agent speaks only with a helper that is root")
    return RuncRuntime(HelperClient(helper.helper_socket), handshakes=Path(helper.handshakes), settings=helper)


def test_the_archive_that_control_stores_is_taken_in_by_its_id(runtime: RuncRuntime, helper: Config) -> None:
    image = MadeImage(LAYERS)
    assert not runtime.has_image(image.image_id)
    runtime.load_image(image.image_id, stored(image))
    assert runtime.has_image(image.image_id)
    found = image_store.find(helper, image.image_id)
    assert found is not None
    assert (Path(found.rootfs) / "bin/pi").read_bytes() == b"3.14159"
    assert image_store.find(helper, "gleaner/pi:latest") is None  # whatever name it had where it was made
    (cached,) = runtime.cached_images()
    assert cached.name == image.image_id
    assert not runtime.drop_image(image.image_id)  # perhaps a job is about to begin with it
    size = Path(found.rootfs).parent / "size.json"
    os.utime(size, (1, 1))
    assert runtime.drop_image(image.image_id)
    assert not runtime.has_image(image.image_id)
    assert list(runtime.cached_images()) == []


def test_what_the_helper_does_not_take_is_refused_and_what_cannot_be_read_is_no_fault_of_the_image(
    runtime: RuncRuntime,
) -> None:
    hostile = MadeImage((*LAYERS, tar({"../../outside": b"x"})))
    with pytest.raises(ImageRefused, match="the node's helper does not take the image"):
        runtime.load_image(hostile.image_id, stored(hostile))

    def rotten() -> Iterator[bytes]:
        yield from (chunk for chunk, _ in zip(stored(MadeImage(LAYERS)), range(2), strict=False))
        raise ArchiveBroken("rot")

    with pytest.raises(ArchiveBroken):
        runtime.load_image(MadeImage(LAYERS).image_id, rotten())
    assert not runtime.has_image(MadeImage(LAYERS).image_id)
