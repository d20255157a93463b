"""Inputs from S3: a real client and a real server, with the certificate of the server that misbehaves."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.staging.bad_server import CONTENT, BadServer, plain_server
from tests.staging.processes import s3_running

from gleaner.agent.common.clock import SystemClock
from gleaner.agent.messages import FetchRules
from gleaner.agent.staging import servers
from gleaner.agent.staging.child_process import MayNot
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.fetch import Fetch, Fetched, FetchFailed, schemes

pytestmark = pytest.mark.slow
KEYS = ("AKIAEXAMPLE", "wJalrXUtnFEMI")


@pytest.fixture
def site(server: BadServer) -> Iterator[str]:
    """The URL of a server of S3 with the object `a/b.lhe` in `bucket`, which only who has keys may read."""
    with s3_running(server.certificate) as (port, _output):
        yield f"s3://127.0.0.1:{port}/"


def fetched(url: str, into: Path, *allowed: str, keys: str = ":".join(KEYS), has_keys: bool = True) -> Fetched:
    rules = FetchRules(allowed=allowed, largest_bytes=2**30, total_s=600, silent_s=120)
    credential = Credential(allowed[0], keys) if has_keys else None
    fetch = Fetch(control_host="", reserve_bytes=0, clock=SystemClock())
    return fetch(url, into, rules=rules, sha256=None, stop=threading.Event(), credential=credential)


def failure(url: str, into: Path, *allowed: str, has_keys: bool = True, may_pass: bool = False) -> str:
    with pytest.raises(FetchFailed) as caught:
        fetched(url, into, *allowed, has_keys=has_keys)
    line = str(caught.value)
    assert "\n" not in line
    assert KEYS[1] not in line
    assert caught.value.may_pass is may_pass
    return line


def test_an_object_is_fetched_with_the_groups_keys(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account's own settings and credentials for Amazon are not used."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:1")
    monkeypatch.setenv("AWS_PROFILE", "none")
    found = fetched(f"{site}bucket/a/b.lhe", tmp_path / "a", site)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert found.size_bytes == len(CONTENT)
    assert "s3" in schemes()


@pytest.mark.extended
def test_what_no_other_try_changes_is_one_line(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])
    line = failure(f"{site}bucket/a/b.lhe", tmp_path / "a", site, has_keys=False)
    assert line.endswith("the server answers 403: the group has no secret for it (`glean secret set`)")
    assert "the server answers 404" in failure(f"{site}bucket/none", tmp_path / "b", site)
    assert "the server answers 404" in failure(f"{site}none/a", tmp_path / "c", site)
    assert "name a bucket and a key" in failure(f"{site}bucket", tmp_path / "d", site)
    assert "not below a URL" in failure(f"{site}bucket/a/b.lhe", tmp_path / "e", f"{site}other/")


@pytest.mark.extended
def test_a_servers_name_and_certificate_are_checked(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = site.replace("127.0.0.1", "localhost")
    line = failure(f"{by_name}bucket/a/b.lhe", tmp_path / "a", by_name)
    assert "localhost has the address" in line
    assert "of the node itself" in line
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    assert "certificate" in failure(f"{site}bucket/a/b.lhe", tmp_path / "b", site, may_pass=True)


@pytest.mark.extended
def test_a_server_that_misbehaves_is_one_line(server: BadServer, tmp_path: Path) -> None:
    place = f"s3://127.0.0.1:{server.port}/"
    assert "the server answers 503" in failure(f"{place}bucket/busy", tmp_path / "a", place, may_pass=True)
    assert "broke off" in failure(f"{place}bucket/cut", tmp_path / "b", place, may_pass=True)
    assert len(server.asked) == 2, "each is asked once: the job waits, and is tried again"
    elsewhere = failure(f"{place}bucket/moved?to=https://localhost/", tmp_path / "c", place)
    assert "without a ?" in elsewhere


def test_a_redirect_is_not_followed_wherever_it_leads(server: BadServer, tmp_path: Path) -> None:
    place = f"s3://127.0.0.1:{server.port}/"
    with plain_server() as other:
        server.moved_to = f"http://127.0.0.2:{other.port}/latest/meta-data"
        line = failure(f"{place}bucket/led", tmp_path / "a", place)
    assert "the server answers 307, a redirect, which is not followed: name the server that has the bucket" in line
    assert other.asked == []


def test_a_host_that_is_an_address_is_checked_before_it_is_connected_to() -> None:
    async def ask(port: int) -> None:
        connector = aiohttp.TCPConnector(socket_factory=servers.socket_factory(servers.AddressGuard((), "")))
        async with aiohttp.ClientSession(connector=connector) as session, session.get(f"http://127.0.0.2:{port}/"):
            pass

    with plain_server() as other, pytest.raises(MayNot, match=r"127\.0\.0\.2, which is of the node itself"):
        asyncio.run(ask(other.port))
    assert other.asked == []


def test_the_servers_own_code_says_what_may_pass(server: BadServer, tmp_path: Path) -> None:
    """The status alone, 400, would end it for good."""
    place = f"s3://127.0.0.1:{server.port}/"
    server.refuses_with = "RequestTimeout"
    line = failure(f"{place}bucket/refused", tmp_path / "a", place, may_pass=True)
    assert "the server answers 400 (RequestTimeout)" in line
