"""Inputs from a real server of S3, and results to it: an object is there when all of it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.transfer.bad_server import CONTENT, BadServer, bad_server
from tests.transfer.node import Node, with_list
from tests.transfer.processes import client, objects, s3_running
from tests.transfer.s3_server import BUCKET, KEY

from gleaner.agent.messages import DeliveryReport
from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.process import TransferFailure
from gleaner.agent.transfer.remotes import schemes
from gleaner.agent.transfer.s3 import PART_BYTES

pytestmark = pytest.mark.slow
KEYS = "AKIAEXAMPLE:wJalrXUtnFEMI"
LARGE = bytes(PART_BYTES) + b"the end"


@dataclass
class S3Site:
    """A server of S3."""

    port: int
    certificate: Path

    @property
    def url(self) -> str:
        return f"s3://127.0.0.1:{self.port}/{BUCKET}/"

    def objects(self, prefix: str) -> dict[str, bytes]:
        return objects(self.port, self.certificate, prefix)

    def uploads(self, prefix: str) -> list[str]:
        """The keys of uploads that have come to no end."""
        found = (
            client(self.port, self.certificate).list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", [])
        )
        return [one["Key"] for one in found]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Site]:
    with bad_server(tmp_path_factory.mktemp("server")) as made, s3_running(made.certificate) as port:
        yield S3Site(port, made.certificate)


@pytest.fixture
def site(running: S3Site, monkeypatch: pytest.MonkeyPatch) -> S3Site:
    """The account's own settings and credentials for Amazon are not used."""
    monkeypatch.setenv("SSL_CERT_FILE", str(running.certificate))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS.partition(":")[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS.partition(":")[2])
    monkeypatch.setenv("FSSPEC_S3_TOKEN", "of the account")
    return running


# ── inputs ──


def fetched(url: str, into: Path, allowed: str = "", *, keys: str = KEYS, sha256: str | None = None) -> int:
    below = allowed or url.rpartition("/")[0] + "/"
    return Node(into.parent).fetch(url, into, below, secret=Credential(below, keys) if keys else None, sha256=sha256)


def failure(url: str, into: Path, allowed: str = "", *, keys: str = KEYS, may_pass: bool = False) -> str:
    with pytest.raises(TransferFailure) as caught:
        fetched(url, into, allowed, keys=keys)
    assert caught.value.may_pass is may_pass, str(caught.value)
    return str(caught.value)


def test_an_object_is_fetched_with_the_groups_keys(
    site: S3Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "none")
    assert fetched(site.url + KEY, tmp_path / "a") == len(CONTENT)
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert {"https", "s3", "root", "roots", "file"} == set(schemes())


@pytest.mark.extended
def test_what_no_other_try_changes_is_one_line(site: S3Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, into = site.url.removesuffix(f"{BUCKET}/"), tmp_path / "a"
    line = failure(site.url + KEY, into, keys="")
    assert line.endswith(": the group has no secret for it (`glean secret set`)")
    assert "there is no such file" in failure(f"{site.url}none", into)
    assert "there is no such file" in failure(f"{place}none/a", into)
    assert "name a bucket and a key" in failure(f"{place}bucket", into)
    by_name = site.url.replace("127.0.0.1", "localhost")
    line = failure(by_name + KEY, into)
    assert "localhost has the address" in line
    monkeypatch.setenv("SSL_CERT_FILE", "/dev/null")
    assert "certificate" in failure(site.url + KEY, into, may_pass=True)


def test_an_answer_that_breaks_off_or_does_not_say_where_it_ends_is_not_taken(
    server: BadServer, tmp_path: Path
) -> None:
    """Without a length, an answer that breaks off looks like a whole one."""
    place = f"s3://127.0.0.1:{server.port}/bucket/"
    assert "does not say where the object ends" in failure(f"{place}unsaid", tmp_path / "a")
    assert "broke off" in failure(f"{place}cut", tmp_path / "a", may_pass=True)
    assert "Service Unavailable" in failure(f"{place}busy", tmp_path / "a", may_pass=True)
    assert len(server.asked) == 3, "each is asked once: the job waits, and is tried again"
    assert "without a ?" in failure(f"{place}moved?to=https://localhost/", tmp_path / "a", place)


def test_the_servers_own_code_decides_what_may_pass(server: BadServer, tmp_path: Path) -> None:
    """The status alone, 400, would end it for good."""
    place = f"s3://127.0.0.1:{server.port}/bucket/"
    server.refuses_with = "RequestTimeout"
    failure(f"{place}refused", tmp_path / "a", may_pass=True)
    server.refuses_with = "InvalidObjectState"  # it is archived
    assert "the server refuses it (no)" in failure(f"{place}refused", tmp_path / "a")


@pytest.mark.parametrize("host", ["127.0.0.2", "localhost"])
def test_a_redirect_leads_to_no_host_that_the_list_does_not_name(server: BadServer, tmp_path: Path, host: str) -> None:
    place = f"s3://127.0.0.1:{server.port}/bucket/"
    server.moved_to = f"http://{host}:{server.port}/latest/meta-data"
    line = failure(f"{place}led", tmp_path / "a", place)
    assert line in {
        "127.0.0.2 has the address 127.0.0.2, which is of the node itself: only a list that names it allows it",
        f"the server leads to localhost:{server.port}, which is not below a URL that this site allows",
    }
    assert len(server.asked) == 1


# ── results ──


def delivered(place: Path, site: S3Site, prefix: str, files: dict[str, bytes]) -> DeliveryReport:
    node = Node(place)
    return node.deliver(node.store(files), site.url + prefix, site.url, secret=Credential(site.url, KEYS))


def test_a_result_is_there_with_a_list_that_proves_it_whole(site: S3Site, tmp_path: Path) -> None:
    files = {"a b?.root": b"events" * 1000, "aa-empty": b"", "big/b.root": LARGE}
    report = delivered(tmp_path, site, "whole/7/", files)
    assert (report.failed, report.files, report.size_bytes) == ("", 3, 6000 + len(LARGE))
    assert site.objects("whole/7/") == with_list(files)
    assert site.uploads("") == []


def test_an_upload_that_breaks_off_leaves_no_object_and_no_parts(site: S3Site, tmp_path: Path) -> None:
    report = delivered(tmp_path, site, "broken/7/", {"a": b"a", "busy.root": LARGE})
    assert ("Service Unavailable" in report.failed, report.may_pass) == (True, True)
    assert set(site.objects("broken/7/")) == {"a"}
    assert site.uploads("broken/") == []
