"""Images that groups push: pieces come in any order and any number of times, and only what is whole gets a name."""

import json
import sqlite3
import tarfile
import time
from collections.abc import Iterable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from tests.api.api_harness import ApiHarness, Caller, detail
from tests.made_images import MadeImage, digest, hexed, of_sizes, tar

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.agent.runtime.images import IMAGE_PART, image_key
from gleaner.control.daemon.storage_gc import ORPHAN_AGE_S, remove_garbage, remove_orphans
from gleaner.control.models.images import KEEP_PIECES_S, PIECE_BYTES
from gleaner.control.settings import ImageSettings

pytestmark = pytest.mark.slow


def send(caller: Caller, content: bytes, query: str = "") -> Response:
    headers = caller.headers | {"Content-Type": "application/octet-stream"}
    answer: Response = caller.client.post(f"/v1/image-uploads/pieces{query}", content=content, headers=headers)
    return answer


def send_all(caller: Caller, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        answer = send(caller, piece)
        assert (answer.status_code, answer.json()) == (201, {"digest": digest(piece)})


def missing(caller: Caller, image: MadeImage) -> list[str]:
    answer = caller.post("/v1/image-uploads/missing", {"pieces": image.push()["pieces"]})
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["missing"]
    return found


def pushed(caller: Caller, image: MadeImage, name: str = "pi:1", **more: object) -> dict[str, Any]:
    send_all(caller, image.pieces())
    answer = caller.post("/v1/images", image.push(name, **more))
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def remove(caller: Caller, name: str) -> Response:
    answer: Response = caller.client.delete(f"/v1/images/{name}", headers=caller.headers)
    return answer


def stored_archive(harness: ApiHarness, image: MadeImage) -> bytes:
    (claimed,) = harness.agent("n9", architecture="x86_64").claim()
    assert claimed["image_id"] == image.image_id
    archive = harness.storage.open(image_key(image.image_id), claimed["image_digest"])
    return b"".join(archive.read(IMAGE_PART))


def pieces_left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "storage" / "images" / ".pieces").glob("*/*"))


def limit(harness: ApiHarness, **images: object) -> None:
    settings = harness.state.settings
    harness.state.settings = settings.model_copy(update={"images": ImageSettings.model_validate(images)})


def left_after_a_day(harness: ApiHarness) -> Sequence[str]:
    """The images that are left a day later."""
    began_s = harness.state.steady_clock()
    for at_s in (began_s, began_s + ORPHAN_AGE_S + 1):
        harness.state.steady_clock = partial(float, at_s)
        remove_orphans(harness.state)
    return harness.storage.keys("images")


def test_the_stored_archive_is_one_for_docker_load_and_has_no_name(harness: ApiHarness) -> None:
    image = MadeImage((*MadeImage().layers, MadeImage().layers[0]))
    pushed(harness.user, image)
    harness.user.submit(spec={"image": "pi:1"})
    with tarfile.open(fileobj=BytesIO(stored_archive(harness, image)), mode="r:") as archive:
        names = archive.getnames()
        contents = {name: archive.extractfile(name).read() for name in names}  # type: ignore[union-attr]
    (entry,) = json.loads(contents["manifest.json"])
    assert len(set(names)) == len(names) == 4
    assert entry["RepoTags"] is None
    assert contents[entry["Config"]] == image.config
    assert tuple(contents[name] for name in entry["Layers"]) == image.layers


def test_a_push_that_was_interrupted_goes_on_with_what_is_missing(harness: ApiHarness) -> None:
    image = of_sizes([2 * PIECE_BYTES, 100])
    pieces = image.pieces()
    assert len(pieces) == 3
    assert missing(harness.user, image) == [digest(piece) for piece in pieces]
    send_all(harness.user, [pieces[1]])
    assert missing(harness.user, image) == [digest(pieces[0]), digest(pieces[2])]
    assert "push it again" in detail(harness.user.post("/v1/images", image.push()), 409)
    send_all(harness.user, [pieces[2], pieces[0], pieces[0]])
    assert missing(harness.user, image) == []
    assert harness.user.post("/v1/images", image.push()).status_code == 201


def test_a_piece_that_was_damaged_in_the_storage_is_not_taken_for_the_one_that_was_sent(
    harness: ApiHarness, tmp_path: Path
) -> None:
    image = MadeImage()
    send_all(harness.user, image.pieces())
    (name,) = pieces_left(tmp_path)
    (tmp_path / "storage" / "images" / ".pieces" / "atlas" / name).write_bytes(b"rot")
    detail(harness.user.post("/v1/images", image.push()), 409)
    assert harness.user.get("/v1/images").json() == []


def test_pieces_that_nobody_goes_on_with_are_removed_after_a_week(harness: ApiHarness, tmp_path: Path) -> None:
    harness.now_s = time.time()  # as the files' times are the file system's
    old, new = MadeImage(), of_sizes([10])
    send_all(harness.user, [*old.pieces(), *new.pieces()])
    assert missing(harness.user, old) == []
    assert len(pieces_left(tmp_path)) == 2
    remove_garbage(harness.state, harness.now_s + KEEP_PIECES_S - 60, by_age=True)
    assert len(pieces_left(tmp_path)) == 2
    harness.now_s += KEEP_PIECES_S + 1
    assert missing(harness.user, new) == []
    remove_garbage(harness.state, harness.now_s, by_age=True)
    assert pieces_left(tmp_path) == [hexed(piece) for piece in new.pieces()]


def test_a_layer_that_is_not_what_the_configuration_names_is_refused_and_nothing_is_stored(
    harness: ApiHarness,
) -> None:
    image = MadeImage()
    wrong = tar({"bin/pi": b"2.71828"}) + image.layers[1]
    send_all(harness.user, [wrong])
    assert "is another one" in detail(harness.user.post("/v1/images", image.push(pieces=[digest(wrong)])), 422)
    assert harness.storage.keys("images") == []
    assert harness.user.get("/v1/images").json() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"config": "{}"}, "no image's configuration"),
        ({"config": "not JSON"}, "no image's configuration"),
        ({"config": '{"architecture": "amd64", "os": "windows", "rootfs": {"diff_ids": []}}'}, "only images for Linux"),
        ({"config": '{"architecture": "amd64", "rootfs": {"diff_ids": []}}'}, "not those that"),
        ({"pieces": []}, "must be cut into pieces"),
        ({"layers": []}, "layers: "),
        ({"name": "gleaner/pi"}, "name: "),
        ({"name": "../pi"}, "name: "),
    ],
)
def test_what_is_no_image_is_refused_in_one_line(harness: ApiHarness, change: dict[str, object], said: str) -> None:
    image = MadeImage()
    send_all(harness.user, image.pieces())
    assert said in detail(harness.user.post("/v1/images", image.push() | change), 422)


def test_an_image_for_other_processors_than_the_nodes_have_is_refused(harness: ApiHarness) -> None:
    harness.agent(architecture="x86_64")
    image = MadeImage(architecture="arm64")
    send_all(harness.user, image.pieces())
    said = detail(harness.user.post("/v1/images", image.push()), 422)
    assert said == "the image is for arm64, and the nodes here are amd64"
    pushed(harness.user, MadeImage())


def test_a_groups_images_are_the_groups(harness: ApiHarness) -> None:
    image = MadeImage()
    pushed(harness.user, image)
    other = harness.caller("user", "zoe", "cms")
    assert other.get("/v1/images").json() == []
    detail(other.get("/v1/images/pi:1"), 404)
    detail(remove(other, "pi:1"), 404)
    detail(other.get("/v1/images", group="atlas"), 403)
    detail(other.post("/v1/image-uploads/missing", {"pieces": [], "group": "atlas"}), 403)
    detail(send(other, b"x", "?group=atlas"), 403)
    detail(other.post("/v1/images", image.push(group="atlas")), 403)
    detail(other.post("/v1/images", image.push()), 409)  # that another group has it does not help
    job = other.submit(spec={"image": "pi:1"})
    assert other.get(f"/v1/jobs/{job}").json()["image_id"] is None
    pushed(other, image)
    assert len(harness.storage.keys("images")) == 1
    assert [(row["group"], row["name"]) for row in harness.admin.get("/v1/images").json()] == [
        ("atlas", "pi:1"),
        ("cms", "pi:1"),
    ]
    assert remove(harness.user, "pi:1").status_code == 200
    assert harness.storage.keys("images") == [image_key(image.image_id)]
    assert remove(other, "pi:1").status_code == 200
    assert left_after_a_day(harness) == []


def test_only_the_pusher_a_manager_or_an_admin_gives_a_name_to_another_image_or_removes_it(harness: ApiHarness) -> None:
    pushed(harness.user, MadeImage())
    bob = harness.caller("user", "bob", "atlas")
    assert [row["name"] for row in bob.get("/v1/images").json()] == ["pi:1"]
    send_all(bob, of_sizes([5]).pieces())
    detail(bob.post("/v1/images", of_sizes([5]).push()), 403)
    detail(remove(bob, "pi:1"), 403)
    assert pushed(harness.user, of_sizes([5]))["image_id"] == of_sizes([5]).image_id
    assert len(left_after_a_day(harness)) == 1  # nothing needs the first one any more
    headers = harness.admin.headers
    assert harness.client.delete("/v1/images/pi:1?group=atlas", headers=headers).status_code == 200
    assert "group" in detail(remove(harness.admin, "pi:1"), 422)


def test_sizes_are_limited(harness: ApiHarness) -> None:
    image = of_sizes([2**20])
    limit(harness, largest_gib=0.0005)
    assert "[images] largest_gib" in detail(harness.user.post("/v1/images", image.push()), 413)
    limit(harness, group_gib=0.0012)
    pushed(harness.user, image)
    send_all(harness.user, of_sizes([2**19]).pieces())
    assert "glean image rm" in detail(harness.user.post("/v1/images", of_sizes([2**19]).push("two:1")), 409)
    assert harness.storage.keys("images") == [image_key(image.image_id)], "what is refused is not stored before"
    assert [row["name"] for row in harness.user.get("/v1/images").json()] == ["pi:1"]
    pushed(harness.user, of_sizes([2**19]))  # in place of the first: there is room


def test_unfinished_pushes_are_limited_too(harness: ApiHarness) -> None:
    limit(harness, largest_gib=2 * PIECE_BYTES / 2**30)
    send_all(harness.user, [b"1", b"2", b"3"])
    assert "too many pieces" in detail(send(harness.user, b"4"), 409)
    detail(send(harness.user, bytes(PIECE_BYTES + 1)), 422)
    detail(send(harness.user, b""), 422)


def test_an_admin_can_forbid_pushes(harness: ApiHarness) -> None:
    pushed(harness.user, MadeImage())
    limit(harness, push=False)
    for answer in (
        send(harness.user, b"x"),
        harness.user.post("/v1/image-uploads/missing", {"pieces": []}),
        harness.user.post("/v1/images", MadeImage().push()),
    ):
        assert "[images] push" in detail(answer, 403)
    assert len(harness.user.get("/v1/images").json()) == 1


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_commit_that_fails_or_whose_answer_is_lost_removes_nothing(
    is_committed: bool, harness: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may know by now what was stored."""
    image = MadeImage()
    send_all(harness.user, image.pieces())
    commit, fails = harness.state.engine.dialect.do_commit, [True]

    def lose_answer(connection: Any) -> None:
        if image_key(image.image_id) in harness.storage.keys("images") and fails:
            if is_committed:
                commit(connection)
            fails.clear()
            raise sqlite3.OperationalError("server closed the connection unexpectedly")
        commit(connection)

    with monkeypatch.context() as patch:
        patch.setattr(harness.state.engine.dialect, "do_commit", lose_answer)
        assert harness.user.post("/v1/images", image.push()).status_code >= 500
    assert [row["name"] for row in harness.user.get("/v1/images").json()] == ["pi:1"] * is_committed
    pushed(harness.user, image)
    harness.user.submit(spec={"image": "pi:1"})
    assert image.layers[0] in stored_archive(harness, image)


def test_a_storage_that_fails_is_one_line_and_the_push_can_be_repeated(
    harness: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = MadeImage()
    send_all(harness.user, image.pieces())

    def full(_key: str) -> None:
        raise StorageError("the storage is full")

    with monkeypatch.context() as patch:
        patch.setattr(harness.state.storage, "draft", full)
        assert detail(harness.user.post("/v1/images", image.push()), 502) == "the storage is full"
    assert missing(harness.user, image) == []
    assert harness.user.post("/v1/images", image.push()).status_code == 201


def test_an_image_that_was_damaged_in_the_storage_is_stored_anew_by_another_push(
    harness: ApiHarness, tmp_path: Path
) -> None:
    image = MadeImage()
    pushed(harness.user, image)
    harness.user.submit(spec={"image": "pi:1"})
    (pack,) = (tmp_path / "storage" / image_key(image.image_id)).glob("*.pack")
    pack.write_bytes(bytes(pack.stat().st_size))
    pushed(harness.caller("user", "zoe", "cms"), image)
    assert image.layers[1] in stored_archive(harness, image)
