"""Inputs from XRootD: a real client and real servers, and a relay between them that breaks off or hangs."""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.staging.processes import children, shown_to_others
from tests.staging.xrootd_server import Issuer, Relay, relay_to, xrootd

from gleaner.agent.common.clock import SystemClock
from gleaner.agent.messages import FetchRules
from gleaner.agent.staging.child_process import FINAL
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.fetch import Fetch, Fetched, FetchFailed, FetchStopped, schemes

pytestmark = pytest.mark.slow
CONTENT = hashlib.shake_128(b"events").digest(5 * 2**20 + 7)

METALINK = """<?xml version="1.0"?><metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="a">
<url>root://localhost:1//pub/a.root</url></file></metalink>"""
"""A list of places, which the library would follow by itself."""


@dataclass(frozen=True)
class Site:
    """Servers of XRootD, each by its host and port."""

    data: str
    """Everybody may read `/pub`."""
    redirector: str
    """It leads from /pub and /away to another server, and from /loop to itself."""
    secure: str
    """It speaks TLS, and wants a token."""
    loop: int
    """The port by which the redirector leads to itself."""
    issuer: Issuer
    place: Path


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))  # the server's own account reaches it
    place.chmod(0o755)
    for folder in ("pub", "away", "moved", "loop"):
        (place / "files" / folder).mkdir(parents=True)
        (place / "files" / folder / "a.root").write_bytes(CONTENT)
    (place / "files" / "pub" / "mine.root").write_bytes(b"mine")
    (place / "files" / "pub" / "mine.root").chmod(0)
    (place / "files" / "pub" / "two words.root").write_bytes(b"two words")
    (place / "files" / "pub" / "list.meta4").write_text(METALINK)
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", place / "key.pem",
         "-out", place / "cert.pem"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    issuer = Issuer(place)
    export = tuple(f"all.export /{folder} r/o" for folder in ("pub", "away", "moved", "loop"))
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
                f"xrootd.redirect localhost:{data} /away", f"xrootd.redirect 127.0.0.1:{loop.port} /loop",
            ) as redirector,
        ):  # fmt: skip
            loop.to = redirector
            yield Site(f"127.0.0.1:{data}", f"127.0.0.1:{redirector}", f"127.0.0.1:{secure}", loop.port, issuer, place)
    finally:
        shutil.rmtree(place)


@pytest.fixture
def relay(site: Site) -> Iterator[Relay]:
    with relay_to(int(site.data.rpartition(":")[2])) as made:
        yield made


def fetched(
    url: str,
    into: Path,
    *allowed: str,
    token: str = "",
    silent_s: float = 120,
    largest_bytes: int = 2**30,
    stop: threading.Event | None = None,
) -> Fetched:
    rules = FetchRules(allowed=allowed, largest_bytes=largest_bytes, total_s=600, silent_s=silent_s)
    credential = Credential(allowed[0], token) if token else None
    fetch = Fetch(control_host="", reserve_bytes=0, clock=SystemClock())
    return fetch(url, into, rules=rules, sha256=None, stop=stop or threading.Event(), credential=credential)


def failure(url: str, into: Path, *allowed: str, token: str = "", silent_s: float = 120, may_pass: bool = False) -> str:
    with pytest.raises(FetchFailed) as caught:
        fetched(url, into, *allowed, token=token, silent_s=silent_s)
    line = str(caught.value)
    assert line
    assert "\n" not in line
    assert not token or token not in line
    assert caught.value.may_pass is may_pass, line
    return line


def test_a_file_is_fetched_whole_through_a_redirect_that_is_allowed(site: Site, tmp_path: Path) -> None:
    found = fetched(f"root://{site.redirector}//pub/a.root", tmp_path / "a", *(
        f"root://{site.redirector}//pub/", f"root://{site.data}//pub/",
    ))  # fmt: skip
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert (found.size_bytes, found.sha256) == (len(CONTENT), f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
    assert {"root", "roots"} <= set(schemes())


def test_a_redirect_to_what_is_not_allowed_is_refused(site: Site, tmp_path: Path) -> None:
    own = f"root://{site.redirector.replace('127.0.0.1', '127.0.0.2')}/"
    line = failure(f"{own}/pub/a.root", tmp_path / "a", own)
    assert f"is redirected, and root://{site.data}//pub/a.root is not below a URL that this site allows" in line
    # `localhost` is on the list, and its address is not.
    elsewhere = f"root://localhost:{site.data.rpartition(':')[2]}/"
    line = failure(f"{own}/away/a.root", tmp_path / "b", own, elsewhere)
    assert "localhost has the address" in line
    assert "of the node itself" in line


def test_a_server_that_wants_a_token_sees_the_groups_and_no_other(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token of this account's own is not used, nor its other settings."""
    monkeypatch.setenv("SSL_CERT_FILE", str(site.place / "cert.pem"))
    monkeypatch.setenv("BEARER_TOKEN", site.issuer.token("read:/"))
    monkeypatch.setenv("XRD_LOCALMETALINKFILE", "1")
    own = f"roots://{site.secure}/"
    fetched(f"{own}/pub/a.root", tmp_path / "a", own, token=site.issuer.token("read:/pub"))
    assert (tmp_path / "a").read_bytes() == CONTENT
    line = failure(f"{own}/pub/a.root", tmp_path / "b", own)
    assert line.endswith(": the group has no secret for it (`glean secret set`)")
    line = failure(f"{own}/pub/a.root", tmp_path / "c", own, token=site.issuer.token("read:/other"))
    assert line.endswith(f": it does not take the group's secret for {own}")


def test_with_a_secret_no_redirect_out_of_its_url_is_followed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(site.place / "cert.pem"))
    own, token = f"roots://{site.secure}/", site.issuer.token("read:/")
    line = failure(f"{own}/moved/a.root", tmp_path / "a", own, f"roots://{site.data}/", token=token)
    assert f"redirected to roots://{site.data}//moved/a.root, and the group's secret is only for what is below" in line


@pytest.mark.extended
def test_what_no_other_try_changes_is_one_line(site: Site, tmp_path: Path) -> None:
    own = f"root://{site.data}/"
    assert "the server has no such file" in failure(f"{own}/pub/none.root", tmp_path / "a", own)
    line = failure(f"{own}/pub/mine.root", tmp_path / "b", own)
    assert "the server refuses it (" in line
    assert "permission denied" in line
    assert "is no file: name each file of a folder" in failure(f"{own}/pub", tmp_path / "c", own)
    assert "name a file, without a ?" in failure(f"{own}/pub/a.root?xrd.wantprot=gsi", tmp_path / "d", own)
    assert "name a file, without a ?" in failure(f"{own}/pub/a%3Fxrdcl.unzip=b", tmp_path / "e", own)
    own_redirector = f"root://{site.redirector}/"
    line = failure(f"{own_redirector}/loop/a.root", tmp_path / "i", own_redirector, f"root://127.0.0.1:{site.loop}/")
    assert "is redirected more than 10 times" in line
    assert "not below a URL" in failure(f"{own}/away/a.root", tmp_path / "f", f"{own}/pub/")
    by_ipv6 = own.replace("127.0.0.1", "[::1]")
    fetched(f"{by_ipv6}/pub/two%20words.root", tmp_path / "g", by_ipv6)
    assert (tmp_path / "g").read_bytes() == b"two words"
    fetched(f"{own}/pub/list.meta4", tmp_path / "h", own)
    assert (tmp_path / "h").read_text() == METALINK


@pytest.mark.extended
def test_a_server_that_breaks_off_hangs_or_is_away_is_one_line(site: Site, relay: Relay, tmp_path: Path) -> None:
    own = f"root://127.0.0.1:{relay.port}/"
    url = f"{own}/pub/a.root"
    for number, passes_bytes in enumerate((0, 2**21)):
        relay.passes_bytes = passes_bytes
        line = failure(url, tmp_path / f"cut-{number}", own, may_pass=True)
        assert line == f"{url}: the server broke off before the end of the file"
    relay.hangs = True
    for number, passes_bytes in enumerate((0, 2**21)):
        relay.passes_bytes = passes_bytes
        relay.has_passed.clear()
        line = failure(url, tmp_path / f"hang-{number}", own, silent_s=3, may_pass=True)
        assert relay.has_passed.is_set(), "the server was reached"
        assert "the server sent nothing for 3 s" in line
    gone = "root://127.0.0.1:1/"
    assert failure(f"{gone}/a", tmp_path / "c", gone, may_pass=True).startswith(f"{gone}/a: ")


_PROGRAM = """
import os, socket, sys
from gleaner.agent.staging.child_process import serve
from gleaner.agent.staging.fetch_child import FetchRequest, fetch
def elsewhere(host, port=None, *more, **options):
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]
socket.getaddrinfo = elsewhere
os._exit(serve(fetch(FetchRequest(sys.argv[1], (sys.argv[1],), "", 60, False))))
"""
"""A name that has another address as soon as it was checked."""


def test_an_address_is_checked_before_it_is_connected_to_and_afterwards(
    site: Site, relay: Relay, tmp_path: Path
) -> None:
    own = f"root://localhost:{relay.port}/"
    assert failure(f"{own}/pub/a.root", tmp_path / "a", own).startswith("localhost has the address ")
    assert relay.held == [], "nothing has connected"
    url = f"root://localhost:{site.data.rpartition(':')[2]}//pub/a.root"
    program = [sys.executable, "-c", _PROGRAM, url]
    ended = subprocess.run(program, check=False, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (FINAL, b"")
    assert ended.stderr.startswith(b"localhost has the address ")


def test_the_process_that_fetches_shows_a_token_to_nobody_else(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(site.place / "cert.pem"))
    token, stop, before, seen = site.issuer.token("read:/"), threading.Event(), children(), list[bytes]()
    with relay_to(int(site.secure.rpartition(":")[2])) as relay:
        relay.passes_bytes, relay.hangs = 2**21, True
        own = f"roots://127.0.0.1:{relay.port}/"

        def looking() -> None:
            assert relay.has_passed.wait(120)
            for child in children() - before:
                seen.extend(shown_to_others(child))
            stop.set()

        threading.Thread(target=looking).start()
        with pytest.raises(FetchStopped):
            fetched(f"{own}/pub/a.root", tmp_path / "a", own, token=token, stop=stop)
    assert len(seen) == 2
    assert all(seen)
    assert not any(token.encode() in content for content in seen)


@pytest.mark.extended
def test_a_file_above_the_limit_is_given_up(site: Site, tmp_path: Path) -> None:
    own = f"root://{site.data}/"
    with pytest.raises(FetchFailed, match=r"larger than .* \(\[inputs\] largest_gib\)"):
        fetched(f"{own}/pub/a.root", tmp_path / "a", own, largest_bytes=2**20)


@pytest.mark.extended
def test_a_servers_name_and_certificate_are_checked(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, token = f"roots://{site.secure}/", site.issuer.token("read:/")
    assert "TLS" in failure(f"{own}/pub/a.root", tmp_path / "a", own, token=token, may_pass=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(site.place / "cert.pem"))
    other = own.replace("127.0.0.1", "127.0.0.2")
    assert "127.0.0.2" in failure(f"{other}/pub/a.root", tmp_path / "b", other, token=token, may_pass=True)
    plain = f"roots://{site.data}/"
    assert "TLS" in failure(f"{plain}/pub/a.root", tmp_path / "c", plain, token=token, may_pass=True)
