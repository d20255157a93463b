"""The results that an agent delivers for control, one at a time.

Control offers only results that count. It learns through the agent's outbox how each delivery ended. If the agent ends
before that, another agent delivers the same result again, which changes nothing at a target that already has it.
"""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gleaner.agent.common.clock import Clock
from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.agent.reporting.client import ControlClient, ControlRefused, ControlSilent

log = structlog.get_logger()

LOOK_EVERY_S = 0.5


@dataclass(slots=True)
class Deliveries:
    """The deliveries of one agent. Calls that block run in a thread, and all others on the event loop."""

    client: ControlClient
    deliver: Callable[[Delivery, threading.Event], DeliveryReport | None]
    """Delivers a result, as `transfer.file_transfers.Transfers.deliver` does."""
    report: Callable[[DeliveryReport], None]
    """Puts a report into the agent's outbox."""
    clock: Clock
    is_wanted: bool = False
    """True if control has reported that a result is waiting for delivery."""
    is_busy: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Start no further delivery, and abandon one that is under way."""
        self._stop.set()

    async def run(self) -> None:
        """Deliver the results that control offers, until the agent ends."""
        while not self._stop.is_set():
            if self.is_wanted:
                self.is_busy, self.is_wanted = True, False
                try:
                    self.is_wanted = await asyncio.to_thread(self._deliver_one)
                except (ControlSilent, ControlRefused) as error:
                    log.warning("no delivery", reason=str(error))
                finally:
                    self.is_busy = False
            await self.clock.sleep(LOOK_EVERY_S)

    def _deliver_one(self) -> bool:
        """Deliver one result. Return False if no result is waiting. Raises `ControlSilent` or `ControlRefused`.
        Blocks."""
        if (delivery := self.client.take_delivery()) is None:
            return False
        facts = {"job": delivery.job, "attempt": delivery.attempt, "number": delivery.number}
        report = self.deliver(delivery, self._stop)
        if report is None:
            log.info("a delivery is left to another agent", **facts)
            return False
        log.info("a result was delivered" if not report.failed else "a delivery failed", **facts, why=report.failed)
        self.report(report)
        return True
