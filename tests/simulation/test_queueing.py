"""First come first served, EASY and conservative backfilling: by hand, against an oracle, and what must hold."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.oracle import jobs_of, starts, workload_of

from gleaner.control.simulation.model import Schedule, Workload, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import Backfill, PrioritySettings, SchedulerKind, SchedulerSettings

KINDS = ("fcfs", "easy", "conservative")
every_kind = pytest.mark.parametrize("kind", KINDS)
compiling = settings(deadline=None)
"""The first example of a test may compile."""

TEN_JOBS = workload_of(
    [  # submit, run, limit, processors
        (0, 4, 6, 2),
        (0, 6, 6, 1),
        (1, 4, 4, 4),
        (1, 3, 3, 1),
        (2, 2, 3, 2),
        (3, 5, 8, 1),
        (3, 2, 2, 3),
        (8, 1, 2, 2),
        (9, 3, 3, 4),
        (9, 6, 9, 1),
    ]
)
"""For four processors. Drawn below: a row a processor, a column a second, A for the tenth job."""


def scheduled(kind: str, workload: Workload, processors: int) -> Schedule:
    return replay(workload, of_processors(processors), SchedulerSettings(kind=SchedulerKind(kind)))


def test_ten_jobs_with_easy_backfill() -> None:
    # 1111773333558...999   Job 3 is promised second 6. By then job 4 has ended if it overtakes at 1, and job 7 at 4.
    # 1111773333558...999   At 10 job 8 is promised 13, which leaves one processor over: job A overtakes, and job 9,
    # 222222333366666.999   which has no promise, starts when A has ended.
    # .444773333AAAAAA999
    assert scheduled("easy", TEN_JOBS, 4).start_s.tolist() == [0, 0, 6, 1, 10, 10, 4, 12, 16, 10]


def test_ten_jobs_with_conservative_backfill() -> None:
    # 1111773333558..999AAAAAA   At 9 job 9 is promised 18, when job 6 has reached its limit. Job A may take 9 seconds,
    # 1111773333558..999......   so it would delay job 9 and is promised 21. Job 6 ends early, at 15: both move forward.
    # 222222333366666999......
    # .444773333.....999......
    assert scheduled("conservative", TEN_JOBS, 4).start_s.tolist() == [0, 0, 6, 1, 10, 10, 4, 12, 15, 18]


@st.composite
def workloads(draw: st.DrawFn) -> tuple[Workload, int]:
    """Few instants and few sizes, so that much happens at once. Some jobs run for no time."""
    processors = draw(st.integers(1, 12))
    count = draw(st.integers(1, 40))
    span = draw(st.sampled_from([1, 20, 100]))

    def column(low: int, high: int) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    limits = column(1, draw(st.sampled_from([4, 25])))
    runs = [min(run, limit) for run, limit in zip(column(0, 25), limits, strict=True)]
    rows = zip(sorted(column(0, span)), runs, limits, column(1, processors), strict=True)
    return workload_of(rows), processors


@every_kind
@compiling
@given(case=workloads())
def test_it_agrees_with_the_readable_scheduler(kind: str, case: tuple[Workload, int]) -> None:
    workload, processors = case
    schedule = scheduled(kind, workload, processors)
    assert schedule.start_s.tolist() == starts(kind, jobs_of(workload), processors)
    assert (schedule.end_s - schedule.start_s == workload.run_s).all()
    assert (schedule.jobs.compute_s == workload.run_s[schedule.jobs.job]).all()


def test_what_is_known_of_a_block_of_the_queue_is_of_its_user_jobs() -> None:
    """A decision that goes on behind those that were refused says nothing of the blocks that it has not seen whole."""
    for refused in range(20, 70):
        waiting = [(0, 0, 1, 1)] * 2 + [(0, 2, 2, 3)] + [(0, 0, 1, 1)] * refused + [(0, 0, 1, 2), (0, 0, 1, 1)]
        workload = workload_of([(0, 1, 1, 3), *waiting, *[(2, 0, 1, 1)] * 6])
        assert scheduled("easy", workload, 4).start_s.tolist() == starts("easy", jobs_of(workload), 4), refused


@pytest.mark.parametrize(
    ("jobs", "span_s", "burst_s"),
    [
        (3000, 1, 1),
        (3000, 40_000, 1),
        (3000, 650_000, 5000),
        pytest.param(40_000, 300_000, 1, marks=pytest.mark.slow),
    ],
)
def test_a_queue_of_any_length_is_scheduled_as_where_each_job_of_it_is_looked_at(
    jobs: int, span_s: int, burst_s: int
) -> None:
    """Equal priorities with EASY are EASY; that queue passes over nothing. Up to 30,000 jobs wait."""
    random = np.random.default_rng(jobs + span_s)
    limit_s = random.integers(1, 3000, jobs)
    sizes = np.minimum(2 ** random.integers(0, 8, jobs) + random.integers(0, 3, jobs), 128)
    submit_s = np.sort(random.integers(0, span_s, jobs) // burst_s * burst_s)
    workload = workload_of(zip(submit_s, random.integers(0, limit_s), limit_s, sizes, strict=True))
    plain = PrioritySettings(per_second=1, backfill=Backfill.EASY)
    looked_at = replay(workload, of_processors(128), SchedulerSettings(kind=SchedulerKind.PRIORITY, priority=plain))
    assert (scheduled("easy", workload, 128).start_s == looked_at.start_s).all()
