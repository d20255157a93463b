"""Campaigns: jobs that were submitted together."""

from gleaner.agent.job_spec import JobSpec
from gleaner.control.models.base import Reply
from gleaner.control.models.report import ReportRow
from gleaner.control.policy.expected_end import ExpectedEnd

MAX_CAMPAIGN = 2**31 - 1


class KnownCampaign(Reply):
    """Jobs that were submitted together."""

    id: int
    name: str
    group: str
    submitter: str = ""
    submitted_s: float


class JobCounts(Reply):
    """The number of jobs in each state."""

    new: int
    running: int
    saved: int
    succeeded: int
    failed: int
    cancelled: int
    held: int

    @property
    def waiting(self) -> int:
        """Return the number of jobs that wait."""
        return self.new + self.saved

    @property
    def unfinished(self) -> int:
        """Return the number of jobs that have not ended."""
        return self.waiting + self.running

    @property
    def jobs(self) -> int:
        """Return the number of all jobs."""
        return self.unfinished + self.succeeded + self.failed + self.cancelled


class CampaignStatus(JobCounts):
    """The number of jobs in each state, in one campaign or, if `campaign` is None, among all that the caller can
    see."""

    campaign: int | None


class CampaignRow(KnownCampaign, JobCounts):
    """One campaign in a list."""

    expected: ExpectedEnd
    ended_s: float | None = None
    """The end of its last job, or None while a job has not ended."""
    result_bytes: int = 0
    kept_until_s: float | None = None
    """The time until which all its results are kept, or None if it has none or they are kept until a user removes
    them."""


class CampaignList(Reply):
    """Campaigns on one page of a search, and the number of all matching campaigns."""

    campaigns: tuple[CampaignRow, ...]
    total: int


class FailureCause(Reply):
    """The failed jobs of a campaign that have the same cause."""

    cause: str
    jobs: int
    first_job: int
    last_line: str
    """The last line that the first of these jobs wrote, or "" if there is none."""


class CampaignDetail(CampaignRow):
    """A campaign as it was submitted, its progress, and its failures."""

    spec: JobSpec
    """The specification that all its jobs share, as it was accepted."""
    first_job: dict[str, str]
    """The index and the parameters of the first job."""
    last_job: dict[str, str]
    max_running: int | None
    """The number of jobs that can run at the same time, or None for all."""
    try_left: int
    """The number of jobs that must still succeed before the others start."""
    failures_left: int | None
    """The number of jobs that can still fail before the rest are held, or None for all."""
    causes: tuple[FailureCause, ...]
    """The causes of the failed jobs, the most frequent first."""
    lost_slices: int
    use: ReportRow | None
    """The slices that have ended, and their core hours, or None if no slice has ended."""
