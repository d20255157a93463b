"""The results that an agent delivers for control, one at a time.

Control offers only results that count. It learns of each end through the agent's outbox. If the agent ends first,
another agent delivers the same result again, which changes nothing where it is there already.
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
    """The deliveries of one agent. Only the calls that block run in a thread."""

    client: ControlClient
    deliver: Callable[[Delivery, threading.Event], DeliveryReport | None]
    """As `transfer.file_transfers.Transfers.deliver` does it."""
    report: Callable[[DeliveryReport], None]
    """Puts it into the agent's outbox."""
    clock: Clock
    is_wanted: bool = False
    """True if control has said that a result waits."""
    is_busy: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    def stop(self) -> None:
        """Deliver nothing more, and give up at once what is under way."""
        self._stop.set()

    async def run(self) -> None:
        """Deliver what control offers, until the agent ends."""
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
        """Deliver a result. Return False if none waits. Raises `ControlSilent` or `ControlRefused`. Blocks."""
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
