"""OMFS: by hand, against the readable form, and what the paper promises."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.oracle_omfs import FIXED, KILLED, SAVED, Job, as_workload, replayed

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Schedule, of_nodes, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import CostSettings, OmfsSettings, SchedulerKind, SchedulerSettings

UNITS = 10
PERCENT = {"A": 50.0, "B": 30.0, "C": 20.0}
SAVE_S, RESTORE_S, QUANTUM_S = 2.0, 1.0, 10.0
BY_WORDS = OmfsSettings(
    percent=PERCENT,
    quantum_s=QUANTUM_S,
    save=CostSettings(constant_s=SAVE_S),
    restore=CostSettings(constant_s=RESTORE_S),
)
LITERALLY = BY_WORDS.model_copy(update={"literal": True})
FREE = OmfsSettings(percent=PERCENT, quantum_s=0)
ENTITLED = {"A": 5, "B": 3, "C": 2}


def ran(
    jobs: list[Job],
    entitlements: OmfsSettings,
    *,
    until_s: float | None = None,
    every_s: float = 0,
    keep_waiting: int = 0,
    units: int = UNITS,
) -> Schedule:
    scheduler = SchedulerSettings(kind=SchedulerKind.OMFS, decide_every_s=every_s, omfs=entitlements)
    workload = as_workload(jobs, groups=list(entitlements.percent))
    return replay(workload, of_processors(units), scheduler, until_s=until_s, keep_waiting=keep_waiting)


def ten() -> list[Job]:
    """A is entitled to 5 of 10 units, B to 3, C to 2."""
    return [
        Job(0, 30, 8, "B"),  # 1
        Job(0, 20, 2, "C"),  # 2
        Job(4, 10, 5, "A"),  # 3
        Job(5, 5, 1, "B", KILLED),  # 4
        Job(13, 6, 2, "C", FIXED),  # 5
        Job(15, 12, 3, "A", KILLED),  # 6
        Job(21, 4, 3, "B", FIXED),  # 7
        Job(23, 1, 4, "B", FIXED),  # 8
        Job(24, 20, 6, "C", KILLED),  # 9
        Job(33, 5, 5, "A"),  # 10
    ]


def same(found: np.ndarray, expected: list[float]) -> bool:
    return bool(np.array_equal(found, np.array(expected, float), equal_nan=True))


def test_ten_jobs_by_the_words() -> None:
    """A quantum is 10 s, a save 2 s, a restore 1 s; s: is saved, r: restores, x: killed.

    10 units  0         10  12 13   17   19 20  22  26        36    41           62
              1111111111ss  333333333333333333  777 99999999x 10 10 r11111111111
              2222222222222222222222222         666666666666        99999... (from 62)
                            444444    (to 17)
                               555555555 (to 19)

    - 4: 3 is entitled, but 1 has only begun; nobody else starts on what is idle meanwhile. 10: 1 is saved for 3, and
      gives more than 3 asks for, so 4, whose owner has lost all, is promised one of these units.
    - 13: C has its two units already, but 5 may have two more for as long as they are idle.
    - 21: 7 is entitled; A is above its five, but both of its jobs have only begun. 22: 3 has ended.
    - 8 is non-preemptible and larger than B's three units: it never starts.
    - 33: 10 is entitled, 9 has run for 7 s. 36: 9 is killed, and starts over at 62, when 1 has gone on and ended.
    """
    found = ran(ten(), BY_WORDS)
    assert same(found.start_s, [0, 0, 12, 12, 13, 19, 22, math.nan, 26, 36])
    assert same(found.end_s, [62, 20, 22, 17, 19, 31, 26, math.nan, 82, 41])
    assert found.saves == 1
    assert found.jobs.job.tolist() == [0, 1, 2, 3, 4, 5, 6, 8, 9, 0, 8]
    assert found.jobs.save_s.tolist() == [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert found.jobs.restore_s.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert found.jobs.lost_s.tolist() == [0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0]


def test_ten_jobs_by_the_listing() -> None:
    """The same jobs.

    - 4: 2 is the least prioritised, though C has no more than its own; it is saved for 3, and then 1.
    - 6: 2 goes on, on four idle units: with two it would have to wait for one more. 38: so does 1, on ten.
    - 5, 7 and 8 are non-preemptible: as large as what their owners are entitled to is too large.
    - 15: three units are idle, and 6 asks for three: refused. 16: eight are.
    - 33: 9 has only begun, but nothing else runs. It cannot be saved, so it is dropped and never comes back.
    """
    found = ran(ten(), LITERALLY)
    assert same(found.start_s, [0, 0, 6, 6, math.nan, 16, math.nan, math.nan, 24, 33])
    assert same(found.end_s, [65, 23, 16, 11, math.nan, 28, math.nan, math.nan, math.nan, 38])
    assert found.saves == 2
    assert found.jobs.job.tolist() == [0, 1, 1, 2, 3, 5, 8, 9, 0]
    assert found.jobs.lost_s.tolist() == [0, 0, 0, 0, 0, 0, 9, 0, 0]


def _resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_a_replay_keeps_no_memory_of_its_decisions() -> None:
    """Each decision once kept an array: 4 GiB for a replay of 30,000 jobs."""
    units = 200
    many = [Job(float(at // 4), 1000, 1, "ABC"[at % 3], FIXED) for at in range(3000)]
    ran(many, BY_WORDS, units=units)
    before_mib = _resident_mib()
    ran(many, BY_WORDS, units=units)
    assert _resident_mib() - before_mib < 10


def jobs_of(
    kinds: st.SearchStrategy[int], *, most_units: int = UNITS, most_jobs: int = 14
) -> st.SearchStrategy[list[Job]]:
    job = st.builds(
        Job,
        submit_s=st.integers(0, 60).map(float),
        run_s=st.integers(1, 40).map(float),
        units=st.integers(1, most_units),
        owner=st.sampled_from("ABCD"),
        kind=kinds,
        memory_mib=st.integers(0, 4).map(float),
    )
    return st.lists(job, min_size=1, max_size=most_jobs).map(lambda some: sorted(some, key=lambda one: one.submit_s))


all_kinds = st.sampled_from([FIXED, KILLED, SAVED])
may_start = jobs_of(all_kinds).filter(lambda some: any(one.kind is not FIXED for one in some))
costs = st.builds(
    CostSettings,
    constant_s=st.integers(0, 3).map(float),
    node_mib_s=st.sampled_from([0.0, 1.0]),
    shared_mib_s=st.sampled_from([0.0, 0.5]),
)
any_rules = st.builds(
    OmfsSettings,
    percent=st.sampled_from([PERCENT, {"A": 33.0, "B": 67.0}, {"D": 100.0}]),
    quantum_s=st.sampled_from([0.0, 7.0, 20.0]),
    quantum_protects=st.booleans(),
    literal=st.booleans(),
    save=costs,
    restore=costs,
)


@settings(deadline=None)
@given(
    jobs=may_start,
    rules=any_rules,
    until_s=st.sampled_from([math.inf, 35.0, 60.0]),
    every_s=st.sampled_from([0.0, 0.0, 9.0]),
)
def test_a_replay_is_that_of_the_readable_form(
    jobs: list[Job], rules: OmfsSettings, until_s: float, every_s: float
) -> None:
    found = ran(jobs, rules, until_s=None if until_s == math.inf else until_s, every_s=every_s)
    expected = replayed(jobs, units=UNITS, settings=rules, until_s=until_s, every_s=every_s)
    assert same(found.start_s, [job.start_s for job in jobs])
    assert same(found.end_s, [job.end_s for job in jobs])
    told = found.jobs
    rows = zip(told.job, told.start_s, told.end_s, told.restore_s, told.save_s, told.lost_s, strict=True)
    assert [row for row in rows if row[2] < until_s] == sorted(
        (row for row in expected.stretches if row[2] < until_s), key=lambda row: (row[1], row[0])
    )


by_words = any_rules.map(lambda rules: rules.model_copy(update={"literal": False, "percent": PERCENT}))


def test_between_ends_of_a_replay_everything_has_a_stretch_and_no_end() -> None:
    found = ran([Job(0, 60, 10, "C"), Job(20, 10, 5, "A")], BY_WORDS, until_s=21)
    assert np.isnan(found.end_s).all()
    assert np.isnan(found.start_s[1])
    assert found.jobs.end_s.tolist() == [21]
    assert found.jobs.save_s.tolist() == [1]


def test_a_queue_that_is_kept_full_tells_when_each_job_entered() -> None:
    found = ran([Job(0, 10, 5, "A") for _ in range(6)], FREE, keep_waiting=2)
    assert found.workload.submit_s.tolist() == [0, 0, 0, 0, 10, 10]
    assert found.start_s.tolist() == [0, 0, 10, 10, 20, 20]


def test_entitlements_are_of_whole_nodes_rounded_down() -> None:
    jobs = [Job(0, 100, 12, "B"), Job(10, 100, 5, "A")]
    workload = as_workload(jobs)
    scheduler = SchedulerSettings(kind=SchedulerKind.OMFS, omfs=OmfsSettings(percent={"A": 49}, quantum_s=0))
    assert replay(workload, of_nodes(4, 4), scheduler).start_s.tolist() == [0, 100]
    scheduler = SchedulerSettings(kind=SchedulerKind.OMFS, omfs=OmfsSettings(percent={"A": 50}, quantum_s=0))
    assert replay(workload, of_nodes(4, 4), scheduler).start_s.tolist() == [0, 10]


def test_an_entitlement_of_nobody_is_refused() -> None:
    with pytest.raises(BadScenario, match=r"group 'Z' has no job in a test; there are: A"):
        replay(
            as_workload([Job(0, 1, 1, "A")]),
            of_processors(4),
            SchedulerSettings(kind=SchedulerKind.OMFS, omfs=OmfsSettings(percent={"Z": 10})),
        )


def test_a_workload_of_which_no_job_may_ever_start_is_refused() -> None:
    with pytest.raises(BadScenario, match="no job of a test may ever start"):
        ran([Job(0, 10, 6, "A", FIXED), Job(0, 10, 1, "D", FIXED)], FREE)
