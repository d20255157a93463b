"""A munged of a test's own, with a key of its own."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Daemon:
    """A munged with a key of its own."""

    folder: Path
    process: "subprocess.Popen[str] | None" = None

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    def start(self) -> None:
        places = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder / name}" for option, name in places.items()]
        self.process = subprocess.Popen(
            ["munged", "--foreground", "--force", "--num-threads=2", *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "Created 2 work threads" in line:
                return
        raise AssertionError("munged did not start")

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def munge_daemon() -> Iterator[Daemon]:
    """Run a munged that every account reaches."""
    with tempfile.TemporaryDirectory(prefix="munge") as name:  # a socket's path has to be short
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "key").write_bytes(b"k" * 64)
        (folder / "key").chmod(0o400)
        running = Daemon(folder)
        running.start()
        try:
            yield running
        finally:
            running.stop()
