"""A node from which results are delivered: its storage, its disk, and the agent's program for deliveries."""

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import FOLDER_PART, output_key
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.messages import CredentialGiven, Delivery, DeliveryReport, FetchRules, UrlInput
from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.file_transfers import Transfers
from gleaner.agent.transfer.process import TransferFailure


@dataclass
class Node:
    """A node with the job 7, whose attempt 2 has a result."""

    place: Path
    reserve_bytes: int = 0

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write the files into the job's folder."""
        for name, content in files.items():
            (self.place / "job" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / "job" / name).write_bytes(content)

    def store(self, files: Mapping[str, bytes] | None = None) -> str:
        """Store the job's folder as the result, with these files."""
        self.write(files or {})
        FolderStorage(self.place / "storage").prepare()
        with FolderStorage(self.place / "storage").draft(output_key(7, 2)) as draft:
            draft.add(FOLDER_PART, workdir_tar.pack(self.place / "job"))
            return draft.publish({}).digest

    def deliver(
        self, digest: str, to: str, *allowed: str, secret: Credential | None = None, **more: Any
    ) -> DeliveryReport:
        """Deliver to an URL; by default it is allowed. The report is one line, and nothing stays on the node."""
        offer = Delivery.model_validate(
            {"job": 7, "attempt": 2, "number": 1, "total_s": 600, "silent_s": 300, "digest": digest, "to": to}
            | {"allowed": allowed or (to,), "credential": given(secret)} | more
        )  # fmt: skip
        report = self.transfers().deliver(offer, threading.Event())
        assert report is not None
        assert "\n" not in report.failed
        assert secret is None or secret.value.rpartition(":")[2] not in report.failed
        assert list((self.place / "work").glob("**/.gleaner-7-*")) == []
        return report

    def fetch(
        self, url: str, into: Path, *allowed: str, secret: Credential | None = None, sha256: str | None = None,
        stop: threading.Event | None = None, **more: Any,
    ) -> int:  # fmt: skip
        """Fetch from an URL; by default it is allowed. A failure is one line without the secret."""
        rules = {"allowed": allowed or (url,), "largest_bytes": 2**30, "total_s": 600, "silent_s": 300} | more
        one = UrlInput(name="a", url=url, sha256=sha256, credential=given(secret))
        try:
            return self.transfers().fetch(one, into, FetchRules.model_validate(rules), stop or threading.Event())
        except TransferFailure as error:
            assert str(error)
            assert "\n" not in str(error)
            assert secret is None or secret.value.rpartition(":")[2] not in str(error)
            into.unlink(missing_ok=True)
            raise

    def transfers(self) -> Transfers:
        work = self.place / "work"
        return Transfers(
            ("control.example",), self.reserve_bytes, SystemClock(), self.place / "storage", work, work / "a"
        )


def given(secret: Credential | None) -> CredentialGiven | None:
    """Return a secret as control gives it."""
    return None if secret is None else CredentialGiven(url=secret.url, value=SecretStr(secret.value))


def with_list(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what is at a target when all is there."""
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())]
    return {**files, "job-7.sha256": "".join(lines).encode()}
