"""Results delivered to a real HTTPS server that takes files by PUT, and that misbehaves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.transfer.node import Node, with_list
from tests.transfer.put_server import PutServer, put_server

from gleaner.agent.messages import DeliveryReport
from gleaner.agent.transfer.credentials import Credential

pytestmark = pytest.mark.slow
FILES = {"a.root": b"events" * 500_000, "empty": b"", "hist/b c?.root": b"hist"}
WHOLE = {f"/data/set/7/{name}": content for name, content in with_list(FILES).items()}


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[PutServer]:
    with put_server(tmp_path_factory.mktemp("server")) as made:
        monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
        yield made


def delivered(place: Path, server: PutServer, *allowed: str, host: str = "127.0.0.1", **more: Any) -> DeliveryReport:
    node, listed = Node(place, reserve_bytes=more.pop("reserve_bytes", 0)), allowed or (server.url("data/", host),)
    return node.deliver(node.store(FILES), server.url("data/set/7/", host), *listed, **more)


def test_a_result_is_there_and_the_list_comes_last(server: PutServer, tmp_path: Path) -> None:
    report = delivered(tmp_path, server)
    assert (report.failed, report.files, report.size_bytes) == ("", 3, 3_000_004)
    assert (server.files, server.asked[-1]) == (WHOLE, "PUT /data/set/7/job-7.sha256")
    assert len(server.asked) == 4, "a plain PUT for each file"


@pytest.mark.parametrize(("value", "wanted"), [("t0ken", "Bearer t0ken"), ("me:pass word", "Basic bWU6cGFzcyB3b3Jk")])
def test_a_server_that_asks_who_it_is_sees_the_groups_secret_at_each_request(
    server: PutServer, tmp_path: Path, value: str, wanted: str
) -> None:
    server.wanted = wanted
    report = delivered(tmp_path, server, secret=Credential(server.url("data/"), value))
    assert (report.failed, server.files) == ("", WHOLE)
    assert {seen for _, seen in server.credentials} == {wanted}


def test_a_redirect_is_followed_with_the_whole_file_but_without_the_secret(server: PutServer, tmp_path: Path) -> None:
    secret, other = Credential(server.url("data/"), "t0ken"), server.url("", "localhost")
    server.moved_to = other.rstrip("/")
    report = delivered(tmp_path, server, server.url("data/"), other, "https://[::1]/", secret=secret)
    assert (report.failed, server.files) == ("", WHOLE)
    seen = {("elsewhere" in path, credential) for path, credential in server.credentials}
    assert seen == {(False, "Bearer t0ken"), (True, None)}


@pytest.mark.parametrize(
    ("moved_to", "line"),
    [
        ("https://elsewhere.example", "is redirected, and https://elsewhere.example/data/set/7/a.root?"),
        ("http://127.0.0.1", "must begin with https://"),
        ("file://", "must not lead to a file of the node"),
        ("https://t0ken.example/bWU6dDBrZW4=/t0ken", "is redirected, and https://….example/…/…/data"),
    ],
)
def test_a_redirect_that_is_not_allowed_ends_it(server: PutServer, tmp_path: Path, moved_to: str, line: str) -> None:
    """A server that sends the secret back gets it into no message."""
    server.moved_to, secret = moved_to, Credential(server.url("data/"), "me:t0ken")
    report = delivered(tmp_path, server, server.url("data/"), "file:///data/", secret=secret)
    assert line in report.failed
    assert (report.may_pass, server.files) == (False, {})


@pytest.mark.parametrize(("status", "may_pass"), [(403, False), (503, True), (507, True), (423, True), (429, True)])
def test_what_a_server_refuses_is_one_line(server: PutServer, tmp_path: Path, status: int, may_pass: bool) -> None:
    server.refuses |= {"PUT": status}
    report = delivered(tmp_path, server)
    assert f"the server answers {status}" in report.failed
    assert (report.may_pass, server.files) == (may_pass, {})


def test_a_server_that_fails_in_the_middle_has_no_list(server: PutServer, tmp_path: Path) -> None:
    server.refuses |= {"PUT /data/set/7/hist/b c?.root": 500}
    report = delivered(tmp_path, server)
    assert (report.may_pass, set(server.files)) == (True, {"/data/set/7/a.root", "/data/set/7/empty"})


def test_a_server_that_hangs_is_given_up(server: PutServer, tmp_path: Path) -> None:
    server.refuses |= {"hang": 1}
    node = Node(tmp_path)
    node.clock.go_ahead_after(server.hangs)
    report = node.deliver(node.store(FILES), server.url("data/"))
    assert ("did not take the result within 10 min" in report.failed, report.may_pass) == (True, True)


def test_a_name_is_checked_after_it_is_resolved_and_a_node_without_room_sends_nothing(
    server: PutServer, tmp_path: Path
) -> None:
    """`localhost` is on the list, and its address is not."""
    assert "localhost has the address" in delivered(tmp_path, server, host="localhost").failed
    (tmp_path / "other").mkdir()
    assert "there is no room for the result" in delivered(tmp_path / "other", server, reserve_bytes=2**60).failed
    assert server.asked == []
