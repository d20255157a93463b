"""OMFS with agents on idle nodes: an owner that is entitled to nothing, and whose jobs go first."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import IS_WHOLE
from tests.simulation.oracle_omfs import FIXED, KILLED, SAVED, Job, as_workload
from tests.simulation.test_omfs import BY_WORDS, FREE, PERCENT, UNITS, jobs_of, same

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Schedule, of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import (
    AgentQueueSettings,
    AgentSettings,
    CostSettings,
    OmfsSettings,
    SchedulerKind,
    SchedulerSettings,
)

AGENTS = AgentSettings(length_s=100, shortest_slice_s=20, preemption=True, save=CostSettings(constant_s=3))


def ran(
    jobs: list[Job],
    rules: OmfsSettings = BY_WORDS,
    agents: AgentSettings | None = AGENTS,
    *,
    until_s: float | None = None,
) -> Schedule:
    scheduler = SchedulerSettings(kind=SchedulerKind.OMFS, omfs=rules)
    return replay(as_workload(jobs, groups=list(PERCENT)), of_processors(UNITS), scheduler, agents, until_s=until_s)


def test_agents_go_first_even_where_the_others_that_must_be_preempted_would_be_enough_alone() -> None:
    """The job has its units at 52, and what C gave and A did not need may be agents' again; the first leave at 53."""
    found = ran([Job(0, 200, 8, "C"), Job(50, 10, 5, "A")], until_s=59)
    assert found.saves == 1
    assert found.start_s[1] == 52
    assert (found.agents.end_s[0], found.agents.units[0], found.agents.save_s[0]) == (53, 2, 3)


def test_without_preemption_a_claim_waits_for_the_boundary_and_no_agent_follows() -> None:
    patient = AGENTS.model_copy(update={"preemption": False})
    found = ran([Job(0, 10, 1, "A"), Job(0, 500, 3, "B"), Job(30, 50, 5, "A")], FREE, patient, until_s=400)
    assert found.start_s.tolist() == [0, 0, 100]
    assert not np.any((found.agents.start_s > 30) & (found.agents.start_s < 100))


def test_a_job_that_may_never_start_does_not_keep_agents_going_for_ever() -> None:
    for preemption in (False, True):
        agents = AGENTS.model_copy(update={"preemption": preemption})
        found = ran([Job(0, 150, 1, "A"), Job(0, 10, 9, "B", FIXED)], BY_WORDS, agents)
        assert same(found.end_s, [150, math.nan])
        found = ran([Job(0, 150, 1, "A"), Job(0, 10, 10, "B")], BY_WORDS.model_copy(update={"literal": True}), agents)
        assert same(found.end_s, [150, math.nan])


def test_by_the_listing_two_owners_within_their_entitlements_vacate_each_other_for_ever() -> None:
    """Each time that agents end there is a decision, in which one takes the place of the other while it restores."""
    jobs = [
        Job(5, 12, 3, "C", KILLED),
        Job(7, 28, 2, "A", memory_mib=3),
        Job(15, 8, 6, "A", memory_mib=2),
        Job(18, 37, 1, "C", FIXED),
        Job(19, 25, 2, "A", FIXED),
        Job(20, 4, 1, "A"),
        Job(24, 33, 3, "A", memory_mib=4),
        Job(29, 29, 7, "A", memory_mib=4),
        Job(33, 29, 3, "B", memory_mib=2),
        Job(55, 21, 7, "C", KILLED),
        Job(56, 37, 6, "C", KILLED),
    ]
    listing = OmfsSettings(
        percent=PERCENT,
        quantum_s=0,
        literal=True,
        save=CostSettings(constant_s=1),
        restore=CostSettings(constant_s=3, node_mib_s=1, shared_mib_s=0.5),
    )
    agents = AgentSettings(length_s=15, shortest_slice_s=1, synchronised=False, save=CostSettings(constant_s=2))
    with pytest.raises(BadScenario, match="jobs vacate each other without end"):
        ran(jobs, listing, agents)
    assert ran(jobs, listing, agents, until_s=400).saves > 0
    by_words = ran(jobs, listing.model_copy(update={"literal": False}), agents)
    assert not np.isnan(by_words.end_s[[6, 8]]).any()


# To compile OMFS with a queue that ends takes a quarter of a minute; what such a queue does is tested with EASY.
QUEUES = [AgentQueueSettings(), AgentQueueSettings(jobs=7, work_s=40)] if IS_WHOLE else [AgentQueueSettings()]
some_agents = st.builds(
    AgentSettings,
    length_s=st.sampled_from([15.0, 50.0]),
    shortest_slice_s=st.sampled_from([1.0, 10.0]),
    synchronised=st.booleans(),
    preemption=st.booleans(),
    save=st.builds(CostSettings, constant_s=st.integers(0, 3).map(float)),
    restore=st.builds(CostSettings, constant_s=st.integers(0, 2).map(float)),
    queue=st.sampled_from(QUEUES),
)
may_start = jobs_of(st.sampled_from([FIXED, SAVED])).filter(lambda some: any(one.kind is SAVED for one in some))


@settings(deadline=None)
@given(jobs=may_start, agents=some_agents, literal=st.booleans())
def test_no_more_units_are_held_than_there_are(jobs: list[Job], agents: AgentSettings, literal: bool) -> None:
    until_s = 1000.0 if literal else None  # the listing may go on for ever
    found = ran(jobs, BY_WORDS.model_copy(update={"literal": literal}), agents, until_s=until_s)
    for at_s in np.concatenate((found.jobs.start_s, found.agents.start_s)):
        held = sum(one.units[(one.start_s <= at_s) & (at_s < one.end_s)].sum() for one in (found.jobs, found.agents))
        assert held <= UNITS
    for number, job in enumerate(jobs):
        own = found.jobs.job == number
        if not math.isnan(found.end_s[number]):
            assert found.jobs.compute_s[own].sum() == job.run_s
        else:
            assert literal or job.kind is FIXED


@settings(deadline=None)
@given(jobs=may_start, agents=some_agents, quantum_s=st.sampled_from([0.0, 7.0]))
def test_agents_that_are_saved_at_once_and_for_nothing_change_nothing(
    jobs: list[Job], agents: AgentSettings, quantum_s: float
) -> None:
    gone = agents.model_copy(update={"preemption": True, "save": CostSettings()})
    rules = BY_WORDS.model_copy(update={"quantum_s": quantum_s})
    with_agents, without = ran(jobs, rules, gone), ran(jobs, rules, None)
    assert same(with_agents.start_s, without.start_s.tolist())
    assert same(with_agents.end_s, without.end_s.tolist())
