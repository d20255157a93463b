"""The programs that a test has started, as others see them; and a server of S3."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3


def children() -> set[str]:
    """The processes that this one has started and that have not ended, those of tests before included."""
    found = set[str]()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found.update((task / "children").read_text().split())
    return found


def shown_to_others(process: str) -> list[bytes]:
    """The command line and the environment of a process."""
    return [Path(f"/proc/{process}/{name}").read_bytes() for name in ("cmdline", "environ")]


@contextmanager
def s3_running(certificate: Path) -> Generator[int]:
    """A server of S3 (`s3_server`), with a certificate beside which its key is: its port."""
    program = [sys.executable, "-m", "tests.transfer.s3_server", str(certificate)]
    with subprocess.Popen(
        [*program, str(certificate.with_name("key.pem"))],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin
        assert server.stdout
        yield int(server.stdout.readline())
        server.stdin.close()


def client(port: int, certificate: Path) -> Any:
    """Return a client of that server."""
    return boto3.client(
        "s3", endpoint_url=f"https://127.0.0.1:{port}", region_name="us-east-1", verify=str(certificate),
        aws_access_key_id="any", aws_secret_access_key="any",
    )  # fmt: skip


def objects(port: int, certificate: Path, prefix: str) -> dict[str, bytes]:
    """Return the objects of its bucket below a prefix."""
    bucket = client(port, certificate)
    keys = [one["Key"] for one in bucket.list_objects_v2(Bucket="bucket", Prefix=prefix).get("Contents", [])]
    return {key.removeprefix(prefix): bucket.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}
