"""Deliver a job's result to its target, within limits of time, in a process that can be ended at once."""

import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gleaner.agent.common import allowed_urls
from gleaner.agent.common.clock import Clock
from gleaner.agent.common.quantities import in_words
from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.agent.staging import deliver_child
from gleaner.agent.staging.child_process import (
    ChildSilent,
    ChildStopped,
    ChildTooSlow,
    MayNot,
    MayPass,
    answer,
    check_end,
    child_process,
)
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.deliver_child import DeliverRequest
from gleaner.agent.staging.stage import remove_stages
from gleaner.agent.system import openat

CLEARS_WITHIN_S = 10.0
"""A target that hangs is not waited for longer."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Delivers for one agent."""

    storage: Path
    spool: Path
    """A folder on the node's disk."""
    reserve_bytes: int
    """So much of that disk stays free."""
    control_host: str
    clock: Clock

    def __call__(
        self, delivery: Delivery, stop: threading.Event, credential: Credential | None = None
    ) -> DeliveryReport | None:
        """Deliver a result, and return what is to be reported; None if the agent has no more time for it. Blocks."""
        try:
            files, size_bytes = self._deliver(delivery, stop, credential)
        except ChildStopped:
            return None
        except MayNot as error:
            return _failed(delivery, str(error), may_pass=False)
        except (MayPass, OSError, ValueError) as error:
            return _failed(delivery, str(error), may_pass=True)
        return DeliveryReport(job=delivery.job, number=delivery.number, files=files, size_bytes=size_bytes)

    def _deliver(self, delivery: Delivery, stop: threading.Event, credential: Credential | None) -> tuple[int, int]:
        request = DeliverRequest(
            storage=str(self.storage),
            job=delivery.job,
            attempt=delivery.attempt,
            digest=delivery.digest,
            to=delivery.to,
            number=delivery.number,
            keep=delivery.keep,
            allowed=delivery.allowed,
            control_host=self.control_host,
            silent_s=delivery.silent_s,
            spool=str(self.spool),
            reserve_bytes=self.reserve_bytes,
            credential=credential,
        )
        self.spool.mkdir(parents=True, mode=0o700, exist_ok=True)
        where = allowed_urls.shown(delivery.to)
        try:
            last = self._run(request, total_s=delivery.total_s, stop=stop)
        except ChildTooSlow:
            self._clear_target(request, stop)
            limit = f"{in_words(delivery.total_s)} ([outputs] deliver_s)"
            raise MayPass(f"{where} did not take the result within {limit}") from None
        except ChildSilent:
            self._clear_target(request, stop)
            raise MayPass(f"{where} has taken nothing for {delivery.silent_s:.0f} s") from None
        finally:  # a child that was killed has removed nothing
            with openat.closing_fd(os.open(self.spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as spool:
                remove_stages(spool, delivery.job)
        found = json.loads(last)
        return found["files"], found["size_bytes"]

    def _run(self, request: DeliverRequest, *, total_s: float, stop: threading.Event) -> bytes:
        """Run the program for a request; return its last line."""
        limits, last = {"total_s": total_s, "silent_s": request.silent_s}, b""
        with child_process(deliver_child) as child:
            for chunk in answer(child, request.to_json(), **limits, stop=stop, clock=self.clock):
                last = (last + chunk).rpartition(deliver_child.PROGRESS)[2]
            check_end(child, allowed_urls.shown(request.to))
        return last

    def _clear_target(self, request: DeliverRequest, stop: threading.Event) -> None:
        """Remove what a killed try has left at the target. If it hangs, the next try does so."""
        if allowed_urls.location(request.to).scheme in deliver_child.CLEARERS:
            with suppress(MayNot, MayPass, ChildTooSlow, ChildSilent):
                self._run(replace(request, only_clears=True), total_s=CLEARS_WITHIN_S, stop=stop)


def _failed(delivery: Delivery, line: str, *, may_pass: bool) -> DeliveryReport:
    return DeliveryReport(job=delivery.job, number=delivery.number, failed=line, may_pass=may_pass)
