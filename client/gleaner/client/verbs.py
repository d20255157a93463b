"""Every request to control, written once for both clients: its route, its options and its answer."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote
from uuid import uuid4

from gleaner.agent.job_spec import InputSpec, JobSpec
from gleaner.client import local_inputs, uploads
from gleaner.client.connection import STORE_S, Connection
from gleaner.client.errors import ClientError, checked
from gleaner.client.steps import Item, Items, ItemVerb, Sleep, Steps, Verb, Work
from gleaner.client.unpack import Fetched, fetch
from gleaner.client.uploads import FileToSend, OnPart
from gleaner.control.models.agents import AgentRow
from gleaner.control.models.campaigns import CampaignDetail, CampaignList, CampaignStatus
from gleaner.control.models.decisions import DecisionRow
from gleaner.control.models.drains import DrainRequest, DrainRow, ResumeRequest
from gleaner.control.models.health import Health
from gleaner.control.models.images import ImagePush, ImageRow, SiteImages
from gleaner.control.models.jobs import (
    CampaignRerun,
    JobDetail,
    JobList,
    JobRow,
    LogPage,
    MigrateRequest,
    Priority,
    Rerun,
    Submission,
    Submitted,
)
from gleaner.control.models.nodes import ClusterStatus
from gleaner.control.models.outputs import ResultRow
from gleaner.control.models.owners import OwnersStatus
from gleaner.control.models.parameters import ParameterSpace
from gleaner.control.models.report import MonthReport, ReportFilter
from gleaner.control.models.searches import CampaignFilter, JobFilter, JobOrder, Search
from gleaner.control.models.secrets import SecretPut, SecretRow
from gleaner.control.models.tokens import TokenIssued, TokenRequest, TokenRow, WebCode
from gleaner.control.policy.draining import Spanning
from gleaner.control.states import Outcome, State

T = TypeVar("T")

POLL_S = 2.0
FOLLOW_S = 1.0
PATIENCE_S = 600.0
"""The longest absence of control, for example during a restart, after which a watching method fails."""
ACCOUNTING_S = 150.0
"""The time limit for a report with Slurm's accounting, which needs minutes to read a month of a large cluster."""
LINES_A_PAGE = 1000


class CampaignRules(TypedDict, total=False):
    """The rules of a campaign, and `dry_run`, as in a `Submission`."""

    max_running: int | None
    try_first: int | None
    max_failures: str | None
    dry_run: bool


class CampaignConditions(TypedDict, total=False):
    """The conditions and the page of a search for campaigns, as in a `CampaignFilter`."""

    group: str | None
    mine: bool
    text: str
    page: int
    limit: int


class JobConditions(CampaignConditions, total=False):
    """The conditions, the order and the page of a search for jobs, as in a `JobFilter`."""

    state: State | None
    outcome: Outcome | None
    campaign: int | None
    held: bool | None
    order: JobOrder
    after: int


class Verbs:
    """The methods of both clients. Each raises only `ClientError`."""

    _connection: Connection

    # Jobs

    @Verb
    def submit(
        self,
        job: JobSpec,
        *,
        indices: Iterable[int] | None = None,
        parameters: ParameterSpace | None = None,
        group: str | None = None,
        hold: bool = False,
        **rules: Unpack[CampaignRules],
    ) -> Steps[Submitted]:
        """Submit one job, or with `indices` or `parameters` a campaign. Only an admin can name a group."""
        each = None if indices is None else tuple(indices)
        wanted = checked(Submission, job=job, indices=each, parameters=parameters, group=group, hold=hold, **rules)
        return self._write("POST", "/v1/jobs", Submitted, wanted, key=str(uuid4()))

    @Verb
    def jobs(self, **wanted: Unpack[JobConditions]) -> Steps[JobList]:
        """Return a page of at most `limit` jobs with numbers above `after`, the oldest first."""
        return self._read("/v1/jobs", JobList, _query(checked(JobFilter, **wanted)))

    @ItemVerb
    def all_jobs(self, *, campaign: int) -> Items[JobRow]:
        """Yield every job of a campaign, the oldest first."""
        after = 0
        while True:
            page = yield from Verbs.jobs.steps(self, campaign=campaign, after=after, limit=1000)
            for row in page.jobs:
                yield Item(row)
                after = row.id
            if not page.jobs:
                return

    @Verb
    def job(self, job: int) -> Steps[JobDetail]:
        """Return all known facts of a job."""
        return self._read(f"/v1/jobs/{job}", JobDetail)

    @ItemVerb
    def watch(self, job: int, *, every_s: float = FOLLOW_S) -> Items[JobDetail]:
        """Yield all known facts of a job, repeatedly until it has ended."""
        path = f"/v1/jobs/{job}"
        return self._followed(path, JobDetail, lambda detail: detail.job.state is State.COMPLETE, every_s)

    @Verb
    def hold(self, job: int) -> Steps[JobRow]:
        """Keep a job from starting. A running job is saved at once, and then waits."""
        return self._write("POST", f"/v1/jobs/{job}/hold", JobRow)

    @Verb
    def rerun(self, job: int, *, memory_mib: int | None = None, image: str | None = None) -> Steps[JobRow]:
        """Run a failed or cancelled job again, from its beginning."""
        change = checked(Rerun, memory_mib=memory_mib, image=image)
        return self._write("POST", f"/v1/jobs/{job}/rerun", JobRow, change)

    @Verb
    def release(self, job: int) -> Steps[JobRow]:
        """Let a held job continue."""
        return self._write("POST", f"/v1/jobs/{job}/release", JobRow)

    @Verb
    def cancel(self, job: int) -> Steps[JobRow]:
        """End a job. Its checkpoints are deleted."""
        return self._write("POST", f"/v1/jobs/{job}/cancel", JobRow)

    @Verb
    def remove(self, job: int) -> Steps[JobRow]:
        """Remove an ended job from all lists, with its result and its log."""
        return self._write("DELETE", f"/v1/jobs/{job}", JobRow)

    @Verb
    def deliver(self, job: int) -> Steps[JobRow]:
        """Deliver a result to the job's target again."""
        return self._write("POST", f"/v1/jobs/{job}/deliver", JobRow)

    @Verb
    def migrate(self, job: int, *, to: str | None = None) -> Steps[JobRow]:
        """Save a running job now, and let it continue on the node `to`, or on any other node."""
        return self._write("POST", f"/v1/jobs/{job}/migrate", JobRow, checked(MigrateRequest, to=to))

    @Verb
    def set_priority(self, job: int, *, priority: int) -> Steps[JobRow]:
        """Change a job's priority. Jobs with a higher priority start first."""
        return self._write("PATCH", f"/v1/jobs/{job}", JobRow, checked(Priority, priority=priority))

    @Verb
    def log(self, job: int, *, first: int = 0, limit: int = LINES_A_PAGE, everything: bool = False) -> Steps[LogPage]:
        """Return lines that a job has printed, from number `first` on. `everything` includes lines of lost attempts."""
        wanted = {"first": first, "limit": limit} | ({"all": 1} if everything else {})
        return self._read(f"/v1/jobs/{job}/log", LogPage, wanted)

    @ItemVerb
    def log_lines(self, job: int, *, follow: bool = False, everything: bool = False) -> Items[str]:
        """Yield each line that a job has printed, over all its slices.

        With `follow`, continue until the job has ended.
        """
        first = 0
        look = self._patient(lambda: Verbs.log.steps(self, job, first=first, everything=everything))
        while True:
            page = yield from look()
            if page.first > first:
                self._connection.notice(f"{page.first - first} earlier lines are no longer kept")
            new = page.lines[max(0, first - page.first) :]  # earlier lines are not printed again
            for line in new:
                yield Item(line)
            first = max(first, page.first + len(page.lines))
            if not new:
                if page.ended or not follow:
                    return
                yield Sleep(FOLLOW_S)

    @ItemVerb
    def results(self, *, campaign: int) -> Items[ResultRow]:
        """Yield a row that identifies the result of each job of a campaign, the oldest first."""
        after, path = 0, f"/v1/campaigns/{campaign}/results"
        while page := (yield from self._read(path, tuple[ResultRow, ...], {"after": after})):
            for row in page:
                yield Item(row)
            after = page[-1].job

    @Verb
    def fetch(
        self, job: int | ResultRow, *, to: str | Path, only: Sequence[str] = (),
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> Steps[Fetched]:  # fmt: skip
        """Fetch the files that a job has left, unless they are already there. The new folder `to` appears only when it
        is complete.

        `only` are patterns of the files to fetch. Links are neither created nor followed. `on_bytes` is called with the
        size of each part.
        """
        row = job if isinstance(job, ResultRow) else (yield from self._read(f"/v1/jobs/{job}/result", ResultRow))
        return (yield from fetch(self._connection, row, Path(to), only=only, on_bytes=on_bytes))

    # Campaigns

    @Verb
    def status(self) -> Steps[CampaignStatus]:
        """Return how many jobs are in each state, among those that the caller is allowed to see."""
        return self._read("/v1/status", CampaignStatus)

    @Verb
    def campaign(self, campaign: int) -> Steps[CampaignStatus]:
        """Return how many jobs of a campaign are in each state."""
        return self._read(f"/v1/campaigns/{campaign}", CampaignStatus)

    @Verb
    def campaigns(self, **wanted: Unpack[CampaignConditions]) -> Steps[CampaignList]:
        """Return a page of campaigns with their progress and their expected ends, the newest first."""
        return self._read("/v1/campaigns", CampaignList, _query(checked(CampaignFilter, **wanted)))

    @Verb
    def campaign_detail(self, campaign: int) -> Steps[CampaignDetail]:
        """Return a campaign's specification, its progress, the causes of its failures, and its node time."""
        return self._read(f"/v1/campaigns/{campaign}/detail", CampaignDetail)

    @Verb
    def remove_campaign(self, campaign: int) -> Steps[CampaignStatus]:
        """Remove all jobs of an ended campaign from all lists, with their results and logs."""
        return self._write("DELETE", f"/v1/campaigns/{campaign}", CampaignStatus)

    @Verb
    def hold_campaign(self, campaign: int) -> Steps[CampaignStatus]:
        """Keep all jobs of a campaign from starting."""
        return self._write("POST", f"/v1/campaigns/{campaign}/hold", CampaignStatus)

    @Verb
    def release_campaign(self, campaign: int) -> Steps[CampaignStatus]:
        """Let all held jobs of a campaign continue."""
        return self._write("POST", f"/v1/campaigns/{campaign}/release", CampaignStatus)

    @Verb
    def cancel_campaign(self, campaign: int) -> Steps[CampaignStatus]:
        """End all jobs of a campaign."""
        return self._write("POST", f"/v1/campaigns/{campaign}/cancel", CampaignStatus)

    @Verb
    def rerun_campaign(
        self, campaign: int, *, only: Iterable[int] | None = None, memory_mib: int | None = None,
        image: str | None = None,
    ) -> Steps[Submitted]:  # fmt: skip
        """Run the failed jobs of a campaign again, or those with the indices `only`. Return their numbers."""
        each = None if only is None else tuple(only)
        change = checked(CampaignRerun, only=each, memory_mib=memory_mib, image=image)
        return self._write("POST", f"/v1/campaigns/{campaign}/rerun", Submitted, change)

    @Verb
    def set_campaign_priority(self, campaign: int, *, priority: int) -> Steps[CampaignStatus]:
        """Change the priority of all jobs of a campaign."""
        return self._write("PATCH", f"/v1/campaigns/{campaign}", CampaignStatus, checked(Priority, priority=priority))

    @Verb
    def wait(
        self, *, jobs: Sequence[int] = (), campaign: int | None = None, timeout_s: float | None = None
    ) -> Steps[CampaignStatus]:
        """Wait until these jobs, or those of a campaign, have ended. Return how many of them are in each state."""
        return self._standings(jobs, campaign, timeout_s)

    @ItemVerb
    def standings(
        self, *, jobs: Sequence[int] = (), campaign: int | None = None, timeout_s: float | None = None
    ) -> Items[CampaignStatus]:
        """Yield how many jobs are in each state, repeatedly until all have ended or the time is over."""
        return self._standings(jobs, campaign, timeout_s)

    def _standings(self, jobs: Sequence[int], campaign: int | None, timeout_s: float | None) -> Steps[CampaignStatus]:
        rows: dict[int, JobRow] = {}

        def look() -> Steps[CampaignStatus]:
            if campaign is not None:
                return (yield from self._read(f"/v1/campaigns/{campaign}", CampaignStatus))
            for job in dict.fromkeys(jobs):
                if job not in rows or rows[job].state is not State.COMPLETE:
                    rows[job] = (yield from self._read(f"/v1/jobs/{job}", JobDetail)).job
            return count_states(tuple(rows.values()))

        patient_look = self._patient(look)
        began_s = time.monotonic()
        has_told_of_held = False
        while True:
            status = yield from patient_look()
            yield Item(status)
            rest_s = POLL_S if timeout_s is None else min(POLL_S, began_s + timeout_s - time.monotonic())
            if status.unfinished == 0 or rest_s <= 0:
                return status
            if not has_told_of_held and status.unfinished == status.held:
                self._connection.notice("all remaining jobs are held; they continue only after `glean release`")
                has_told_of_held = True
            yield Sleep(rest_s)

    def _followed(self, path: str, shape: type[T], has_ended: Callable[[T], bool], every_s: float) -> Items[T]:
        look = self._patient(lambda: self._read(path, shape))
        while not has_ended(seen := (yield from look())):
            yield Item(seen)
            yield Sleep(every_s)
        yield Item(seen)

    def _patient(self, look: Callable[[], Steps[T]]) -> Callable[[], Steps[T]]:
        """Return a function that calls `look` and, after its first success, tolerates a short absence of control."""
        last_s: float | None = None

        def looking() -> Steps[T]:
            nonlocal last_s
            has_told = False
            while True:
                try:
                    seen = yield from look()
                except ClientError as error:
                    if not error.is_away or last_s is None or time.monotonic() - last_s > PATIENCE_S:
                        raise
                    if not has_told:
                        self._connection.notice("control does not answer; still trying")
                    has_told = True
                    yield Sleep(POLL_S)
                else:
                    last_s = time.monotonic()
                    return seen

        return looking

    # Inputs and images

    @Verb
    def put_input(
        self, path: str | Path, *, name: str | None = None, into_job: bool = False, group: str | None = None,
        on_part: OnPart | None = None,
    ) -> Steps[InputSpec]:  # fmt: skip
        """Send a file or folder, unless the group has already stored it. Return its entry for a job's `inputs`."""
        file: FileToSend = yield Work(lambda: local_inputs.pack(Path(path), name=name or Path(path).name))
        spec = checked(InputSpec, name=file.name, content=file.content, into_job=into_job)
        yield from local_inputs.store(self._connection, [file], group, on_part)
        return spec

    @Verb
    def put_inputs(
        self, files: Sequence[FileToSend], *, group: str | None = None, on_part: OnPart | None = None
    ) -> Steps[None]:
        """Send the files that the group has not stored yet."""
        return local_inputs.store(self._connection, files, group, on_part)

    @Verb
    def images(self, *, group: str | None = None) -> Steps[tuple[ImageRow, ...]]:
        """Return the images that the group has pushed."""
        return self._read("/v1/images", tuple[ImageRow, ...], _of_group(group))

    @Verb
    def site_images(self) -> Steps[SiteImages]:
        """Return the images that the nodes have."""
        return self._read("/v1/site-images", SiteImages)

    @Verb
    def image(self, name: str, *, group: str | None = None) -> Steps[ImageRow]:
        """Return one image."""
        return self._read(f"/v1/images/{_quoted(name)}", ImageRow, _of_group(group))

    @Verb
    def push_image(
        self, name: str, file: FileToSend, *, group: str | None = None, registry_image: str | None = None,
        on_part: OnPart | None = None,
    ) -> Steps[ImageRow]:  # fmt: skip
        """Send an image and have it stored. Control answers after it has read and written the whole image."""
        push = checked(
            ImagePush, name=name, image_id=file.content, size_bytes=file.size_bytes, group=group,
            registry_image=registry_image,
        )  # fmt: skip
        yield from uploads.send(self._connection, file, group, on_part)
        return (yield from self._write("POST", "/v1/images", ImageRow, push, within_s=STORE_S))

    @Verb
    def remove_image(self, name: str, *, group: str | None = None) -> Steps[ImageRow]:
        """Remove an image. Control refuses to do so while a job that has not ended needs the image."""
        return self._write("DELETE", f"/v1/images/{_quoted(name)}", ImageRow, params=_of_group(group))

    @Verb
    def publish_image(self, name: str, *, group: str | None = None) -> Steps[ImageRow]:
        """Let all groups use a group's image. Only an admin can do this."""
        return self._write("POST", f"/v1/images/{_quoted(name)}/publish", ImageRow, params=_of_group(group))

    @Verb
    def unpublish_image(self, name: str) -> Steps[ImageRow]:
        """Withdraw a published image."""
        return self._write("POST", f"/v1/images/{_quoted(name)}/unpublish", ImageRow)

    # Secrets and tokens

    @Verb
    def secrets(self, *, group: str | None = None) -> Steps[tuple[SecretRow, ...]]:
        """Return the group's secrets, without their values."""
        return self._read("/v1/secrets", tuple[SecretRow, ...], _of_group(group))

    @Verb
    def set_secret(self, name: str, *, url: str, value: str, group: str | None = None) -> Steps[SecretRow]:
        """Store a secret for the URLs that begin with `url`. It replaces an older one with the same name."""
        secret = checked(SecretPut, name=name, url=url, value=value, group=group)
        return self._write("POST", "/v1/secrets", SecretRow, secret.with_value())

    @Verb
    def remove_secret(self, name: str, *, group: str | None = None) -> Steps[SecretRow]:
        """Delete a secret. Jobs that need it then wait, or are held."""
        return self._write("DELETE", f"/v1/secrets/{_quoted(name)}", SecretRow, params=_of_group(group))

    @Verb
    def tokens(self, *, everything: bool = False) -> Steps[tuple[TokenRow, ...]]:
        """Return the valid tokens except those of agents, and with `everything` also the ended ones. Users see only
        their own."""
        return self._read("/v1/tokens", tuple[TokenRow, ...], {"all": 1} if everything else None)

    @Verb
    def issue_token(
        self, name: str, *, role: str, group: str | None = None, manager: bool = False, days: int | None = None
    ) -> Steps[TokenIssued]:
        """Make a token for a `user`, for an `admin` or for `metrics`. The token is shown only once."""
        wanted = checked(TokenRequest, role=role, name=name, group=group, manager=manager, days=days)
        return self._write("POST", "/v1/tokens", TokenIssued, wanted)

    @Verb
    def revoke_token(self, token: str) -> Steps[TokenRow]:
        """End a token, which is identified by its id."""
        return self._write("POST", f"/v1/tokens/{_quoted(token)}/revoke", TokenRow)

    @Verb
    def rotate_token(self, token: str = "own") -> Steps[TokenIssued]:  # noqa: S107 - no secret, but "the one in use"
        """Replace a token with a new one, which is shown only once, and end the old one."""
        return self._write("POST", f"/v1/tokens/{_quoted(token)}/rotate", TokenIssued)

    # The cluster

    @Verb
    def agents(self) -> Steps[tuple[AgentRow, ...]]:
        """Return the agents, with their nodes, their ends and their jobs."""
        return self._read("/v1/agents", tuple[AgentRow, ...])

    @Verb
    def nodes(self) -> Steps[ClusterStatus]:
        """Return the nodes as the scheduler shows them."""
        return self._read("/v1/nodes", ClusterStatus)

    @Verb
    def trust(self, node: str) -> Steps[ClusterStatus]:
        """Forget the failures of a node. Only an admin can do this."""
        return self._write("POST", f"/v1/nodes/{_quoted(node)}/trust", ClusterStatus)

    @Verb
    def drain(
        self, nodes: Sequence[str], *, spanning: Spanning = Spanning.REFUSE, leave_others: bool = False,
        dry_run: bool = False,
    ) -> Steps[DrainRow]:  # fmt: skip
        """Start to drain nodes for maintenance. `follow_drain` waits until they are empty."""
        wanted = checked(
            DrainRequest, nodes=tuple(nodes), spanning=spanning, leave_others=leave_others, dry_run=dry_run
        )
        return self._write("POST", "/v1/nodes/drain", DrainRow, wanted)

    @Verb
    def resume(self, nodes: Sequence[str]) -> Steps[DrainRow]:
        """Start to resume nodes that a drain has emptied. `follow_drain` waits until they are in use."""
        return self._write("POST", "/v1/nodes/resume", DrainRow, checked(ResumeRequest, nodes=tuple(nodes)))

    @ItemVerb
    def follow_drain(self, number: int) -> Items[DrainRow]:
        """Yield the state of a drain, repeatedly until it is over."""
        return self._followed(f"/v1/drains/{number}", DrainRow, lambda row: row.ended_s is not None, FOLLOW_S)

    @Verb
    def decision(self, number: int) -> Steps[DecisionRow]:
        """Return a decision, with its input and its answer."""
        return self._read(f"/v1/decisions/{number}", DecisionRow)

    @Verb
    def decisions(self, subject: str, *, limit: int = 1) -> Steps[tuple[DecisionRow, ...]]:
        """Return the latest decisions about `job 7` or `slurm 4711`, the newest first."""
        return self._read("/v1/decisions", tuple[DecisionRow, ...], {"subject": subject, "limit": limit})

    @Verb
    def owners(self) -> Steps[OwnersStatus]:
        """Return the owners with entitlements, and their waiting jobs."""
        return self._read("/v1/owners", OwnersStatus)

    @Verb
    def report(self, *, month: str = "", accounting: bool = False) -> Steps[MonthReport]:
        """Return a month's node time, and the users who received the harvested time.

        `accounting` adds the waiting times of regular jobs.
        """
        wanted = checked(ReportFilter, month=month, accounting=accounting)
        within_s = ACCOUNTING_S if accounting else 0.0
        return self._connection.ask("GET", "/v1/report", MonthReport, params=wanted.model_dump(), within_s=within_s)

    @Verb
    def health(self) -> Steps[Health]:
        """Return the health of control."""
        return self._read("/health", Health)

    @Verb
    def web_address(self) -> Steps[str]:
        """Return the address of the web page, with a code that can sign in one browser within a minute."""
        code = yield from self._write("POST", "/v1/web-codes", WebCode)
        return f"{self._connection.urls[0].rstrip('/')}/web/sign-in#{quote(code.code, safe='')}"

    def _read(self, path: str, shape: type[T], params: dict[str, Any] | None = None) -> Steps[T]:
        return self._connection.ask("GET", path, shape, is_repeatable=True, params=params)

    def _write(self, method: str, path: str, shape: type[T], body: Any = None, **call: Any) -> Steps[T]:
        return self._connection.write(method, path, shape, body, **call)


def count_states(rows: Sequence[JobRow]) -> CampaignStatus:
    """Return the number of these jobs in each state."""
    states = Counter((row.outcome or row.state).lower() for row in rows)
    names = ("new", "running", "saved", "succeeded", "failed", "cancelled")
    held = sum(row.held for row in rows)
    return CampaignStatus(campaign=None, held=held, **{name: states[name] for name in names})


def _query(wanted: Search) -> dict[str, Any]:
    return wanted.model_dump(mode="json", exclude_defaults=True)


def _of_group(group: str | None) -> dict[str, Any] | None:
    return None if group is None else {"group": group}


def _quoted(name: str) -> str:
    return quote(name, safe="")
