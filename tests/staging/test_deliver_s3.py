"""Results delivered to a real server of S3: an object is there when all of it is, and what breaks off leaves none."""

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import boto3
import pytest
from tests.staging.bad_server import bad_server, plain_server
from tests.staging.dav_server import dav_server
from tests.staging.processes import s3_running
from tests.staging.s3_server import BUCKET

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import FOLDER_PART, output_key
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.agent.staging import deliver_child
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.deliver import Deliver
from gleaner.agent.staging.s3 import PART_BYTES

pytestmark = pytest.mark.slow
KEYS = "AKIAEXAMPLE:wJalrXUtnFEMI"
LARGE_BYTES, END = PART_BYTES + 5, b"the end"


@dataclass
class S3Site:
    """A server of S3, and what it says."""

    port: int
    output: IO[str]
    certificate: Path

    @property
    def url(self) -> str:
        return f"s3://127.0.0.1:{self.port}/{BUCKET}/"

    def client(self) -> Any:
        return boto3.client(
            "s3", endpoint_url=f"https://127.0.0.1:{self.port}", region_name="us-east-1", verify=str(self.certificate),
            aws_access_key_id="any", aws_secret_access_key="any",
        )  # fmt: skip

    def objects(self, prefix: str) -> dict[str, bytes]:
        """The objects below a prefix."""
        client = self.client()
        found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        keys = [one["Key"] for one in found]
        return {key.removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    def uploads(self, prefix: str) -> list[str]:
        """The keys of uploads that have come to no end."""
        found = self.client().list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", [])
        return [one["Key"] for one in found]

    def wait_until_it_hangs(self) -> None:
        assert self.output.readline() == "hangs\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Site]:
    with bad_server(tmp_path_factory.mktemp("server")) as made, s3_running(made.certificate) as (port, output):
        yield S3Site(port, output, made.certificate)


@pytest.fixture
def site(running: S3Site, monkeypatch: pytest.MonkeyPatch) -> S3Site:
    monkeypatch.setenv("SSL_CERT_FILE", str(running.certificate))
    return running


class MovedClock(SystemClock):
    """The system's clock, ahead by what a test says."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@dataclass
class Node:
    """A node with a result, and the site's server."""

    place: Path
    site: S3Site
    clock: MovedClock
    stop: threading.Event

    def store(self, large: str) -> str:
        """Store the result of attempt 2 of job 7: a small file and a large one."""
        (self.place / "job/big").mkdir(parents=True, exist_ok=True)
        (self.place / "job/a b?.root").write_bytes(b"events" * 1000)
        with (self.place / "job/big" / large).open("wb") as file:
            file.seek(LARGE_BYTES - len(END))
            file.write(END)
        FolderStorage(self.place / "storage").prepare()
        with FolderStorage(self.place / "storage").draft(output_key(7, 2)) as draft:
            draft.add(FOLDER_PART, workdir_tar.pack(self.place / "job"))
            return draft.publish({}).digest

    def deliver(self, digest: str, prefix: str, *, keys: str | None = KEYS, **more: Any) -> DeliveryReport | None:
        offer = {
            "job": 7, "attempt": 2, "number": 1, "digest": digest, "to": self.site.url + prefix,
            "allowed": (self.site.url,), "total_s": 600, "silent_s": 300,
        }  # fmt: skip
        deliver = Deliver(self.place / "storage", self.place / "work", 0, "control.example", self.clock)
        credential = None if keys is None else Credential(self.site.url, keys)
        report = deliver(Delivery.model_validate(offer | more), self.stop, credential)
        assert list((self.place / "work").iterdir()) == []
        if report is not None:
            assert "\n" not in report.failed
            assert KEYS.partition(":")[2] not in report.failed
        return report


@pytest.fixture
def node(tmp_path: Path, site: S3Site) -> Node:
    return Node(tmp_path, site, MovedClock(), threading.Event())


def whole(large: str) -> dict[str, bytes]:
    files = {"a b?.root": b"events" * 1000, f"big/{large}": bytes(LARGE_BYTES - len(END)) + END}
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())]
    return files | {"job-7.sha256": "".join(lines).encode()}


def test_a_result_is_there_with_a_list_that_proves_it_whole(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:1")
    monkeypatch.setenv("FSSPEC_S3_TOKEN", "of the account")
    digest = node.store("b.root")
    report = node.deliver(digest, "whole/7/")
    assert report is not None
    assert (report.failed, report.files, report.size_bytes) == ("", 2, LARGE_BYTES + 6000)
    assert node.site.objects("whole/7/") == whole("b.root")
    assert node.site.uploads("") == []


def test_an_upload_that_breaks_off_leaves_no_object_and_no_parts(node: Node) -> None:
    report = node.deliver(node.store("busy.root"), "broken/7/")
    assert report is not None
    assert "the server answers 503" in report.failed
    assert report.may_pass
    assert set(node.site.objects("broken/7/")) == {"a b?.root"}
    assert node.site.uploads("broken/") == []


@pytest.mark.extended
def test_an_upload_that_takes_too_long_leaves_no_parts_either(node: Node) -> None:
    def hurry() -> None:
        node.site.wait_until_it_hangs()
        node.clock.ahead_s = 10_000

    watching = threading.Thread(target=hurry)
    watching.start()
    report = node.deliver(node.store("hang1.root"), "slow/7/", silent_s=20_000, total_s=9_000)
    watching.join()
    assert report is not None
    assert "did not take the result within" in report.failed
    assert set(node.site.objects("slow/7/")) == {"a b?.root"}
    assert node.site.uploads("slow/") == []


@pytest.mark.extended
def test_what_an_agent_has_left_that_ended_the_next_one_removes_and_delivers(node: Node) -> None:
    def end() -> None:
        node.site.wait_until_it_hangs()
        node.stop.set()

    ending = threading.Thread(target=end)
    ending.start()
    digest = node.store("hang2.root")
    assert node.deliver(digest, "ended/7/") is None
    ending.join()
    assert set(node.site.objects("ended/7/")) == {"a b?.root"}
    other = node.site.client().create_multipart_upload(Bucket=BUCKET, Key="ended/7/of-others")["Key"]
    assert node.site.uploads("ended/") == ["ended/7/big/hang2.root", other]
    node.stop.clear()
    report = node.deliver(digest, "ended/7/", number=2)
    assert report is not None
    assert report.failed == ""
    assert node.site.objects("ended/7/") == whole("hang2.root")
    assert node.site.uploads("ended/") == [other]


def test_an_upload_that_a_newer_try_begins_meanwhile_goes_on(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older one of the same file is removed. The newer one begins while the result is unpacked."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_EC2_METADATA_DISABLED", "FSSPEC_CONFIG_DIR"):
        monkeypatch.setenv(name, "")  # it is put back at the end
    digest, key = node.store("b.root"), "newer/7/big/b.root"

    def begin() -> str:
        return str(node.site.client().create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"])

    def uploads() -> set[str]:
        found = node.site.client().list_multipart_uploads(Bucket=BUCKET, Prefix="newer/").get("Uploads", [])
        return {one["UploadId"] for one in found}

    def unpack(*given: Any, **more: Any) -> None:
        newer.append(begin())
        unpack_result(*given, **more)

    older, newer, unpack_result = begin(), list[str](), deliver_child.unpack_result
    assert uploads() == {older}
    monkeypatch.setattr(deliver_child, "unpack_result", unpack)
    (node.place / "spool").mkdir()
    to = f"{node.site.url}newer/7/"
    request = deliver_child.DeliverRequest(
        str(node.place / "storage"), 7, 2, digest, to, 2, (), (to,), "", 300, str(node.place / "spool"), 0,
        credential=Credential(node.site.url, KEYS),
    )  # fmt: skip
    assert deliver_child.deliver_to_server(request, lambda: None) == (2, LARGE_BYTES + 6000)
    assert uploads() == set(newer)


def test_a_redirect_is_not_followed_wherever_it_leads(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with dav_server(node.place) as server, plain_server() as other:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        server.moved_to = f"http://127.0.0.2:{other.port}"
        to = f"s3://127.0.0.1:{server.port}/{BUCKET}/"
        report = node.deliver(node.store("b.root"), "", to=to, allowed=(to,))
    assert report is not None
    assert "the server answers 307, a redirect, which is not followed" in report.failed
    assert (report.may_pass, other.asked) == (False, [])


@pytest.mark.extended
def test_what_no_other_try_changes_is_one_line(node: Node) -> None:
    digest = node.store("b.root")

    def failure(prefix: str, **more: Any) -> str:
        report = node.deliver(digest, prefix, **more)
        assert report is not None
        assert not report.may_pass
        return report.failed

    assert "answers 403: the group has no secret for it (`glean secret set`)" in failure("a/", keys=None)
    elsewhere = node.site.url.replace(f"/{BUCKET}/", "/none/")
    line = failure("", to=elsewhere, allowed=(elsewhere,))
    assert f"answers 403: the group's secret is only for what is below {node.site.url}" in line
    assert "is not below a URL" in failure("a/", allowed=(node.site.url + "b/",))
    by_name = node.site.url.replace("127.0.0.1", "localhost")
    assert "localhost has the address" in failure("", to=by_name, allowed=(by_name,))


@pytest.mark.extended
def test_a_name_that_no_key_can_have_is_one_line(node: Node) -> None:
    (node.place / "job").mkdir()
    (node.place / "job" / os.fsdecode(b"\xff.root")).write_bytes(b"a")
    report = node.deliver(node.store("b.root"), "names/7/")
    assert report is not None
    assert "has letters that no key of S3 can have" in report.failed
    assert (report.may_pass, "job-7.sha256" in node.site.objects("names/7/")) == (False, False)
