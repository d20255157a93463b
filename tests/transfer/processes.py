"""The programs that a test has started, as others see them; and a server of S3."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path


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
