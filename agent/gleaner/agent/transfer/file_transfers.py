"""The transfers of an agent, which fetches inputs and delivers results, each in a child process."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gleaner.agent.common.allowed_urls import shown
from gleaner.agent.common.clock import Clock
from gleaner.agent.messages import CredentialGiven, Delivery, DeliveryReport, FetchRules, UrlInput
from gleaner.agent.system import openat
from gleaner.agent.transfer import process
from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.deliver import DeliverRequest
from gleaner.agent.transfer.fetch import FetchRequest
from gleaner.agent.transfer.process import Limits, TemporaryFailure, TransferFailure, TransferStopped
from gleaner.agent.transfer.rules import Access
from gleaner.agent.transfer.stage import remove_stages


@dataclass(frozen=True, slots=True)
class Transfers:
    """The means by which one agent transfers files. Thread-safe. All calls block."""

    control_hosts: tuple[str, ...]
    reserve_bytes: int
    """The space that must stay free on the node's disk."""
    clock: Clock
    storage: Path
    work: Path
    place: Path
    """The agent's own folder on the node's disk."""

    def fetch(self, one: UrlInput, into: Path, rules: FetchRules, stop: threading.Event) -> int:
        """Fetch an input into a new file. Return its size. Raises `TransferFailure`, `TransferStopped` or `OSError`."""
        access = self._access(rules.allowed, rules.silent_s, one.credential)
        request = FetchRequest(one.url, access, into, one.sha256, rules.largest_bytes, self.reserve_bytes)
        limits = Limits(rules.total_s, rules.silent_s, shown(one.url), "[inputs] fetch_s")
        (size_bytes,) = process.run(request, limits, stop=stop, clock=self.clock)
        return size_bytes

    def deliver(self, delivery: Delivery, stop: threading.Event) -> DeliveryReport | None:
        """Deliver a result, and return the report; None if the agent has no time left for it."""
        report = DeliveryReport(job=delivery.job, number=delivery.number)
        limits = Limits(delivery.total_s, delivery.silent_s, shown(delivery.to), "[outputs] deliver_s")
        try:
            access = self._access(delivery.allowed, delivery.silent_s, delivery.credential)
            plain = delivery.model_copy(update={"credential": None})
            request = DeliverRequest(plain, access, self.storage, self.place, self.reserve_bytes)
            self.place.mkdir(parents=True, mode=0o700, exist_ok=True)
            try:
                files, size_bytes = process.run(request, limits, stop=stop, clock=self.clock)
            finally:  # a child that was killed has not cleaned up
                with openat.closing_fd(os.open(self.place, openat.FOLDER)) as place:
                    remove_stages(place, delivery.job)
        except TransferStopped:
            return None
        except (TransferFailure, OSError, ValueError) as error:
            may_pass = not isinstance(error, TransferFailure) or error.may_pass
            return report.model_copy(update={"failed": str(error), "may_pass": may_pass})
        return report.model_copy(update={"files": files, "size_bytes": size_bytes})

    def _access(self, allowed: Sequence[str], silent_s: float, given: CredentialGiven | None) -> Access:
        """Return the rules for one file. Raises `TemporaryFailure` if control cannot read the group's secret."""
        access = Access(allowed, self.control_hosts, silent_s, own=(str(self.storage), str(self.work)))
        if given is None:
            return access
        if given.fault:
            raise TemporaryFailure(given.fault)
        return replace(access, credential=Credential(given.url, given.value.get_secret_value()))
