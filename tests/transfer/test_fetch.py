"""Fetches from a real server that misbehaves: what arrives is whole, and every failure is one line."""

import dataclasses
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.transfer.bad_server import CONTENT, BadServer
from tests.transfer.node import Node
from tests.transfer.processes import children

from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.fetch import FetchRequest
from gleaner.agent.transfer.process import NodeFull, PermanentFailure, TemporaryFailure
from gleaner.agent.transfer.rules import Access, RemoteServer

pytestmark = pytest.mark.slow
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@dataclasses.dataclass(frozen=True)
class Asked:
    """A URL that is asked for in this process."""

    url: str
    access: Access
    sha256: str | None = None


def request(server: BadServer, path: str, *, host: str = "127.0.0.1", sha256: str | None = None, **more: Any) -> Asked:
    access = Access((server.url("", host),), control_hosts=(), silent_s=300)
    return Asked(server.url(path, host), dataclasses.replace(access, **more), sha256)


def fetched(asked: Asked) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder, "a")
        size_bytes = FetchRequest(asked.url, asked.access, into, asked.sha256, 2**30, 0).serve(lambda: None)
        assert size_bytes == [into.stat().st_size]
        return into.read_bytes()


def failure(kind: type[Exception], request: Asked) -> str:
    with pytest.raises(kind) as caught:
        fetched(request)
    line = str(caught.value)
    assert line
    assert "\n" not in line
    return line


def test_a_file_comes_through_redirects_that_are_allowed(server: BadServer) -> None:
    assert fetched(request(server, "moved?to=" + quote("moved?to=good"))) == CONTENT
    assert fetched(request(server, "unsaid", sha256=SHA256)) == CONTENT


def test_what_no_other_try_changes_is_one_line(server: BadServer) -> None:
    assert "the server answers 404" in failure(PermanentFailure, request(server, "missing"))
    assert "give its sha256" in failure(PermanentFailure, request(server, "unsaid"))
    assert "redirected more than 10 times" in failure(PermanentFailure, request(server, "loop"))
    assert "is redirected, and the server does not say where to" in failure(
        PermanentFailure, request(server, "nowhere")
    )
    for path, status in (("partial", 206), ("accepted", 202)):
        assert f"the server answers {status}" in failure(PermanentFailure, request(server, path))


def test_content_that_the_server_packs_is_taken_as_it_is_and_only_with_a_digest(server: BadServer) -> None:
    line = failure(PermanentFailure, request(server, "packed"))
    assert "the server sends the file packed (gzip), though it was asked not to: give the sha256" in line
    assert "has the sha256" in failure(PermanentFailure, request(server, "packed", sha256=SHA256)), "it is taken"


def test_a_redirect_is_checked_like_the_url_itself(server: BadServer) -> None:
    elsewhere = quote("https://elsewhere.example/a")
    line = failure(PermanentFailure, request(server, f"moved?to={elsewhere}"))
    assert "is redirected, and https://elsewhere.example/a is not below a URL that this site allows" in line
    plain = quote(f"http://127.0.0.1:{server.port}/good")
    assert "must begin with https://" in failure(PermanentFailure, request(server, f"moved?to={plain}"))
    up = quote("/pub/../private")
    assert "not below" in failure(
        PermanentFailure, request(server, f"pub/moved?to={up}", allowed=(server.url("pub/"),))
    )
    local = (*server.allowed, "file:///etc/")
    line = failure(PermanentFailure, request(server, "moved?to=file:///etc/hostname", allowed=local))
    assert "must not lead to a file of the node" in line
    assert {path.partition("?")[0] for path in server.asked} == {"/moved", "/pub/moved"}


def test_what_may_pass_is_one_line_too(server: BadServer) -> None:
    for path, status in (("busy", 503), ("later", 429)):
        assert f"the server answers {status}" in failure(TemporaryFailure, request(server, path))
    for path in ("cut", "chunked-cut"):
        assert "broke off before the end" in failure(TemporaryFailure, request(server, path))
    assert fetched(request(server, "chunked")) == CONTENT
    for path in ("silent", "stuck"):
        assert "nothing for 0 s" in failure(TemporaryFailure, request(server, path, silent_s=0.3))
    access = Access(("https://127.0.0.1:1/",), (), 300)
    assert failure(TemporaryFailure, Asked("https://127.0.0.1:1/a", access)).startswith("https://127.0.0.1:1/a: ")


def test_a_certificate_must_be_vouched_for(server: BadServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    assert "self-signed" in failure(TemporaryFailure, request(server, "good"))
    assert server.asked == []


def test_a_name_is_checked_after_it_is_resolved(server: BadServer) -> None:
    """`localhost` is on the list, and its address is not."""
    line = failure(PermanentFailure, request(server, "good", host="localhost"))
    assert "localhost has the address" in line
    assert "of the node itself" in line
    for other in ("2130706433", "127.1"):
        assert "not a canonical IPv4 address" in failure(PermanentFailure, request(server, "good", host=other))
    assert server.asked == []
    named = (server.url("", "localhost"), "https://127.0.0.1/", "https://[::1]/")
    assert fetched(request(server, "good", host="localhost", allowed=named)) == CONTENT


def test_controls_own_addresses_are_refused(server: BadServer) -> None:
    listed = ("https://*.example.org/",)
    server_of_control = RemoteServer("https://a.example.org/", Access(listed, ("192.0.2.1",), 300))
    with pytest.raises(PermanentFailure, match="control's"):
        server_of_control.check_address("data.example.org", "192.0.2.1")
    # The list names it.
    RemoteServer("https://192.0.2.1/", Access(("https://192.0.2.1/",), ("192.0.2.1",), 300)).check_address(
        "data.example.org", "192.0.2.1"
    )


@pytest.mark.parametrize(("value", "wanted"), [("t0ken", "Bearer t0ken"), ("me:pass word", "Basic bWU6cGFzcyB3b3Jk")])
def test_a_server_that_asks_who_it_is_sees_the_groups_secret(server: BadServer, value: str, wanted: str) -> None:
    server.wanted = wanted
    mine = Credential(server.url("a/"), value)
    assert fetched(request(server, "a/private", credential=mine)) == CONTENT
    line = failure(PermanentFailure, request(server, "b/private", credential=mine))
    assert f"answers 401: the group's secret is only for what is below {mine.url}" in line
    assert "has no secret for it (`glean secret set`)" in failure(PermanentFailure, request(server, "a/private"))
    server.wanted = "another"
    line = failure(PermanentFailure, request(server, "a/private", credential=mine))
    assert line.endswith(f"it does not take the group's secret for {mine.url}")
    assert value not in line


def test_after_a_redirect_to_another_host_or_folder_no_credential_is_sent(server: BadServer) -> None:
    mine = Credential(server.url("a/"), "t0ken")
    elsewhere = server.url("a/good", "localhost")
    listed = (server.url(""), server.url("", "localhost"), "https://[::1]/")
    for target in (elsewhere, "/b/good", "/a/good"):
        asked = request(server, f"a/moved?to={quote(target)}", credential=mine, allowed=listed)
        assert fetched(asked) == CONTENT
    here, there = "Bearer t0ken", None
    assert server.credentials == [
        ("/a/moved", here), ("/a/good", there), ("/a/moved", here), ("/b/good", there), ("/a/moved", here),
        ("/a/good", here),
    ]  # fmt: skip


# ── files ──


def test_files_are_those_that_everybody_may_read_below_a_listed_folder(source: str) -> None:
    public, private = (Path(source.removeprefix("file://")).with_name(name) for name in ("public", "private"))
    for folder in (public, private):
        folder.mkdir(mode=0o755)
        (folder / "a").write_bytes(CONTENT)
        (folder / "a").chmod(0o644)
    (public / "latest").symlink_to("a")
    (public / "out").symlink_to(private / "a")
    (public / "mine").write_bytes(b"secret")
    (public / "mine").chmod(0o600)
    os.mkfifo(public / "pipe", 0o644)

    def of(name: str) -> Asked:
        return Asked(f"file://{public}/{name}", Access((f"file://{public}/",), (), 300))

    assert fetched(of("a")) == CONTENT
    assert fetched(of("latest")) == CONTENT
    assert "which is not below a folder that this site allows" in failure(PermanentFailure, of("out"))
    assert "not readable by everybody" in failure(PermanentFailure, of("mine"))
    assert "is no file" in failure(PermanentFailure, of("pipe"))
    assert "is no file" in failure(PermanentFailure, of(""))
    assert "No such file" in failure(PermanentFailure, of("b"))
    assert "not below" in failure(PermanentFailure, dataclasses.replace(of("a"), url=f"file://{private}/a"))


# ── as the agent does it: a process that can be ended ──


@pytest.fixture
def source(tmp_path: Path) -> Iterator[str]:
    """The URL of a file that everybody may read."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o755)
    (folder / "a").write_bytes(CONTENT)
    (folder / "a").chmod(0o644)
    yield f"file://{folder}/a"
    shutil.rmtree(folder)


def test_a_file_is_fetched_whole_and_its_digest_is_checked(source: str, tmp_path: Path) -> None:
    assert Node(tmp_path).fetch(source, tmp_path / "a", sha256=SHA256) == len(CONTENT)
    assert (tmp_path / "a").read_bytes() == CONTENT
    with pytest.raises(PermanentFailure, match=f"has the sha256 .*, and not {'0' * 64}"):
        Node(tmp_path).fetch(source, tmp_path / "b", sha256=f"sha256:{'0' * 64}")


def test_limits_of_size_time_and_room_end_a_fetch(source: str, server: BadServer, tmp_path: Path) -> None:
    before, node = children(), Node(tmp_path)
    with pytest.raises(PermanentFailure, match=r"larger than .* \(\[inputs\] largest_gib\)"):
        node.fetch(source, tmp_path / "large", largest_bytes=100)
    with pytest.raises(TemporaryFailure, match=r"not done within .* \(\[inputs\] fetch_s\)"):
        node.fetch(source, tmp_path / "slow", total_s=0.0)
    with pytest.raises(NodeFull, match="has no room for"):
        Node(tmp_path, reserve_bytes=2**60).fetch(source, tmp_path / "full")
    with pytest.raises(
        TemporaryFailure, match=r"nothing was sent or taken for 1 s|the server sent or took nothing for 1 s"
    ):
        node.fetch(server.url("silent"), tmp_path / "silent", silent_s=1.0)
    assert children() <= before
