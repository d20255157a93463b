"""Everything that changes where a job stands. Each function works in the caller's transaction.

They raise `Unknown`, `Refused` (`MoveRefused`, `NotCurrent`) or `Invalid`, and what raises has changed nothing:
the transaction that an exception leaves is undone.
"""

from gleaner.control.queue.checkpoints import checkpointed
from gleaner.control.queue.claims import claim
from gleaner.control.queue.flags import (
    cancel,
    cancel_campaign,
    hold,
    hold_campaign,
    release,
    release_campaign,
    set_priority,
)
from gleaner.control.queue.losses import lose, revive
from gleaner.control.queue.reports import completed, given_back, saved
from gleaner.control.queue.submissions import submit

__all__ = [
    "cancel",
    "cancel_campaign",
    "checkpointed",
    "claim",
    "completed",
    "given_back",
    "hold",
    "hold_campaign",
    "lose",
    "release",
    "release_campaign",
    "revive",
    "saved",
    "set_priority",
    "submit",
]
