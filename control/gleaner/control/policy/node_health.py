"""Node health: whether a node or the job is to blame for a failure. Pure: counts come in, a verdict goes out.

A workload that exits with an error within `QUICK_S` of its start may have found a broken node: no disk, a library
that is gone, a device that does not answer. Or it is broken itself. One node cannot tell, so the same jobs on other
nodes are the evidence. They make a sequential test (Wald) of "the node is like the others" against "the node fails
every job". A job that failed quickly here and ran well elsewhere is nine times as likely under the second hypothesis.
A job that failed elsewhere too is nine times as likely under the first. Three more jobs of one kind than of the other
are odds of 9**3 = 729 to 1.

Where the other nodes have no place for these jobs soon, this test would take too long. So a node is *suspect* if
`JOBS_UNTIL_SUSPECT` different jobs in a row have failed quickly there, while another node has no such row. A suspect
node gets one job at a time, a canary, with growing pauses. When the canaries fail too, the node is excluded, unless
the other nodes have begun to fail as well: a broken campaign fails everywhere. Then no node is left to compare with,
and none is suspect.
"""

from dataclasses import dataclass
from enum import StrEnum

QUICK_S = 30.0
"""A failure after less computing than this says something about the node; a later one is the job's."""
STEADY_S = 120.0
"""A job that still runs so long after its claim has begun well. Longer than `QUICK_S`: it may load its image first."""
JOBS_UNTIL_SUSPECT = 5
CANARIES_UNTIL_EXCLUDED = 2
MARGIN_UNTIL_EXCLUDED = 3
"""Jobs that ran elsewhere less jobs that failed elsewhere."""
FORGET_S = 3600.0
"""A row of failures is forgotten after so long without another one, unless its node is excluded."""
FIRST_CANARY_S, LONGEST_CANARY_S = 60.0, 600.0
FIRST_EXCLUSION_S, LONGEST_EXCLUSION_S = 600.0, 3600.0
LONGEST_ELSEWHERE_S = 600.0
"""The longest wait of a job for a node on which it has not failed. Then any node may take the job."""
FORGIVEN_AT_MOST = 10
"""The most failures of a job that cost it nothing: every job ends, whichever nodes are blamed."""
FORGIVEN_UNSEEN_AT_MOST = 2
"""The same where no other node is present but one may come: each costs the job a wait of `LONGEST_ELSEWHERE_S`."""


class NodeHealth(StrEnum):
    """The standing of a node."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    EXCLUDED = "excluded"


class Blame(StrEnum):
    """The party that is to blame for a failure."""

    OPEN = "open"
    """Not decided: it does not cost the job a retry yet, because one node's word is not enough."""
    JOB = "job"
    """The job: it has cost the job a retry."""
    NODE = "node"
    """The node: it never costs the job a retry."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The record of a node on which different jobs failed quickly in a row, with no good job in between."""

    jobs: int
    canaries: int
    """Of these jobs, the number that started while the node was suspect."""
    ran_elsewhere: int
    """Of these jobs, the number that ran well on another node and failed quickly on no node in good standing."""
    failed_elsewhere: int
    """Of these jobs, the number that also failed quickly on a node in good standing."""
    others: int
    """Other nodes with a live agent in good standing, that is without such a row of failures."""
    others_alike: int
    """Other nodes with a live agent and such a row of failures."""
    was_excluded: bool = False


def health(record: NodeRecord) -> NodeHealth:
    """Return the standing of the node.

    >>> health(NodeRecord(jobs=8, canaries=0, ran_elsewhere=0, failed_elsewhere=0, others=1, others_alike=0))
    <NodeHealth.SUSPECT: 'suspect'>
    >>> health(NodeRecord(jobs=8, canaries=0, ran_elsewhere=3, failed_elsewhere=0, others=1, others_alike=0))
    <NodeHealth.EXCLUDED: 'excluded'>
    >>> health(NodeRecord(jobs=8, canaries=0, ran_elsewhere=0, failed_elsewhere=0, others=0, others_alike=2))
    <NodeHealth.HEALTHY: 'healthy'>
    """
    margin = record.ran_elsewhere - record.failed_elsewhere
    if margin >= MARGIN_UNTIL_EXCLUDED:
        return NodeHealth.EXCLUDED
    if margin < 0:
        return NodeHealth.HEALTHY
    if not record.others:  # nothing to compare with: what it was found to be, it still is
        return NodeHealth.EXCLUDED if record.was_excluded and not record.others_alike else NodeHealth.HEALTHY
    if record.was_excluded:
        return NodeHealth.EXCLUDED
    if record.jobs < JOBS_UNTIL_SUSPECT:
        return NodeHealth.HEALTHY
    return NodeHealth.EXCLUDED if record.canaries >= CANARIES_UNTIL_EXCLUDED else NodeHealth.SUSPECT


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A failure of a job, with the facts that decide whether it counts."""

    is_quick: bool
    health: NodeHealth
    """The standing of the node, with this failure included."""
    is_its_last: bool
    """One more failure that counts would end the job, or remove its checkpoints."""
    other_nodes_failed: int
    """The number of other nodes on which the job has failure."""
    others: int
    """The number of other nodes that have a live agent, are in good standing, are large enough for the job, and on
    which the job has not failure."""
    forgiven: int
    """The number of failures that cost the job nothing."""
    is_another_known: bool = False
    """An agent was once on another node that could take the job. It may return: rounds begin node by node."""


def counts(failure: JobFailure) -> bool:
    """Return True if the failure costs the job a retry now.

    A failure on a suspect node does not count. A single node is also not enough to end a job that failed quickly, or
    to remove its checkpoints, while another node can try the job.
    """
    if not failure.is_quick or failure.forgiven >= FORGIVEN_AT_MOST:
        return True
    if failure.health is not NodeHealth.HEALTHY:
        return False
    another = failure.others > 0 or (failure.is_another_known and failure.forgiven < FORGIVEN_UNSEEN_AT_MOST)
    return not (failure.is_its_last and another and not failure.other_nodes_failed)


def is_quick(*, computed_s: float, lasted_s: float) -> bool:
    """Return True if a workload ended so soon that its node may be to blame.

    The agent reports `computed_s`; control's clock measures `lasted_s` from the claim. The smaller one counts, since a
    job cannot compute longer than it was on the node.
    """
    return min(computed_s, lasted_s) < QUICK_S


def canary_pause_s(canaries: int) -> float:
    """Return the time that a suspect node waits for its next job after so many canaries, in seconds.

    >>> [canary_pause_s(canaries) for canaries in (0, 1, 2, 9)]
    [60.0, 120.0, 240.0, 600.0]
    """
    return doubled(FIRST_CANARY_S, canaries + 1, LONGEST_CANARY_S)


def exclusion_s(times: int) -> float:
    """Return the time for which a node is excluded that failed its jobs so often in a row, in seconds.

    >>> [exclusion_s(times) for times in (1, 2, 3, 4, 99)]
    [600.0, 1200.0, 2400.0, 3600.0, 3600.0]
    """
    return doubled(FIRST_EXCLUSION_S, times, LONGEST_EXCLUSION_S)


def doubled(first_s: float, times: int, most_s: float) -> float:
    """Return `first_s` for the first time, twice as much for each further one, and at most `most_s`."""
    return min(first_s * 2.0 ** min(max(times, 1) - 1, 30), most_s)
