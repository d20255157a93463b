"""Results delivered into real folders by the real program: whole files only, and nothing outside of what is allowed."""

import hashlib
import itertools
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import FOLDER_PART, output_key
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.agent.staging import deliver_child
from gleaner.agent.staging.child_process import child_process
from gleaner.agent.staging.deliver import Deliver
from gleaner.agent.staging.deliver_child import DeliverRequest
from gleaner.agent.staging.stage import SLOWEST_BYTES_PER_S, sync_staged

pytestmark = pytest.mark.slow
FILES = {"a.root": b"events" * 1000, "hist/b.root": b"hist", "hist/deep/run.sh": b"#!/bin/sh\n", "odd\nname": b"odd"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with a storage, a job's folder, and `data`, which an admin allows."""
    FolderStorage(tmp_path / "storage").prepare()
    for name in ("job", "data"):
        (tmp_path / name).mkdir()
    yield tmp_path
    for folder in tmp_path.rglob("*"):
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o700)


def stored(place: Path) -> str:
    """Store what is in the job's folder as the result of attempt 2 of job 7."""
    with FolderStorage(place / "storage").draft(output_key(7, 2)) as draft:
        draft.add(FOLDER_PART, workdir_tar.pack(place / "job"))
        return draft.publish({}).digest


def usual(place: Path) -> str:
    for name, content in FILES.items():
        (place / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "job" / name).write_bytes(content)
    (place / "job" / "hist/deep/run.sh").chmod(0o700)
    (place / "job" / "a.root").chmod(0)
    (place / "job" / "out").symlink_to("/etc/passwd")
    os.mkfifo(place / "job" / "pipe")
    (place / "job" / "hist").chmod(0o500)
    return stored(place)


def deliver(place: Path, *, reserve_bytes: int = 0) -> Deliver:
    return Deliver(place / "storage", place / "work", reserve_bytes, "control.example", SystemClock())


def delivered(place: Path, digest: str, to: str = "set/7", **more: Any) -> DeliveryReport:
    offer = Delivery.model_validate(
        {
            "job": 7, "attempt": 2, "number": 1, "digest": digest, "to": f"file://{place}/data/{to}/",
            "allowed": (f"file://{place}/data/",), "total_s": 600, "silent_s": 300,
        }
        | more
    )  # fmt: skip
    report = deliver(place)(offer, threading.Event())
    assert report is not None
    assert "\n" not in report.failed
    return report


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_result_is_there_with_a_list_that_proves_it_whole(place: Path) -> None:
    report = delivered(place, usual(place))
    assert (report.failed, report.files, report.size_bytes) == ("", len(FILES), sum(map(len, FILES.values())))
    target = place / "data/set/7"
    assert files(target) == FILES | {"job-7.sha256": (target / "job-7.sha256").read_bytes()}
    subprocess.run(["sha256sum", "--check", "--strict", "job-7.sha256"], cwd=target, check=True, capture_output=True)
    modes = {name: stat.S_IMODE((target / name).stat().st_mode) for name in (*FILES, "hist", "job-7.sha256")}
    assert modes == dict.fromkeys([*FILES, "job-7.sha256"], 0o644) | {"hist/deep/run.sh": 0o755, "hist": 0o755}
    assert {path.name for path in target.iterdir()} == {name.partition("/")[0] for name in FILES} | {"job-7.sha256"}


def test_delivered_again_it_is_the_same_and_what_others_have_put_there_stays(place: Path) -> None:
    digest = usual(place)
    target = place / "data/set/7"
    target.mkdir(parents=True)
    (target / "a.root").write_bytes(b"older")
    (target / "hist").mkdir()
    (target / "hist/other").write_bytes(b"other")
    (target / ".gleaner-7-1").mkdir(mode=0)  # of an agent that died
    assert delivered(place, digest, number=2).failed == ""
    once = files(target)
    assert (once["a.root"], once["hist/other"]) == (FILES["a.root"], b"other")
    assert delivered(place, digest, number=3).failed == ""
    assert files(target) == once
    assert list(target.glob(".gleaner*")) == []


def test_only_what_is_to_be_kept_is_delivered_whatever_an_older_agent_has_stored(place: Path) -> None:
    report = delivered(place, usual(place), keep=("**/*.root",))
    assert (report.files, sorted(files(place / "data/set/7"))) == (2, ["a.root", "hist/b.root", "job-7.sha256"])


@pytest.mark.parametrize("where", ["data/set", "data/set/7", "data/set/7/hist"])
def test_no_link_leads_a_delivery_elsewhere(place: Path, where: str) -> None:
    digest = usual(place)
    (place / "outside").mkdir()
    (place / where).parent.mkdir(parents=True, exist_ok=True)
    (place / where).symlink_to(place / "outside")
    report = delivered(place, digest)
    assert "leads through a file or a link" in report.failed
    assert not report.may_pass
    assert list((place / "outside").iterdir()) == []


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
    elsewhere = delivered(place, digest, allowed=(f"file://{place}/other/",))
    assert "is not below a URL that this site allows: an admin may add it to urls in [outputs]" in elsewhere.failed
    assert not elsewhere.may_pass
    gone = delivered(place, digest, to="x", allowed=(f"file://{place}/data/x/",))
    assert "No such file or directory; an admin must make this folder on all nodes" in gone.failed
    assert gone.may_pass
    (place / "data/set/7/a.root").mkdir(parents=True)
    assert "is a folder there, and a file of the result" in delivered(place, digest).failed
    missing = delivered(place, f"sha256:{hashlib.sha256(b'').hexdigest()}", to="y")
    assert "the result cannot be read: " in missing.failed
    assert missing.may_pass


def test_files_of_holes_hold_up_nobody(place: Path) -> None:
    for name in ("holes", "more"):
        (place / "job" / name).write_bytes(b"x")
        os.truncate(place / "job" / name, 2**30)
    digest = stored(place)
    report = delivered(place, digest)
    assert "the files are mostly holes (2.0 GiB, of which " in report.failed
    assert (report.may_pass, files(place / "data")) == (False, {})


def test_a_message_has_printable_letters_only_whatever_a_file_is_called(place: Path) -> None:
    name = os.fsdecode(b"\xff\x1b[2Jx")
    (place / "job" / name).write_bytes(b"")
    (place / "data/set/7" / name).mkdir(parents=True)
    report = delivered(place, stored(place))
    assert "/set/7/: ??[2Jx is a folder there" in report.failed
    assert not report.may_pass


def test_a_delivery_that_takes_too_long_is_given_up(place: Path) -> None:
    digest = usual(place)
    assert "did not take the result within 0 s ([outputs] deliver_s)" in delivered(place, digest, total_s=0).failed
    assert files(place / "data") == {}


def test_a_delivery_that_is_killed_leaves_nothing_on_the_node_and_at_the_target(place: Path) -> None:
    digest = usual(place)
    for left in ("work/.gleaner-7-1/inner", "data/set/7/.gleaner-7-1/inner", "data/set/7/.gleaner-71-1"):
        (place / left).mkdir(parents=True)
    assert delivered(place, digest, total_s=0).may_pass
    assert [path.name for path in (*(place / "work").iterdir(), *(place / "data/set/7").iterdir())] == [".gleaner-71-1"]


def test_a_delivery_killed_at_any_step_shows_no_half_file_and_the_next_one_completes_it(place: Path) -> None:
    """Each piece that was copied is said, so the child is killed after the first, the second, and so on."""
    digest, to = usual(place), f"file://{place}/data/7"
    request = DeliverRequest(
        storage=str(place / "storage"), job=7, attempt=2, digest=digest, to=to, number=1, keep=(),
        allowed=(f"file://{place}/data/",), control_host="", silent_s=300, spool=str(place / "work"), reserve_bytes=0,
    )  # fmt: skip
    for steps in itertools.count(1):
        with child_process(deliver_child) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with child.stdin:
                child.stdin.write(request.to_json())
            said = child.stdout.read(steps)
            child.kill()
            child.wait()
        shown = {name: content for name, content in files(place / "data").items() if not name.startswith("7/.gleaner-")}
        for name, content in shown.items():
            if name != "7/job-7.sha256":
                assert content == FILES[name.removeprefix("7/")]
        if "7/job-7.sha256" in shown:
            assert len(shown) == 1 + len(FILES)
        if len(said) < steps:
            break
    assert steps > 1 + len(FILES)
    assert delivered(place, digest, to="7", number=2).failed == ""
    assert list((place / "data/7").glob(".gleaner*")) == []
    assert len(files(place / "data/7")) == 1 + len(FILES)


def test_a_long_sync_is_not_silent_and_one_that_hangs_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync ends when so much was said as may be said for the file's size."""
    says, enough = itertools.count(1), threading.Event()

    def progress() -> None:
        if next(says) == 3:
            enough.set()

    monkeypatch.setattr(os, "fsync", lambda _file: enough.wait(60))
    sync_staged(0, 3 * SLOWEST_BYTES_PER_S // 100, progress, say_every_s=0.01)
    assert enough.is_set()
    assert next(says) == 5  # once more at its end, and never beyond what the size allows


def hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a program that does nothing, as one does whose file system is away."""
    monkeypatch.setattr(deliver_child, "__name__", "hanging_child")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def test_a_stop_ends_a_delivery_at_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang(monkeypatch)
    stop = threading.Event()
    stop.set()
    offer = Delivery(
        job=7, attempt=2, number=1, digest=f"sha256:{0:064x}", to=f"file://{place}/data/7",
        allowed=(f"file://{place}/data/",), total_s=600, silent_s=300,
    )  # fmt: skip
    assert deliver(place)(offer, stop) is None


def test_a_target_that_takes_nothing_is_given_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang(monkeypatch)
    report = delivered(place, f"sha256:{0:064x}", silent_s=0.1)
    assert (report.failed.endswith("/data/set/7/ has taken nothing for 0 s"), report.may_pass) == (True, True)
