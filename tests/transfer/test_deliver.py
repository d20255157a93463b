"""Results delivered into real folders by the real program: whole files only, and nothing outside of what is allowed."""

import hashlib
import itertools
import os
import pickle
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.recorded import recording
from tests.transfer.node import Node

from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.agent.system import openat
from gleaner.agent.transfer import process
from gleaner.agent.transfer.deliver import DeliverRequest
from gleaner.agent.transfer.folders import ListedFolder
from gleaner.agent.transfer.rules import Access
from gleaner.agent.transfer.stage import Progress, StagedFile

pytestmark = pytest.mark.slow
FILES = {"a.root": b"events" * 1000, "hist/b.root": b"hist", "hist/deep/run.sh": b"#!/bin/sh\n", "odd\nname": b"odd"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with `data`, which an admin allows."""
    (tmp_path / "data").mkdir()
    yield tmp_path
    for folder in tmp_path.rglob("*"):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o700)


def usual(place: Path) -> str:
    Node(place).write(FILES)
    (place / "job" / "hist/deep/run.sh").chmod(0o700)
    (place / "job" / "a.root").chmod(0)
    (place / "job" / "out").symlink_to("/etc/passwd")
    os.mkfifo(place / "job" / "pipe")
    (place / "job" / "hist").chmod(0o500)
    return Node(place).store()


def delivered(place: Path, digest: str, to: str = "set/7", below: str = "data", **more: Any) -> DeliveryReport:
    return Node(place).deliver(digest, f"file://{place}/data/{to}/", f"file://{place}/{below}/", **more)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_result_is_there_with_a_list_that_proves_it_whole(place: Path) -> None:
    digest = usual(place)
    report = delivered(place, digest)
    assert (report.failed, report.files, report.size_bytes) == ("", len(FILES), sum(map(len, FILES.values())))
    target = place / "data/set/7"
    assert files(target) == FILES | {"job-7.sha256": (target / "job-7.sha256").read_bytes()}
    subprocess.run(["sha256sum", "--check", "--strict", "job-7.sha256"], cwd=target, check=True, capture_output=True)
    modes = {name: stat.S_IMODE((target / name).stat().st_mode) for name in (*FILES, "hist", "job-7.sha256")}
    assert modes == dict.fromkeys([*FILES, "job-7.sha256"], 0o644) | {"hist/deep/run.sh": 0o755, "hist": 0o755}
    assert {path.name for path in target.iterdir()} == {name.partition("/")[0] for name in FILES} | {"job-7.sha256"}
    assert delivered(place, digest, to="some", keep=("**/*.root",)).files == 2
    assert sorted(files(place / "data/some")) == ["a.root", "hist/b.root", "job-7.sha256"]


def test_a_file_is_on_the_disk_before_it_has_its_name_at_the_target(place: Path) -> None:
    """After a power cut, what has the name of a result is whole."""
    (place / "stage").mkdir()
    (place / "stage/events").write_bytes(b"events")
    target = ListedFolder(f"file://{place}/data/", Access((f"file://{place}/data/",), (), 300))
    with (
        openat.closing_fd(os.open(place / "stage", openat.FOLDER)) as stage,
        StagedFile(stage, "events", Progress(lambda: None, 300)) as file,
        recording() as calls,
    ):
        target.put(("a.root",), file)
    assert calls.all == [
        ("fsync", place / "stage/events"), ("rename", place / "data/a.root"), ("fsync", place / "data"),
    ]  # fmt: skip


def test_delivered_again_it_is_the_same_and_what_others_have_put_there_stays(place: Path) -> None:
    digest = usual(place)
    target = place / "data/set/7"
    target.mkdir(parents=True)
    (target / "a.root").write_bytes(b"older")
    (target / "hist").mkdir()
    (target / "hist/other").write_bytes(b"other")
    for left in (".gleaner-7-1", ".gleaner-71-1"):  # of agents that died
        (target / left).mkdir(mode=0)
    assert delivered(place, digest, number=2).failed == ""
    once = files(target)
    assert (once["a.root"], once["hist/other"]) == (FILES["a.root"], b"other")
    assert delivered(place, digest, number=3).failed == ""
    assert files(target) == once
    assert [path.name for path in target.glob(".gleaner*")] == [".gleaner-71-1"]


@pytest.mark.parametrize("where", ["data", "data/set", "data/set/7", "data/set/7/hist"])
def test_no_link_leads_a_delivery_elsewhere(place: Path, where: str) -> None:
    """In Gleaner's storage, a file could be a report, which control believes."""
    digest = usual(place)
    (place / "data").rmdir()
    (place / where).parent.mkdir(parents=True, exist_ok=True)
    (place / where).symlink_to(place / "storage")
    before = files(place / "storage")
    report = delivered(place, digest)
    assert "leads through a file or a link" in report.failed
    assert report.may_pass is (where == "data"), "an admin can repair what an admin has listed"
    assert files(place / "storage") == before


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(place: Path) -> None:
    digest = usual(place)
    (place / "victim").write_bytes(b"precious")
    (place / "data/set/7").mkdir(parents=True)
    for name in ("a.root", "job-7.sha256"):
        (place / "data/set/7" / name).symlink_to(place / "victim")
    assert delivered(place, digest).failed == ""
    assert (place / "victim").read_bytes() == b"precious"
    assert (place / "data/set/7/a.root").read_bytes() == FILES["a.root"]


def test_what_cannot_be_delivered_is_one_line(place: Path) -> None:
    digest = usual(place)
    elsewhere = delivered(place, digest, below="other")
    assert "is not below a URL that this site allows: an admin may add it to urls in [outputs]" in elsewhere.failed
    assert not elsewhere.may_pass
    gone = delivered(place, digest, to="x", below="data/x")
    assert "No such file or directory; an admin must make this folder on all nodes" in gone.failed
    assert gone.may_pass
    (place / "data/set/7/a.root").mkdir(parents=True)
    assert "is a folder there, and a file of the result" in delivered(place, digest).failed
    missing = delivered(place, f"sha256:{hashlib.sha256(b'').hexdigest()}", to="y")
    assert "the result cannot be read: " in missing.failed
    assert missing.may_pass


def test_a_message_has_printable_letters_only_whatever_a_file_is_called(place: Path) -> None:
    name = os.fsdecode(b"\xff\x1b[2Jx")
    (place / "data/set/7" / name).mkdir(parents=True)
    report = delivered(place, Node(place).store({name: b""}))
    assert "/set/7/: ??[2Jx is a folder there" in report.failed
    assert not report.may_pass


def test_a_full_disk_is_one_line_and_leaves_nothing(place: Path) -> None:
    digest = Node(place).store({"a": bytes(2**20), "b": os.urandom(2**22)})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=755", "none", place / "data"], check=True)
    try:
        report = delivered(place, digest)
        assert ("there is no room for the result" in report.failed, report.may_pass) == (True, True)
        assert files(place / "data") == {}
    finally:
        subprocess.run(["umount", place / "data"], check=True)


def test_a_delivery_killed_at_any_step_shows_no_half_file_and_the_next_one_completes_it(place: Path) -> None:
    """Each piece that was copied is reported, so the child is killed after the first, the second, and so on."""
    digest, to, below = usual(place), f"file://{place}/data/7", f"file://{place}/data/"
    offer = Delivery(job=7, attempt=2, number=1, digest=digest, to=to, allowed=(below,), total_s=600, silent_s=300)
    request = DeliverRequest(offer, Access((below,), (), 300), place / "storage", place, 0)
    for steps in itertools.count(1):
        with subprocess.Popen(process.PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with child.stdin:
                child.stdin.write(pickle.dumps(request))
            reported = child.stdout.read(steps)
            child.kill()
        shown = {name: content for name, content in files(place / "data").items() if not name.startswith("7/.gleaner-")}
        for name, content in shown.items():
            if name != "7/job-7.sha256":
                assert content == FILES[name.removeprefix("7/")]
        if "7/job-7.sha256" in shown:
            assert len(shown) == 1 + len(FILES)
        if len(reported) < steps:
            break
    assert steps > 1 + len(FILES)
    assert delivered(place, digest, to="7", number=2).failed == ""
    assert list((place / "data/7").glob(".gleaner*")) == []
    assert len(files(place / "data/7")) == 1 + len(FILES)
