"""Results delivered to a real HTTPS server that takes files, with WebDAV and without, and that misbehaves."""

import hashlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.staging.dav_server import DavServer, dav_server
from tests.staging.processes import children, shown_to_others

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import FOLDER_PART, output_key
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.deliver import Deliver
from gleaner.agent.staging.stage import SAYS_WHILE_SILENT, SLOWEST_BYTES_PER_S
from gleaner.agent.staging.webdav import WebDav

PASSING = f".gleaner-7-1-{hashlib.sha256(b'a.root').hexdigest()[:16]}"
pytestmark = pytest.mark.slow
FILES = {"a.root": b"events" * 100_000, "hist/b c?.root": b"hist"}
LIST = b"".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n".encode() for name, content in sorted(FILES.items()))
WHOLE = {f"/data/set/7/{name}": content for name, content in {**FILES, "job-7.sha256": LIST}.items()}


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[DavServer]:
    with dav_server(tmp_path_factory.mktemp("server")) as made:
        monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
        made.folders.add("/data")
        yield made


def delivered(
    place: Path, server: DavServer, *, reserve_bytes: int = 0, credential: Credential | None = None, **more: Any
) -> DeliveryReport:
    deliver = Deliver(place / "storage", place / "work", reserve_bytes, "control.example", SystemClock())
    report = deliver(offered(place, server, **more), threading.Event(), credential)
    assert report is not None
    assert "\n" not in report.failed
    assert list((place / "work").iterdir()) == []
    return report


def offered(place: Path, server: DavServer, **more: Any) -> Delivery:
    """Store the usual result, and return what control offers."""
    storage = FolderStorage(place / "storage")
    storage.prepare()
    for name, content in FILES.items():
        (place / "job" / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "job" / name).write_bytes(content)
    with storage.draft(output_key(7, 2)) as draft:
        draft.add(FOLDER_PART, workdir_tar.pack(place / "job"))
        digest = draft.publish({}).digest
    offer = {
        "job": 7, "attempt": 2, "number": 1, "digest": digest, "to": server.url("data/set/7/"),
        "allowed": (server.url("data/"),), "total_s": 600, "silent_s": 300,
    }  # fmt: skip
    return Delivery.model_validate(offer | more)


def test_a_file_has_its_name_when_it_is_whole_and_the_list_comes_last(server: DavServer, tmp_path: Path) -> None:
    report = delivered(tmp_path, server)
    assert (report.failed, report.files) == ("", 2)
    assert server.files == WHOLE
    assert {"/data/set", "/data/set/7", "/data/set/7/hist"} <= server.folders
    finals = {asked.partition(" ")[2] for asked in server.asked if asked.startswith("PUT")}
    assert [name for name in finals if ".gleaner-7-1-" not in name] == []
    assert [names for names in server.shown if "/data/set/7/job-7.sha256" in names] == [set(WHOLE)]


def test_a_server_that_knows_no_move_gets_the_files_under_their_own_names(server: DavServer, tmp_path: Path) -> None:
    server.refuses |= {"MOVE": 405}
    assert delivered(tmp_path, server).failed == ""
    assert server.files == WHOLE
    assert [asked for asked in server.asked if asked.startswith("MOVE")] == [f"MOVE /data/set/7/{PASSING}"]


def test_delivered_again_it_is_the_same_and_what_dead_tries_have_left_is_removed(
    server: DavServer, tmp_path: Path
) -> None:
    server.folders |= {"/data/set", "/data/set/7"}
    server.refuses |= {"MOVE": 503, "DELETE": 503}
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        assert delivered(tmp_path / str(number), server, number=number).may_pass
    assert len(server.files) == 2
    server.refuses.clear()
    assert delivered(tmp_path, server, number=4).failed == ""
    assert server.files == WHOLE


@pytest.mark.parametrize(("value", "wanted"), [("t0ken", "Bearer t0ken"), ("me:pass word", "Basic bWU6cGFzcyB3b3Jk")])
def test_a_server_that_asks_who_it_is_sees_the_groups_secret_at_each_request(
    server: DavServer, tmp_path: Path, value: str, wanted: str
) -> None:
    server.wanted = wanted
    report = delivered(tmp_path, server, credential=Credential(server.url("data/"), value))
    assert (report.failed, server.files) == ("", WHOLE)
    assert {seen for _, seen in server.credentials} == {wanted}


@pytest.mark.parametrize(
    ("below", "said"),
    [
        (None, "answers 401: the group has no secret for it (`glean secret set`)"),
        ("data/other/", "answers 401: the group's secret is only for what is below https://"),
        ("data/", "answers 401: it does not take the group's secret for https://"),
    ],
)
def test_a_server_that_refuses_who_it_is_is_one_line_without_the_secret(
    server: DavServer, tmp_path: Path, below: str | None, said: str
) -> None:
    server.wanted = "Bearer another"
    credential = None if below is None else Credential(server.url(below), "t0ken")
    report = delivered(tmp_path, server, credential=credential)
    assert said in report.failed
    assert "t0ken" not in report.failed
    assert not report.may_pass


def test_after_a_redirect_out_of_its_url_no_credential_is_sent(server: DavServer, tmp_path: Path) -> None:
    mine, listed = Credential(server.url("data/"), "t0ken"), (server.url("data/"), server.url("", "localhost"))
    server.folders |= {"/data/set", "/data/set/7", "/data/set/7/hist"}
    server.moved_to = server.url("", "localhost").rstrip("/")
    assert delivered(tmp_path, server, credential=mine, allowed=(*listed, "https://[::1]/")).failed == ""
    seen = {("elsewhere" in path, credential) for path, credential in server.credentials}
    assert seen == {(False, "Bearer t0ken"), (True, None)}


def test_a_server_that_sends_the_secret_back_gets_it_into_no_message(server: DavServer, tmp_path: Path) -> None:
    server.moved_to = "https://t0ken.example/bWU6dDBrZW4=/t0ken"
    report = delivered(tmp_path, server, credential=Credential(server.url("data/"), "me:t0ken"))
    assert "is redirected, and https://….example/…/…/data" in report.failed


def test_the_process_that_delivers_shows_a_credential_to_nobody_else(server: DavServer, tmp_path: Path) -> None:
    server.refuses |= {"hang": 1}
    stop, before, seen = threading.Event(), children(), list[bytes]()

    def looking() -> None:
        assert server.hangs.wait(120)
        for child in children() - before:
            seen.extend(shown_to_others(child))
        stop.set()

    threading.Thread(target=looking).start()
    deliver = Deliver(tmp_path / "storage", tmp_path / "work", 0, "control.example", SystemClock())
    assert deliver(offered(tmp_path, server), stop, Credential(server.url("data/"), "t0ken")) is None
    assert server.credentials[-1][1] == "Bearer t0ken"
    assert len(seen) == 2
    assert all(seen)
    assert not any(b"t0ken" in content for content in seen)


def test_a_redirect_is_followed_with_the_whole_file_if_it_is_allowed(server: DavServer, tmp_path: Path) -> None:
    server.moved_to = server.url("").rstrip("/")
    assert delivered(tmp_path, server).failed == ""
    assert server.files == WHOLE


@pytest.mark.parametrize(
    ("moved_to", "said"),
    [
        ("https://elsewhere.example", f"is redirected, and https://elsewhere.example/data/set/7/{PASSING}?"),
        ("http://127.0.0.1", "must begin with https://"),
        ("file://", "must not lead to a file of the node"),
    ],
)
def test_a_redirect_that_is_not_allowed_ends_it(server: DavServer, tmp_path: Path, moved_to: str, said: str) -> None:
    server.moved_to = moved_to
    report = delivered(tmp_path, server, allowed=(server.url("data/"), "file:///data/"))
    assert said in report.failed
    assert (report.may_pass, server.files) == (False, {})


@pytest.mark.parametrize(("status", "may_pass"), [(403, False), (503, True), (507, True), (423, True)])
def test_what_a_server_refuses_is_one_line(server: DavServer, tmp_path: Path, status: int, may_pass: bool) -> None:
    server.refuses |= {"PUT": status}
    report = delivered(tmp_path, server)
    assert f"the server answers {status}" in report.failed
    assert (report.may_pass, server.files) == (may_pass, {})


def test_a_server_that_fails_in_the_middle_shows_whole_files_only_and_no_list(
    server: DavServer, tmp_path: Path
) -> None:
    server.folders |= {"/data/set", "/data/set/7", "/data/set/7/hist"}
    server.refuses |= {f"PUT /data/set/7/hist/.gleaner-7-1-{hashlib.sha256(b'b c?.root').hexdigest()[:16]}": 500}
    report = delivered(tmp_path, server)
    assert (report.may_pass, server.files) == (True, {"/data/set/7/a.root": FILES["a.root"]})


def test_a_server_that_hangs_is_given_up(server: DavServer, tmp_path: Path) -> None:
    server.refuses |= {"hang": 1}
    report = delivered(tmp_path, server, silent_s=3.0)
    assert server.hangs.is_set(), "the server was reached"
    assert "nothing for 3 s" in report.failed
    assert report.may_pass


def test_a_server_that_moves_a_large_file_slowly_is_waited_for_and_progress_is_said(
    server: DavServer, tmp_path: Path
) -> None:
    """Longer than a server may be silent, and as long as a slow disk may need for the file."""
    server.moves, said = (may_move := threading.Event()), itertools.count()

    def progress() -> None:
        if server.hangs.is_set() and next(said) == SAYS_WHILE_SILENT + 1:
            may_move.set()

    target = WebDav(
        server.url("data/"),
        server.allowed,
        passing_name=lambda name, _: f".{name}",
        silent_s=3.0,
        check=lambda _host, _address: None,
        progress=progress,
    )
    with (tmp_path / "a").open("w+b") as file, closing(target):
        file.truncate(20 * SLOWEST_BYTES_PER_S)
        target.put(("a",), file)
    assert set(server.files) == {"/data/a"}


def test_a_server_that_hangs_when_it_moves_a_file_is_given_up(server: DavServer, tmp_path: Path) -> None:
    server.moves = threading.Event()
    report = delivered(tmp_path, server, silent_s=3.0)
    assert server.hangs.is_set(), "the server was reached"
    server.moves.set()
    assert "taken nothing for" in report.failed or "took nothing for" in report.failed
    assert (report.may_pass, [name for name in server.files if ".gleaner-" not in name]) == (True, [])


def test_a_name_is_checked_after_it_is_resolved(server: DavServer, tmp_path: Path) -> None:
    """`localhost` is on the list, and its address is not."""
    to, allowed = server.url("data/7/", "localhost"), (server.url("data/", "localhost"),)
    assert "localhost has the address" in delivered(tmp_path, server, to=to, allowed=allowed).failed
    assert server.asked == []


def test_a_node_without_room_sends_nothing(server: DavServer, tmp_path: Path) -> None:
    assert "has no room for the result" in delivered(tmp_path, server, reserve_bytes=2**60).failed
    assert server.asked == []
