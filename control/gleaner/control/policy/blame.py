"""Blame for failures: the node or the job. Pure: counts come in, a verdict goes out.

A workload that exits with an error within `QUICK_S` of its start may have found a broken node: no disk, a library
that is gone, a device that does not answer. Or it is broken itself. One node cannot tell, so the same jobs on other
nodes are the evidence. They make a sequential test (Wald) of "the node is like the others" against "the node fails
every job". A job that failed quickly here and ran well elsewhere is nine times as likely under the second hypothesis.
A job that failed elsewhere too is nine times as likely under the first. Three more jobs of one kind than of the other
are odds of 9**3 = 729 to 1.

Where the other nodes have no place for these jobs soon, this test would take too long. So a node is *doubted* if
`JOBS_UNTIL_DOUBTED` different jobs in a row have failed quickly there, while another node has no such row. A doubted
node gets one job at a time, a probe, with growing pauses. When the probes fail too, the node is bad, unless the other
nodes have begun to fail as well: a broken campaign fails everywhere. Then no node is left to compare with, and none is
doubted.
"""

from dataclasses import dataclass
from enum import StrEnum

QUICK_S = 30.0
"""A failure after less computing than this says something about the node; a later one is the job's."""
STEADY_S = 120.0
"""A job that still runs so long after its claim has begun well. Longer than `QUICK_S`: it may load its image first."""
JOBS_UNTIL_DOUBTED = 5
PROBES_UNTIL_BAD = 2
MARGIN_UNTIL_BAD = 3
"""Jobs that ran elsewhere less jobs that failed elsewhere."""
FORGET_S = 3600.0
"""A row of failures is forgotten after so long without another one, unless its node was found bad."""
FIRST_PROBE_S, LONGEST_PROBE_S = 60.0, 600.0
FIRST_AVOID_S, LONGEST_AVOID_S = 600.0, 3600.0
LONGEST_ELSEWHERE_S = 600.0
"""The longest wait of a job for a node on which it has not failed. Then any node may take the job."""
FORGIVEN_AT_MOST = 10
"""The most failures of a job that cost it nothing: every job ends, whichever nodes are blamed."""
FORGIVEN_UNSEEN_AT_MOST = 2
"""The same where no other node is present but one may come: each costs the job a wait of `LONGEST_ELSEWHERE_S`."""


class Verdict(StrEnum):
    """The standing of a node."""

    TRUSTED = "trusted"
    DOUBTED = "doubted"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Seen:
    """The record of a node on which different jobs failed quickly in a row, with no good job in between."""

    jobs: int
    probes: int
    """Of these jobs, the number that started while the node was doubted."""
    ran_elsewhere: int
    """Of these jobs, the number that ran well on another node and failed quickly on no node in good standing."""
    failed_elsewhere: int
    """Of these jobs, the number that also failed quickly on a node in good standing."""
    others: int
    """Other nodes with a live agent in good standing, that is without such a row of failures."""
    others_alike: int
    """Other nodes with a live agent and such a row of failures."""
    was_bad: bool = False


def verdict(seen: Seen) -> Verdict:
    """Return the standing of the node.

    >>> verdict(Seen(jobs=8, probes=0, ran_elsewhere=0, failed_elsewhere=0, others=1, others_alike=0))
    <Verdict.DOUBTED: 'doubted'>
    >>> verdict(Seen(jobs=8, probes=0, ran_elsewhere=3, failed_elsewhere=0, others=1, others_alike=0))
    <Verdict.BAD: 'bad'>
    >>> verdict(Seen(jobs=8, probes=0, ran_elsewhere=0, failed_elsewhere=0, others=0, others_alike=2))
    <Verdict.TRUSTED: 'trusted'>
    """
    margin = seen.ran_elsewhere - seen.failed_elsewhere
    if margin >= MARGIN_UNTIL_BAD:
        return Verdict.BAD
    if margin < 0:
        return Verdict.TRUSTED
    if not seen.others:  # nothing to compare with: what it was found to be, it still is
        return Verdict.BAD if seen.was_bad and not seen.others_alike else Verdict.TRUSTED
    if seen.was_bad:
        return Verdict.BAD
    if seen.jobs < JOBS_UNTIL_DOUBTED:
        return Verdict.TRUSTED
    return Verdict.BAD if seen.probes >= PROBES_UNTIL_BAD else Verdict.DOUBTED


@dataclass(frozen=True, slots=True)
class Failed:
    """A failure of a job, with the facts that decide whether it counts."""

    is_quick: bool
    verdict: Verdict
    """The standing of the node, with this failure included."""
    is_its_last: bool
    """One more failure that counts would end the job, or remove its checkpoints."""
    other_nodes_failed: int
    """The number of other nodes on which the job has failed."""
    others: int
    """The number of other nodes that have a live agent, are in good standing, are large enough for the job, and on
    which the job has not failed."""
    forgiven: int
    """The number of failures that cost the job nothing."""
    is_another_known: bool = False
    """An agent was once on another node that could take the job. It may return: rounds begin node by node."""


def counts(failed: Failed) -> bool:
    """Return True if the failure costs the job a retry now.

    A failure on a doubted node does not count. A single node is also not enough to end a job that failed quickly, or
    to remove its checkpoints, while another node can try the job.
    """
    if not failed.is_quick or failed.forgiven >= FORGIVEN_AT_MOST:
        return True
    if failed.verdict is not Verdict.TRUSTED:
        return False
    another = failed.others > 0 or (failed.is_another_known and failed.forgiven < FORGIVEN_UNSEEN_AT_MOST)
    return not (failed.is_its_last and another and not failed.other_nodes_failed)


def is_quick(*, computed_s: float, lasted_s: float) -> bool:
    """Return True if a workload ended so soon that its node may be to blame.

    The agent reports `computed_s`; control's clock measures `lasted_s` from the claim. The smaller one counts, since a
    job cannot compute longer than it was on the node.
    """
    return min(computed_s, lasted_s) < QUICK_S


def probe_pause_s(probes: int) -> float:
    """Return the time that a doubted node waits for its next job after so many probes, in seconds.

    >>> [probe_pause_s(probes) for probes in (0, 1, 2, 9)]
    [60.0, 120.0, 240.0, 600.0]
    """
    return doubled(FIRST_PROBE_S, probes + 1, LONGEST_PROBE_S)


def avoid_s(times_bad: int) -> float:
    """Return the time for which a node is avoided that was found bad so often in a row, in seconds.

    >>> [avoid_s(times) for times in (1, 2, 3, 4, 99)]
    [600.0, 1200.0, 2400.0, 3600.0, 3600.0]
    """
    return doubled(FIRST_AVOID_S, times_bad, LONGEST_AVOID_S)


def doubled(first_s: float, times: int, most_s: float) -> float:
    """Return `first_s` for the first time, twice as much for each further one, and at most `most_s`."""
    return min(first_s * 2.0 ** min(max(times, 1) - 1, 30), most_s)
