"""The consequences of an attempt's end for its job and for its node. Pure functions from facts to a verdict.

**For the node.** Jobs also fail through their own fault, so a failure is evidence against its node only if the same job
has also run elsewhere, either later or, if it failed quickly on the node, earlier. A node is excluded if three such
jobs of at least two groups, or any five such jobs, failed there in a row, without a job in between that ran well. The
exclusion lasts an hour, and twice as long each further time, up to a day. Then the node receives one job, a canary. If
the canary runs well, the node is trusted again. If it fails and then runs elsewhere, the node is excluded again. A
failure on an excluded node costs no retry.

**For the job.** `REACTIONS` lists the consequences of each reason for which an agent returns a job. A program that ends
with an error costs the job a retry. But a single node can neither end a job nor discard its checkpoints
(`after_failure`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from gleaner.agent.messages import ReturnReason
from gleaner.control.policy.retries import backoff_s

JOBS_OF_SOME_GROUPS, GROUPS = 3, 2
JOBS_IN_A_ROW = 5
CANARIES = 1
"""A node that was excluded before is excluded again after this number of jobs that failed there and ran elsewhere."""
FIRST_EXCLUSION_S, LONGEST_EXCLUSION_S = 3600.0, 86_400.0
CANARY_S = 600.0
"""A node that was excluded receives one job in each period of this length, until one has run well."""
EVIDENCE_S = 86_400.0
"""A failure that is older than this is no evidence against its node."""
QUICK_S = 30.0
"""A failure after less computing time than this might be the node's fault. A later failure can be the node's fault only
if the job runs elsewhere afterwards."""
STEADY_S = 120.0
"""A job counts as running well elsewhere if it has run there for this much longer than it took to fail."""


class Blame(StrEnum):
    """The party that is charged with an attempt's failure."""

    NOBODY = "nobody"
    """The failure has cost the job no retry, and might still turn out to be the node's fault."""
    JOB = "job"
    """The failure has cost the job a retry."""
    NODE = "node"
    """The node is or was excluded, so the failure never costs the job a retry."""


def must_exclude(group_of: Mapping[int, str], *, was_excluded: bool) -> bool:
    """Return True if the node on which these jobs failed in a row is to be excluded. All of these jobs also ran
    elsewhere.

    >>> must_exclude({1: "a", 2: "a", 3: "b"}, was_excluded=False), must_exclude({1: "a", 2: "b"}, was_excluded=False)
    (True, False)
    >>> must_exclude(dict.fromkeys(range(4), "a"), was_excluded=False), must_exclude({1: "a"}, was_excluded=True)
    (False, True)
    """
    if len(group_of) >= (CANARIES if was_excluded else JOBS_IN_A_ROW):
        return True
    return len(group_of) >= JOBS_OF_SOME_GROUPS and len(set(group_of.values())) >= GROUPS


def exclusion_s(times: int) -> float:
    """Return the time, in seconds, for which a node is excluded for the first, second ... time in a row.

    >>> [exclusion_s(times) / 3600 for times in (1, 2, 3, 5, 6, 99)]
    [1.0, 2.0, 4.0, 16.0, 24.0, 24.0]
    """
    return backoff_s(FIRST_EXCLUSION_S, times, LONGEST_EXCLUSION_S)


def allowance(excluded_until_s: float | None, now_s: float) -> int | None:
    """Return the number of jobs that a node is allowed to take now, or None for as many as it has room for.

    >>> allowance(None, 10.0), allowance(11.0, 10.0), allowance(10.0, 10.0)
    (None, 0, 1)
    """
    return None if excluded_until_s is None else int(excluded_until_s <= now_s)


class Then(Enum):
    """The consequence for the job after enough nodes have reported a reason."""

    HOLD = "hold"
    HOLD_CAMPAIGN = "hold campaign"
    """The jobs of its campaign that have not begun are held as well, because they use the same image."""
    HOLD_NEW_CAMPAIGN = "hold new campaign"
    """The job's whole campaign is held if none of the campaign's jobs has computed. Reports about the other jobs count
    as well."""
    SET_ASIDE = "set aside"
    """The checkpoint is broken, so the previous one counts."""


class Next(Enum):
    """The nodes to which the job is offered next, unless it is held."""

    ANYWHERE = "anywhere"
    ELSEWHERE = "elsewhere"
    """For a while, only nodes that have not reported the reason, if such a node might exist."""
    NOT_HERE = "not here"
    """All nodes except this one for a while, even if there is no other."""
    NEVER_HERE = "never here"
    """All nodes except this one, which cannot restore this checkpoint."""
    LATER = "later"
    """All nodes, after a pause that grows."""


@dataclass(frozen=True, slots=True)
class Reaction:
    """The consequences of one reason. A number of 0 means that the consequence never follows."""

    next: Next = Next.ANYWHERE
    nodes: int = 0
    """`then` follows when this number of different nodes have reported the reason."""
    alone: int = 0
    """`then` also follows when the reason was reported this often and no other node is known."""
    tries: int = 0
    """The job is held when this number of attempts in a row were returned for one of the reasons `alike`."""
    then: Then = Then.HOLD
    alike: tuple[ReturnReason, ...] = ()
    """The reasons that are counted together for `tries` and `of_checkpoint`. If it is empty, only this reason is
    counted."""
    of_checkpoint: bool = False
    """The reason is evidence against the checkpoint from which the attempt should have continued, and only reports
    since that checkpoint was saved are counted."""
    starts: int = 0
    """The job is held when it has started this often and none of its checkpoints could be restored."""
    of_node: bool = False
    """The reason counts against the node if the job runs elsewhere."""
    may_follow: bool = False
    """The attempt can still report a save or its result."""


_R = ReturnReason
_FUTILE = (_R.NODE_FAULT, _R.NODE_LACKS, _R.SAVE_FAILED, _R.UNSAVABLE)
_RESTORE = (_R.CANNOT_RESTORE, _R.CHECKPOINT_BROKEN)
_UNRESTORED = Reaction(
    Next.ELSEWHERE, nodes=3, alone=5, tries=5, then=Then.SET_ASIDE, alike=_RESTORE, of_checkpoint=True, of_node=True
)
REACTIONS: Mapping[ReturnReason, Reaction] = {
    _R.UNSTARTED: Reaction(),
    _R.TOO_LATE: Reaction(may_follow=True),
    _R.STORAGE_FAULT: Reaction(may_follow=True),  # never the job's fault, because all jobs share the storage
    _R.IMAGE_REFUSED: Reaction(nodes=1, then=Then.HOLD_CAMPAIGN),
    _R.IMAGE_MISSING: Reaction(Next.ELSEWHERE, nodes=2, alone=2, tries=5, then=Then.HOLD_NEW_CAMPAIGN),
    _R.INPUT_MISSING: Reaction(Next.ELSEWHERE, nodes=2, alone=2, tries=5),
    _R.INPUT_UNREACHABLE: Reaction(Next.LATER, tries=100),
    _R.MOUNT_MISSING: Reaction(Next.NOT_HERE),
    _R.NODE_LACKS: Reaction(Next.NOT_HERE, nodes=3, tries=5, alike=_FUTILE),
    _R.NODE_FAULT: Reaction(Next.ELSEWHERE, nodes=3, tries=5, alike=_FUTILE, of_node=True),
    _R.SAVE_FAILED: Reaction(tries=5, alike=_FUTILE, may_follow=True),
    _R.UNSAVABLE: Reaction(Next.ELSEWHERE, nodes=2, alone=2, tries=5, alike=_FUTILE, may_follow=True),
    _R.INCOMPATIBLE: Reaction(Next.NEVER_HERE, nodes=10, of_checkpoint=True),
    _R.CHECKPOINT_BROKEN: replace(_UNRESTORED, starts=3),
    _R.CANNOT_RESTORE: replace(_UNRESTORED, starts=1),  # the next attempt would end in the same way
}


@dataclass(frozen=True, slots=True)
class TimesGiven:
    """The attempts that reported a reason, including the latest."""

    node_of_each: Sequence[str]
    """The node of each attempt that reported it."""
    tries: int
    """The number of attempts in a row that were returned for this reason or one of those in `alike`."""
    is_another_known: bool
    """True if there was an agent on another node that could take the job."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the different nodes, in the order in which they first reported the reason."""
        return tuple(dict.fromkeys(self.node_of_each))


def verdict(reaction: Reaction, given: TimesGiven) -> Then | None:
    """Return the consequence for the job, or None if it is tried again.

    >>> verdict(REACTIONS[ReturnReason.UNSAVABLE], TimesGiven(["n1", "n2"], tries=2, is_another_known=True))
    <Then.HOLD: 'hold'>
    """
    if reaction.nodes and len(given.nodes) >= reaction.nodes:
        return reaction.then
    if reaction.alone and len(given.node_of_each) >= reaction.alone and not given.is_another_known:
        return reaction.then
    if reaction.tries and given.tries >= reaction.tries:
        return Then.HOLD if reaction.of_checkpoint else reaction.then
    return None


def hold_reason(reaction: Reaction, given: TimesGiven, line: str) -> str:
    """Return, in plain words, why the job is held. `line` is the last agent's text.

    >>> hold_reason(REACTIONS[ReturnReason.UNSAVABLE], TimesGiven(["n1", "n2"], 2, True), "cannot be saved: a device")
    'cannot be saved: a device; found 2 times, on n1, n2'
    """
    if reaction.nodes == 1:
        return line
    if verdict(replace(reaction, tries=0), given) is None:
        return f"came to nothing {given.tries} times in a row, the last time: {line}"
    return f"{line}; found {len(given.node_of_each)} times, on {', '.join(given.nodes)}"


class AfterFailure(Enum):
    """The next step for a job whose program has ended with an error."""

    FAIL = "fail"
    START_OVER = "start over"
    CONTINUE = "continue"
    """The job continues from its last checkpoint, if there is one."""


@dataclass(frozen=True, slots=True)
class OwnFailure:
    """The end of a program with an error."""

    failures: int
    """The number of failures that have cost the job a retry, including this one."""
    retries: int
    computed_s: float
    """The computing time that the agent has reported."""
    lasted_s: float
    """The time since the claim, by control's clock. A job cannot compute longer than it was on the node."""
    nodes: int
    """The number of different nodes on which the job has failed, not counting excluded nodes."""
    is_another_known: bool
    was_spared: bool
    """True if a failure that would have ended the job has been forgiven."""


def after_failure(failure: OwnFailure) -> tuple[AfterFailure, Blame]:
    """Return the next step for the job, and the party that is charged with the failure.

    A single node is not enough to end a job that failed quickly, or to discard its checkpoints, while another node can
    try the job. But only one failure of a job is forgiven, so every job ends, whichever nodes exist.
    """
    is_quick = min(failure.computed_s, failure.lasted_s) < QUICK_S
    may_be_the_nodes = is_quick and failure.nodes == 1 and failure.is_another_known
    way = AfterFailure.CONTINUE if may_be_the_nodes else AfterFailure.START_OVER
    if failure.failures <= failure.retries:
        return way, Blame.JOB
    if may_be_the_nodes and not failure.was_spared:
        return way, Blame.NOBODY
    return AfterFailure.FAIL, Blame.JOB
