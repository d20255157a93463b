"""Results delivered to a real HTTPS server that takes files by PUT, and that misbehaves."""

from pathlib import Path
from typing import Any

import pytest
from tests.transfer.bad_server import BadServer
from tests.transfer.node import Node, with_list

from gleaner.agent.messages import DeliveryReport
from gleaner.agent.transfer.credentials import Credential

pytestmark = pytest.mark.slow
FILES = {"a.root": b"events" * 500_000, "empty": b"", "hist/b c?.root": b"hist"}
WHOLE = {f"/data/set/7/{name}": content for name, content in with_list(FILES).items()}


def delivered(place: Path, server: BadServer, *allowed: str, **more: Any) -> DeliveryReport:
    node, listed = Node(place), allowed or (server.url("data/"),)
    return node.deliver(node.store(FILES), server.url("data/set/7/"), *listed, **more)


def test_a_result_is_there_and_the_list_comes_last(server: BadServer, tmp_path: Path) -> None:
    report = delivered(tmp_path, server)
    assert (report.failed, report.files, report.size_bytes) == ("", 3, 3_000_004)
    assert (server.files, server.asked[-1]) == (WHOLE, "PUT /data/set/7/job-7.sha256")
    assert len(server.asked) == 4, "a plain PUT for each file"


def test_a_redirect_is_followed_with_the_whole_file_but_without_the_secret(server: BadServer, tmp_path: Path) -> None:
    secret, other = Credential(server.url("data/"), "t0ken"), server.url("", "localhost")
    server.moved_to = other.rstrip("/")
    report = delivered(tmp_path, server, server.url("data/"), other, "https://[::1]/", secret=secret)
    assert (report.failed, server.files) == ("", WHOLE)
    seen = {("elsewhere" in path, credential) for path, credential in server.credentials}
    assert seen == {(False, "Bearer t0ken"), (True, None)}


def test_a_server_that_sends_the_secret_back_gets_it_into_no_message(server: BadServer, tmp_path: Path) -> None:
    server.moved_to = "https://t0ken.example/bWU6dDBrZW4=/t0ken"
    secret = Credential(server.url("data/"), "me:t0ken")
    report = delivered(tmp_path, server, server.url("data/"), secret=secret)
    assert "is redirected, and https://….example/…/…/data" in report.failed
    assert (report.may_pass, server.files) == (False, {})


@pytest.mark.parametrize(("status", "may_pass"), [(403, False), (503, True), (507, True), (423, True), (429, True)])
def test_what_a_server_refuses_is_one_line(server: BadServer, tmp_path: Path, status: int, may_pass: bool) -> None:
    server.refuses |= {"PUT": status}
    report = delivered(tmp_path, server)
    assert f"the server answers {status}" in report.failed
    assert (report.may_pass, server.files) == (may_pass, {})


def test_a_server_that_fails_in_the_middle_has_no_list(server: BadServer, tmp_path: Path) -> None:
    server.refuses |= {"PUT /data/set/7/hist/b c?.root": 500}
    report = delivered(tmp_path, server)
    assert (report.may_pass, set(server.files)) == (True, {"/data/set/7/a.root", "/data/set/7/empty"})
