"""An agent's last reports: control hears them now or later. Nothing waits for a storage that hangs."""

import asyncio
import shutil
from pathlib import Path

import structlog

from gleaner.agent.common.clock import Clock
from gleaner.agent.reporting.client import ControlSilent, Outbox

log = structlog.get_logger()

SPILL_S = 10.0
"""The storage may take so long for the reports that control has not heard."""


async def say_farewell(outbox: Outbox, reports: Path, *, clock: Clock, within_s: float, storage_hangs: bool) -> None:
    """Deliver what waits in the outbox, or leave it in `reports`, a folder on the storage, in so many seconds.

    The reports go to the storage first: control may hang until this agent is gone. A storage that hangs is not used.
    """
    give_up_s = clock.monotonic_s() + within_s
    spilt = not storage_hangs and await _spilt(outbox, reports, within_s=min(SPILL_S, within_s / 2))
    try:
        async with asyncio.timeout(give_up_s - clock.monotonic_s()):
            await asyncio.to_thread(outbox.deliver)
            if spilt:
                await asyncio.to_thread(shutil.rmtree, reports)
    except (TimeoutError, ControlSilent, OSError) as error:
        where = "waits on the storage" if spilt else "is lost"
        log.warning(f"control has not heard everything; the rest {where}", reason=str(error) or "no answer in time")


async def _spilt(outbox: Outbox, reports: Path, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await asyncio.to_thread(outbox.spill_into, reports)
    except (TimeoutError, OSError) as error:
        log.warning("the storage does not take the last reports", reason=str(error) or "no answer in time")
        return False
    return True
