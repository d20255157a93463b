"""Campaigns: jobs that were submitted together."""

from gleaner.control.models.base import Reply

MAX_CAMPAIGN = 2**31 - 1


class KnownCampaign(Reply):
    """Jobs that were submitted together."""

    id: int
    name: str
    group: str
    submitter: str = ""
    submitted_s: float


class CampaignStatus(Reply):
    """The number of jobs in each state, of a campaign or (`campaign` None) of all that the caller is allowed to see."""

    campaign: int | None
    new: int
    running: int
    saved: int
    succeeded: int
    failed: int
    cancelled: int
    held: int

    @property
    def unfinished(self) -> int:
        """Return the number of jobs that have not ended."""
        return self.new + self.running + self.saved
