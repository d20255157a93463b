"""Inputs from real servers of XRootD, and results to them, with a relay between that breaks off."""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import self_signed
from tests.transfer.node import Node, with_list
from tests.transfer.xrootd_server import Issuer, Relay, relay_to, xrootd

from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.process import TransferFailure

pytestmark = pytest.mark.slow
CONTENT = hashlib.shake_128(b"events").digest(5 * 2**20 + 7)

METALINK = """<?xml version="1.0"?><metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="a">
<url>root://localhost:1//pub/a.root</url></file></metalink>"""
"""A list of places, which the library would follow by itself."""


@dataclass(frozen=True)
class Site:
    """Servers of XRootD, each by its host and port."""

    data: str
    """Everybody may read `/pub`, and write to `/new`."""
    redirector: str
    """It leads from /pub to another server, and from /loop to itself."""
    secure: str
    """It speaks TLS, and wants a token. It leads from `/moved` to another server."""
    issuer: Issuer
    place: Path


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))  # the server's own account reaches it
    place.chmod(0o755)
    for folder in ("pub", "moved", "loop", "new"):
        (place / "files" / folder).mkdir(parents=True)
        (place / "files" / folder / "a.root").write_bytes(CONTENT)
    shutil.chown(place / "files/new", "nobody")
    (place / "files" / "pub" / "mine.root").write_bytes(b"mine")
    (place / "files" / "pub" / "mine.root").chmod(0)
    (place / "files" / "pub" / "two words.root").write_bytes(b"two words")
    (place / "files" / "pub" / "list.meta4").write_text(METALINK)
    self_signed(place)
    issuer = Issuer(place)
    export = (*(f"all.export /{folder} r/o" for folder in ("pub", "moved", "loop")), "all.export /new")
    try:
        with (
            relay_to(0, 2**60) as loop,
            xrootd(place, "data", *export) as data,
            xrootd(
                place, "secure", *export, f"xrd.tls {place}/cert.pem {place}/key.pem",
                f"xrd.tlsca certfile {place}/cert.pem", "xrootd.tls all", "xrootd.seclib libXrdSec.so",
                "sec.protocol ztn", "sec.protbind * only ztn", "ofs.authorize 1",
                f"ofs.authlib libXrdAccSciTokens.so config={place}/tokens", f"xrootd.redirect 127.0.0.1:{data} /moved",
            ) as secure,
            xrootd(
                place, "redirector", *export, f"xrootd.redirect 127.0.0.1:{data} /pub",
                f"xrootd.redirect 127.0.0.1:{loop.port} /loop",
            ) as redirector,
        ):  # fmt: skip
            loop.to = redirector
            yield Site(f"127.0.0.1:{data}", f"127.0.0.1:{redirector}", f"127.0.0.1:{secure}", issuer, place)
    finally:
        shutil.rmtree(place)


@pytest.fixture
def relay(site: Site) -> Iterator[Relay]:
    with relay_to(int(site.data.rpartition(":")[2])) as made:
        yield made


@pytest.fixture
def trusted(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the server with TLS, for whose certificate somebody vouches."""
    monkeypatch.setenv("SSL_CERT_FILE", str(site.place / "cert.pem"))
    return f"roots://{site.secure}/"


def fetched(url: str, into: Path, *allowed: str, token: str = "", **more: Any) -> int:
    node = Node(into.parent)
    return node.fetch(url, into, *allowed, secret=Credential(allowed[0], token) if token else None, **more)


def failure(url: str, into: Path, *allowed: str, may_pass: bool = False, **more: Any) -> str:
    with pytest.raises(TransferFailure) as caught:
        fetched(url, into, *allowed, **more)
    assert caught.value.may_pass is may_pass, str(caught.value)
    return str(caught.value)


def test_a_file_is_fetched_whole_also_through_a_redirect(site: Site, tmp_path: Path) -> None:
    own = f"root://{site.redirector}/"
    size_bytes = fetched(f"{own}/pub/a.root", tmp_path / "a", own)
    assert ((tmp_path / "a").read_bytes(), size_bytes) == (CONTENT, len(CONTENT))
    fetched(f"{own}/pub/list.meta4", tmp_path / "b", own)
    assert (tmp_path / "b").read_text() == METALINK
    by_ipv6 = f"root://{site.data}/".replace("127.0.0.1", "[::1]")
    fetched(f"{by_ipv6}/pub/two%20words.root", tmp_path / "c", by_ipv6)
    assert (tmp_path / "c").read_bytes() == b"two words"


def test_where_a_redirect_has_led_is_checked_before_a_byte_is_taken(site: Site, relay: Relay, tmp_path: Path) -> None:
    own = f"root://{site.redirector.replace('127.0.0.1', '127.0.0.2')}/"
    line = failure(f"{own}/pub/a.root", tmp_path / "a", own)
    assert line.startswith("127.0.0.2 has the address 127.0.0.1, which is of the node itself")
    assert not (tmp_path / "a").exists()
    by_name = f"root://localhost:{relay.port}/"
    assert failure(f"{by_name}/pub/a.root", tmp_path / "a", by_name).startswith("localhost has the address ")
    assert relay.held == [], "nothing has connected"


def test_a_server_that_wants_a_token_sees_the_groups_and_no_other_server_does(
    site: Site, trusted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token of this account's own is not used, nor its other settings."""
    monkeypatch.setenv("BEARER_TOKEN", site.issuer.token("read:/"))
    monkeypatch.setenv("XRD_LOCALMETALINKFILE", "1")
    url = f"{trusted}/pub/a.root"
    fetched(url, tmp_path / "a", trusted, token=site.issuer.token("read:/pub"))
    assert (tmp_path / "a").read_bytes() == CONTENT
    line = failure(url, tmp_path / "b", trusted)
    assert line.endswith(": the group has no secret for it (`glean secret set`)")
    line = failure(url, tmp_path / "b", trusted, token=site.issuer.token("read:/other"))
    assert line.endswith(f": it does not take the group's secret for {trusted}")
    line = failure(f"{trusted}/moved/a.root", tmp_path / "b", trusted, token=site.issuer.token("read:/"))
    assert "is redirected, and a secret is shown to one server only" in line


@pytest.mark.extended
def test_what_no_other_try_changes_is_one_line(site: Site, tmp_path: Path) -> None:
    own, redirector, into = f"root://{site.data}/", f"root://{site.redirector}/", tmp_path / "a"
    assert "there is no such file" in failure(f"{own}/pub/none.root", into, own)
    line = failure(f"{own}/pub/mine.root", into, own)
    assert "the server refuses it (" in line
    assert "permission denied" in line
    assert "is a directory" in failure(f"{own}/pub", into, own)
    assert "name a file, without a ?" in failure(f"{own}/pub/a.root?xrd.wantprot=gsi", into, own)
    assert "name a file, without a ?" in failure(f"{own}/pub/a%3Fxrdcl.unzip=b", into, own)
    assert "a letter that no file there has" in failure(f"{own}/pub/a%0Ab", into, own)
    assert "is redirected, and that too often" in failure(f"{redirector}/loop/a.root", into, redirector)
    assert "not below a URL" in failure(f"{own}/moved/a.root", into, f"{own}/pub/")


@pytest.mark.extended
def test_a_server_that_breaks_off_or_is_away_is_one_line(site: Site, relay: Relay, tmp_path: Path) -> None:
    own, into = f"root://127.0.0.1:{relay.port}/", tmp_path / "a"
    assert failure(f"{own}/pub/a.root", into, own, may_pass=True).startswith(f"{own}/pub/a.root: ")
    relay.passes_bytes = 2**21
    failure(f"{own}/pub/a.root", into, own, silent_s=5, may_pass=True)
    gone = "root://127.0.0.1:1/"
    assert failure(f"{gone}/a", into, gone, may_pass=True).startswith(f"{gone}/a: ")


@pytest.mark.extended
def test_a_servers_name_and_certificate_are_checked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, token, into = f"roots://{site.secure}/", site.issuer.token("read:/"), tmp_path / "a"
    assert "TLS" in failure(f"{own}/pub/a.root", into, own, token=token, may_pass=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(site.place / "cert.pem"))
    other = own.replace("127.0.0.1", "127.0.0.2")
    assert "127.0.0.2" in failure(f"{other}/pub/a.root", into, other, token=token, may_pass=True)
    plain = f"roots://{site.data}/"
    assert "TLS" in failure(f"{plain}/pub/a.root", into, plain, token=token, may_pass=True)


def test_a_result_is_there_with_a_list_that_proves_it_whole(site: Site, tmp_path: Path) -> None:
    files = {"a b.root": CONTENT, "empty": b"", "hist/c.root": b"c"}
    node, to = Node(tmp_path), f"root://{site.data}//new/set/7/"
    digest = node.store(files)
    for number in (1, 2):
        report = node.deliver(digest, to, number=number)
        assert (report.failed, report.files, report.size_bytes) == ("", 3, len(CONTENT) + 1)
        there = site.place / "files/new/set/7"
        found = {str(path.relative_to(there)): path.read_bytes() for path in there.rglob("*") if path.is_file()}
        assert found == with_list(files)


def test_a_result_is_delivered_with_the_groups_token(site: Site, trusted: str, tmp_path: Path) -> None:
    node, to = Node(tmp_path), f"{trusted}/new/secret/"
    digest, token = node.store({"a": b"a"}), site.issuer.token("write:/new read:/new")
    assert node.deliver(digest, to, secret=Credential(trusted, token)).failed == ""
    assert (site.place / "files/new/secret/a").read_bytes() == b"a"
    read_only = node.deliver(digest, f"root://{site.data}//pub/set/")
    assert read_only.failed.startswith(f"root://{site.data}//pub/set/: ")
    report = node.deliver(digest, to)
    assert (report.may_pass, report.failed.endswith("has no secret for it (`glean secret set`)")) == (False, True)
