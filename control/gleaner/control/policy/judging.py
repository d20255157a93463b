"""Whether a node or a job is to blame for failures. Pure: counts in, a verdict out.

A workload that exits with an error within `QUICK_S` of its start may have found a broken node: no disk, a library
that is gone, a device that does not answer. Or it is broken itself. One node cannot tell, so the same jobs on other
nodes are asked. That is a sequential test (Wald) of "the node is like the others" against "the node fails what it is
given". A job that failed quickly here and ran well elsewhere is nine times as likely under the second, one that failed
elsewhere too under the first. Three more of the one kind than of the other are odds of 9**3 = 729 to 1.

Where the others have no place for these jobs soon, that would take too long. So a node on which `JOBS_UNTIL_DOUBTED`
different jobs in a row have failed quickly, while another node has no such row, is *doubted*: it gets one job at a
time, a probe, with growing pauses. When the probes fail too it is bad, unless the others have begun to fail as well: a
campaign that is broken fails everywhere, and then no node is left to compare with, and none is doubted.
"""

from dataclasses import dataclass
from enum import StrEnum
from random import Random

QUICK_S = 30.0
"""A failure after less computing than this says something about the node; a later one is the job's."""
STEADY_S = 120.0
"""A job that still runs so long after its claim has begun well. Longer than `QUICK_S`: it may load its image first."""
JOBS_UNTIL_DOUBTED = 5
PROBES_UNTIL_BAD = 2
MARGIN_UNTIL_BAD = 3
"""Jobs that ran elsewhere less jobs that failed elsewhere."""
FORGET_S = 3600.0
"""A row of failures that was not continued for so long is forgotten, unless its node was found bad."""
FIRST_PROBE_S, LONGEST_PROBE_S = 60.0, 600.0
FIRST_AVOID_S, LONGEST_AVOID_S = 600.0, 3600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
LONGEST_ELSEWHERE_S = 600.0
"""So long a job waits for a node on which it has not failed; then any will do, for there may be no other."""
FORGIVEN_AT_MOST = 10
"""Of one job's failures at most so many cost it nothing: whatever nodes are blamed for, it ends."""
FORGIVEN_UNSEEN_AT_MOST = 2
"""So many where no other node is there, but may come: each costs the job `LONGEST_ELSEWHERE_S` of waiting for one."""


class Verdict(StrEnum):
    """What is thought of a node."""

    TRUSTED = "trusted"
    DOUBTED = "doubted"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a node on which different jobs have failed quickly in a row, with no good run in between."""

    jobs: int
    probes: int
    """How many of them were handed out while it was doubted."""
    ran_elsewhere: int
    """Those of the jobs that ran well on another node, and failed quickly on none in good standing."""
    failed_elsewhere: int
    """Those that failed quickly also on a node in good standing."""
    others: int
    """Other nodes with a live agent in good standing: they have no such row themselves."""
    others_alike: int
    """Other nodes with a live agent and such a row."""
    was_bad: bool = False


def verdict(seen: Seen) -> Verdict:
    """What the node is now.

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
    """A failure of a job, and what is known of the job."""

    is_quick: bool
    verdict: Verdict
    """Of the node, with this failure."""
    is_its_last: bool
    """One more that counts would end the job for good, or take from it what it has saved."""
    other_nodes_failed: int
    """Other nodes than this on which it has failed."""
    others: int
    """Other nodes with a live agent, in good standing, large enough for it, on which it has not failed."""
    forgiven: int
    """How many of its failures have cost it nothing."""
    is_another_known: bool = False
    """Whether an agent was ever on another node that could take it. It may come: rounds begin node by node."""


def counts(failed: Failed) -> bool:
    """Whether the failure costs the job a retry now.

    It does not where the node is doubted. Nor is one node's word enough to end a job that has failed quickly, or to
    take from it what it has saved, while another can be asked.
    """
    if not failed.is_quick or failed.forgiven >= FORGIVEN_AT_MOST:
        return True
    if failed.verdict is not Verdict.TRUSTED:
        return False
    another = failed.others > 0 or (failed.is_another_known and failed.forgiven < FORGIVEN_UNSEEN_AT_MOST)
    return not (failed.is_its_last and another and not failed.other_nodes_failed)


def is_quick(*, computed_s: float, lasted_s: float) -> bool:
    """Whether a workload has ended so soon that its node may be to blame.

    `computed_s` is its agent's word, `lasted_s` is from its claim by control's clock; it has not computed longer than
    it was there.
    """
    return min(computed_s, lasted_s) < QUICK_S


def pause_s(job: int, failures: int) -> float:
    """How long the job waits after so many failures: twice as long each time, up to a bound, and by half more or less.

    The dice depend on the job and the number only, so that a restart of control changes nothing.

    >>> 5 <= pause_s(7, 1) <= 15 and 10 <= pause_s(7, 2) <= 30 and 300 <= pause_s(7, 99) <= 900
    True
    """
    return _doubled(FIRST_PAUSE_S, failures, LONGEST_PAUSE_S) * Random(f"{job} {failures}").uniform(0.5, 1.5)


def probe_pause_s(probes: int) -> float:
    """How long a doubted node waits for its next job after so many probes.

    >>> [probe_pause_s(probes) for probes in (0, 1, 2, 9)]
    [60.0, 120.0, 240.0, 600.0]
    """
    return _doubled(FIRST_PROBE_S, probes + 1, LONGEST_PROBE_S)


def avoid_s(times_bad: int) -> float:
    """How long a node is left alone that was found bad so often in a row.

    >>> [avoid_s(times) for times in (1, 2, 3, 4, 99)]
    [600.0, 1200.0, 2400.0, 3600.0, 3600.0]
    """
    return _doubled(FIRST_AVOID_S, times_bad, LONGEST_AVOID_S)


def _doubled(first_s: float, times: int, most_s: float) -> float:
    return min(first_s * 2.0 ** min(max(times, 1) - 1, 30), most_s)
