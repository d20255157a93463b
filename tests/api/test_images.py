"""Images that groups push: only what is whole gets a name."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from httpx import Response
from tests.api.api_harness import ApiHarness, Caller, detail
from tests.api.uploads import put_part, uploads_left
from tests.made_images import MadeImage, of_sizes, tar

from gleaner.agent.runtime.images import image_key
from gleaner.control.daemon.storage_gc import ORPHAN_AGE_S, remove_orphans
from gleaner.control.settings import ImageSettings

pytestmark = pytest.mark.slow


def send(caller: Caller, image: MadeImage, content: bytes | None = None) -> None:
    content = image.stored if content is None else content
    assert put_part(caller, "images", image.image_id, content, len(content)).json() == {"size_bytes": len(content)}


def pushed(caller: Caller, image: MadeImage, name: str = "pi:1", **more: object) -> dict[str, Any]:
    send(caller, image)
    answer = caller.post("/v1/images", image.push(name, **more))
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


def remove(caller: Caller, name: str) -> Response:
    answer: Response = caller.client.delete(f"/v1/images/{name}", headers=caller.headers)
    return answer


def limit(harness: ApiHarness, **images: object) -> None:
    harness.change(images=ImageSettings.model_validate(images))


def left_after_a_day(harness: ApiHarness) -> Sequence[str]:
    """The images that are left a day later."""
    began_s = harness.state.steady_clock()
    for at_s in (began_s, began_s + ORPHAN_AGE_S + 1):
        harness.state.steady_clock = partial(float, at_s)
        remove_orphans(harness.state)
    return harness.storage.keys("images")


def test_what_was_sent_is_the_image_or_goes(harness: ApiHarness) -> None:
    image = MadeImage()
    wrong = (tar({"bin/pi": b"2.71828"}), image.layers[1])
    layers = json.loads(image.files()["manifest.json"])[0]["Layers"]
    for what, said in (
        (MadeImage(wrong).stored, "it is the image"),
        (tar(image.files() | {layers[0]: wrong[0]}), "is not the one"),
        (tar(image.files(packed=True)), "is not the one"),  # it is stored as it is sent
        (b"no archive" * 100, "cannot be read"),
    ):
        send(harness.user, image, what)
        said_of_it = detail(harness.user.post("/v1/images", image.push(size_bytes=len(what))), 422)
        assert said in said_of_it
        assert said_of_it.endswith("; send it again")
        assert uploads_left(harness) == []
    assert harness.storage.keys("images") == []
    assert harness.user.get("/v1/images").json() == []
    assert "not all of" in detail(harness.user.post("/v1/images", image.push()), 409)


def test_an_image_for_no_known_architecture_is_refused(harness: ApiHarness) -> None:
    image = MadeImage(about={"architecture": "../x"})
    archive = tar(image.files())
    send(harness.user, image, archive)
    push = MadeImage().push(image_id=image.image_id, size_bytes=len(archive))
    assert "known architecture" in detail(harness.user.post("/v1/images", push), 422)


def test_a_groups_images_are_the_groups(harness: ApiHarness) -> None:
    image = MadeImage()
    pushed(harness.user, image)
    other = harness.caller("user", "zoe", "cms")
    assert other.get("/v1/images").json() == []
    detail(other.get("/v1/images/pi:1"), 404)
    detail(remove(other, "pi:1"), 404)
    detail(other.get("/v1/images", group="atlas"), 403)
    detail(put_part(other, "images", image.image_id, b"x", 1, group="atlas"), 403)
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
    send(bob, of_sizes([5]))
    detail(bob.post("/v1/images", of_sizes([5]).push()), 403)
    detail(remove(bob, "pi:1"), 403)
    assert pushed(harness.user, of_sizes([5]))["image_id"] == of_sizes([5]).image_id
    assert len(left_after_a_day(harness)) == 1  # nothing needs the first one any more
    headers = harness.admin.headers
    assert harness.client.delete("/v1/images/pi:1?group=atlas", headers=headers).status_code == 200
    assert "group" in detail(remove(harness.admin, "pi:1"), 422)


def test_a_push_that_is_refused_leaves_nothing_behind_and_counts_no_more(harness: ApiHarness) -> None:
    harness.agent(architecture="x86_64")
    limit(harness, group_gib=0.0012)
    for number in range(3):
        image = MadeImage((bytes(2**19), tar({"n": bytes(number)})), architecture="arm64")
        send(harness.user, image)
        said = detail(harness.user.post("/v1/images", image.push()), 422)
        assert said == "the image is for arm64, and the nodes here are amd64"
        assert uploads_left(harness) == []
    pushed(harness.user, of_sizes([2**20]))


def test_an_admin_can_forbid_pushes(harness: ApiHarness) -> None:
    pushed(harness.user, MadeImage())
    limit(harness, push=False)
    for answer in (
        put_part(harness.user, "images", MadeImage().image_id, b"", 1),
        harness.user.post("/v1/images", MadeImage().push()),
    ):
        assert "[images] push" in detail(answer, 403)
    assert len(harness.user.get("/v1/images").json()) == 1
