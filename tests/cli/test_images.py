"""`glean image` against a real control program."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cli_harness import CliHarness
from tests.made_images import MadeImage, of_sizes, tar

from gleaner.client import uploads
from gleaner.control.models.uploads import PART_BYTES

pytestmark = pytest.mark.slow

FOR = ("--architecture", "amd64")


def saved(harness: CliHarness, image: MadeImage, name: str = "pi.tar") -> str:
    (harness.folder / name).write_bytes(tar(image.files()))
    return name


def pushed(harness: CliHarness, name: str, image: MadeImage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(harness.good("image", "push", name, saved(harness, image), "--json", *FOR))
    return found


def test_an_image_is_pushed_listed_shown_used_and_removed(harness: CliHarness) -> None:
    image = MadeImage()
    row = pushed(harness, "pi:1", image)
    assert (row["name"], row["group"], row["image_id"], row["pusher"]) == ("pi:1", "atlas", image.image_id, "alice")
    assert json.loads(harness.good("image", "list", "--json"))["pushed"] == [row]
    assert json.loads(harness.good("image", "show", "pi:1", "--json")) == row
    for shown in (harness.good("image", "list"), harness.good("image", "show", "pi:1")):
        assert "pi:1" in shown
        assert image.image_id[7:19] in shown
    job = json.loads(harness.good("submit", "--image", "pi:1", "--json", "--", "pi"))["jobs"][0]
    assert image.image_id[7:19] in harness.good("show", str(job))
    assert "1 unended job needs it" in harness.refused("image", "rm", "pi:1", code=1)
    (given,) = harness.node.claim()
    assert given.image == image.image_id
    harness.node.complete(given)
    assert json.loads(harness.good("image", "rm", "pi:1", "--json"))["name"] == "pi:1"
    assert json.loads(harness.good("image", "list", "--json"))["pushed"] == []
    assert "no image pi:1" in harness.refused("image", "show", "pi:1", code=1)


def test_an_admin_publishes_an_image_to_all_groups_and_takes_it_back(admin: CliHarness, harness: CliHarness) -> None:
    pushed(harness, "pi:1", MadeImage())
    assert "admin" in harness.refused("image", "publish", "pi:1", code=3)
    assert "admin" in harness.refused("image", "unpublish", "pi:1", code=3)
    row = json.loads(admin.good("image", "publish", "pi:1", "--group", "atlas", "--json"))
    assert (row["name"], row["group"], row["image_id"]) == ("pi:1", "*", MadeImage().image_id)
    harness.good("image", "rm", "pi:1")
    (listed,) = json.loads(harness.good("image", "list", "--json"))["pushed"]
    assert listed == json.loads(harness.good("image", "show", "pi:1", "--json"))
    assert " all " in harness.good("image", "list")
    job = json.loads(harness.good("submit", "--image", "pi:1", "--json", "--", "pi"))["jobs"][0]
    assert "1 unended job needs it" in admin.refused("image", "unpublish", "pi:1", code=1)
    harness.good("cancel", str(job))
    admin.good("image", "unpublish", "pi:1")
    assert "no image pi:1" in harness.refused("image", "show", "pi:1", code=1)


def test_a_push_that_broke_off_goes_on_where_it_was(harness: CliHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    image = of_sizes([2 * PART_BYTES, 100])
    saved(harness, image)
    real, sent = uploads._put, list[int]()

    def breaking_off(connection: Any, file: Any, part: bytes, **more: Any) -> Any:
        if len(sent) == 2:
            raise KeyboardInterrupt
        if part:
            sent.append(len(part))
        return real(connection, file, part, **more)

    with monkeypatch.context() as patch:
        patch.setattr(uploads, "_put", breaking_off)
        assert harness.run("image", "push", "big", "pi.tar", *FOR)[0] == 130

    def counted(connection: Any, file: Any, part: bytes, **more: Any) -> Any:
        sent.append(len(part))
        return real(connection, file, part, **more)

    monkeypatch.setattr(uploads, "_put", counted)
    assert pushed(harness, "big", image)["name"] == "big:latest"
    assert sum(sent) == len(image.stored)


def program(harness: CliHarness, name: str, does: str) -> None:
    folder = harness.folder / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{does}\n")
    (folder / name).chmod(0o755)
    harness.environment["PATH"] = f"{folder}:/bin:/usr/bin"


def test_a_name_is_saved_by_docker_first(harness: CliHarness) -> None:
    image = MadeImage()
    saved(harness, image)
    program(
        harness,
        "docker",
        f'[ "$1 $2 $4" = "save --output lab/pi" ] && exec cp {harness.folder}/pi.tar "$3"\n'
        'echo no such "$4" >&2; exit 1',
    )
    out = harness.good("image", "push", "pi", "lab/pi", "--json", *FOR)
    assert json.loads(out)["image_id"] == image.image_id
    assert "docker does not save lab/other: no such lab/other" in harness.refused(
        "image", "push", "pi", "lab/other", *FOR, code=2
    )


def test_without_docker_podman_saves_it(harness: CliHarness, tmp_path: Path) -> None:
    saved(harness, MadeImage())
    program(harness, "podman", f'exec /bin/cp {harness.folder}/pi.tar "$3"')
    harness.environment["PATH"] = str(harness.folder / "bin")
    harness.good("image", "push", "pi", "lab/pi", *FOR)
    (harness.folder / "bin" / "podman").unlink()
    assert "nor a name that could be saved" in harness.refused("image", "push", "pi", "lab/pi", *FOR, code=2)


def allow(harness: CliHarness, *registries: str) -> None:
    settings = harness.state.settings
    images = settings.images.model_copy(update={"registries": registries})
    harness.state.settings = settings.model_copy(update={"images": images})


def test_an_image_in_a_registry_is_fetched_only_where_the_site_names_the_registry(harness: CliHarness) -> None:
    """`test_registry` fetches one from a real registry."""
    source = "docker://registry.site/physics/pi:1"
    push = ("image", "push", "pi", source, "--json", *FOR)
    assert "takes none ([images] registries in control's settings)" in harness.refused(*push, code=3)
    allow(harness, "other.site/*", "registry.site/chemistry/*")
    assert "only other.site/*, registry.site/chemistry/*" in harness.refused(*push, code=3)
    allow(harness, "registry.site/physics/*")
    assert "a name must follow docker://" in harness.refused("image", "push", "pi", "docker://-o", *FOR, code=2)
    harness.environment["PATH"] = str(harness.folder / "bin")
    assert "install skopeo" in harness.refused(*push, code=2)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("gleaner/pi", "pi.tar", "is not a name for an image"),
        ("Pi", "pi.tar", "is not a name for an image"),
        ("pi", ".", "is neither an image file, nor an OCI layout"),
        ("pi", "-o", "is neither an image file, nor an OCI layout"),
        ("pi", "half", "half: it cannot be read"),
        ("pi", "broken.tar", "broken.tar: it cannot be read"),
        ("pi", "arm.tar", "arm.tar: it holds linux/arm64"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_sent(
    harness: CliHarness, name: str, source: str, said: str, tmp_path: Path
) -> None:
    saved(harness, MadeImage())
    saved(harness, MadeImage(architecture="arm64"), "arm.tar")
    (harness.folder / "half").mkdir()
    (harness.folder / "half" / "index.json").write_text("{}")
    (harness.folder / "broken.tar").write_bytes(b"nothing of the kind" * 100)
    assert said in harness.refused("image", "push", *FOR, "--", name, source, code=2)
    assert not (tmp_path / "storage" / "images").exists()
