"""The cores of backfilling as live control calls them: plain, over arrays, one decision at a time."""

import math
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.oracle import Cluster, Job
from tests.simulation.oracle import conservative as readable_conservative
from tests.simulation.oracle import easy as readable_easy

from gleaner.control.simulation.replay import backfill
from gleaner.control.simulation.replay.compiler import compiled

NOW_S = 100.0
compiled_easy = compiled(backfill.easy)
compiled_conservative = compiled(backfill.conservative)
compiling = settings(deadline=None)
"""The first example of a test may compile."""


class Decision(NamedTuple):
    """EASY's answer: who starts, when the head starts at the latest, what may be held past that, and the ends."""

    starts: list[int]
    shadow_s: float
    extra: int
    ends_s: list[float]
    ends_units: list[int]


def easy(cluster: Cluster, *, sharp: bool = False, fast: bool = False, refused: int = 0) -> Decision:
    """One decision; `sharp`: with the bounds of blocks as they are, not zeros; `fast`: compiled.

    Whatever it makes of the bounds, they stay true of those that go on waiting.
    """
    decide = compiled_easy if fast else backfill.easy
    units, limit_s = _queue(cluster)
    by_end = sorted({job.expected_end_s for job in cluster.running})
    ends = backfill.timeline(len(by_end) + len(units))
    for job in cluster.running:
        backfill.expect(ends, job.expected_end_s, job.units)
    blocks = len(units) // backfill.BLOCK + 1
    least_units, least_limit_s = np.zeros((backfill.LEVELS, blocks), np.int64), np.zeros((backfill.LEVELS, blocks))
    if sharp:
        for level in range(backfill.LEVELS):
            width = backfill.BLOCK ** (level + 1)
            for block in range(blocks):
                part = slice(block * width, (block + 1) * width)
                least_units[level, block] = units[part].min(initial=backfill.GONE)
                least_limit_s[level, block] = limit_s[part].min(initial=math.inf)
    starts = np.zeros(max(1, len(units)), np.int64)
    waiting, span = backfill.Waiting(units, limit_s, least_units, least_limit_s, starts), (0, len(units), refused)
    nothing = backfill.Reservation(math.inf, 0)
    found, (shadow_s, extra) = decide(waiting, span, ends, None, NOW_S, cluster.free, True, nothing)
    for block in range(blocks):
        of_it = range(block * backfill.BLOCK, min((block + 1) * backfill.BLOCK, len(units)))
        waits = [at for at in of_it if at not in starts[:found]]
        assert least_units[0, block] <= units[waits].min(initial=backfill.GONE)
        assert least_limit_s[0, block] <= limit_s[waits].min(initial=math.inf)
    running = int(ends.size[0])
    left = ends.at_s[:running].tolist(), ends.units[:running].tolist()
    return Decision(starts[:found].tolist(), float(shadow_s), int(extra), *left)


def _queue(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    units = np.array([job.units for job in cluster.waiting], np.int64)
    return units, np.array([job.limit_s for job in cluster.waiting], float)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Some run and some wait, up to several blocks of them."""
    cluster = Cluster(draw(st.integers(1, 20)), now_s=NOW_S)
    limits = st.integers(1, draw(st.sampled_from([3, 50])))
    while cluster.free and draw(st.booleans()):
        limit_s = draw(limits)
        began_s = NOW_S - draw(st.integers(0, limit_s - 1))
        units = draw(st.integers(1, cluster.free))
        cluster.running.append(Job(0, limit_s, limit_s, units, start_s=began_s))
    waiting = st.tuples(limits, st.integers(1, cluster.units))
    jobs = draw(st.lists(waiting, max_size=draw(st.sampled_from([6, 100]))))
    cluster.waiting = [Job(0, limit_s, limit_s, units) for limit_s, units in jobs]
    return cluster


@given(cluster=clusters())
def test_easy_decides_as_its_readable_form_which_never_delays_the_first_waiting_job(cluster: Cluster) -> None:
    decision = easy(cluster)
    waiting = list(cluster.waiting)
    readable_easy(cluster)
    assert decision.starts == [at for at, job in enumerate(waiting) if not math.isnan(job.start_s)]
    assert sum(decision.ends_units) == sum(job.units for job in cluster.running)
    assert decision.ends_s == sorted({job.expected_end_s for job in cluster.running})
    if cluster.waiting:
        assert (decision.shadow_s, decision.extra) == cluster.shadow(cluster.waiting[0])
    else:
        assert (decision.shadow_s, decision.extra) == (math.inf, cluster.free)


@compiling
@given(cluster=clusters())
def test_easy_is_the_same_compiled_and_with_bounds_of_blocks(cluster: Cluster) -> None:
    assert easy(cluster) == easy(cluster, fast=True) == easy(cluster, sharp=True)


@given(cluster=clusters(), data=st.data())
def test_jobs_that_were_refused_need_not_be_looked_at_again(cluster: Cluster, data: st.DataObject) -> None:
    readable_easy(cluster)
    new = data.draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, cluster.units)), max_size=40))
    refused = len(cluster.waiting)
    cluster.waiting += [Job(0, limit_s, limit_s, units) for limit_s, units in new]
    decision = easy(cluster)
    assert all(start >= refused for start in decision.starts)
    assert easy(cluster, refused=refused) == decision


def promises(cluster: Cluster, *, fast: bool = False) -> list[float]:
    """Return the start that conservative backfilling promises each job, with nothing promised before."""
    decide = compiled_conservative if fast else backfill.conservative
    units, limit_s = _queue(cluster)
    ends = sorted({job.expected_end_s for job in cluster.running})
    profile = backfill.timeline(2 * (len(ends) + len(units)) + 4)
    for step, at_s in enumerate([NOW_S, *ends]):
        held = sum(job.units for job in cluster.running if job.expected_end_s > at_s)
        backfill.insert(profile, step, at_s, cluster.units - held)
    promised_s = np.full(len(units), np.nan)
    queue = backfill.Promised(units, limit_s, promised_s)
    decide(queue, profile, backfill.timeline(0), NOW_S, math.inf)
    return promised_s.tolist()


@compiling
@given(cluster=clusters())
def test_conservative_backfilling_promises_what_its_readable_form_does_plain_and_compiled(cluster: Cluster) -> None:
    promised_s = promises(cluster)
    assert promised_s == promises(cluster, fast=True)
    waiting = list(cluster.waiting)
    readable_conservative(cluster)
    assert promised_s == [job.promised_s for job in waiting]
