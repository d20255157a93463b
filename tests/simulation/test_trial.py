"""The outcome of one replay for every margin, by hand."""

import math

import numpy as np
import pytest
from tests.simulation.made import busy

from gleaner.control.simulation.metrics.measures import measure
from gleaner.control.simulation.model import Schedule, Stretches, no_stretches, of_processors, uninterrupted
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import AgentSettings, CostSettings, SchedulerSettings
from gleaner.control.simulation.tuning.trial import Conditions, Outcome, delays, figures, safety, trial, trial_without

MARGINS_S = (0.0, 40.0, 1000.0)


def played(agents: list[tuple[float, float]], settings: AgentSettings, *, spread: float = 0.0) -> Outcome:
    """Two jobs on ten processors between 0 and 1000 s, and agents on one each that restore 20 s and save 60 s."""
    workload = busy(jobs=2).only(np.array([0, 1]))
    workload.submit_s[:] = (0, 1000)
    workload.run_s[:] = (500, 500)
    workload.processors[:] = 4
    start_s, end_s = np.array([0.0, 1200.0]), np.array([500.0, 1700.0])
    count = len(agents)
    begin_s, over_s = (np.array(times, dtype=np.float64) for times in zip(*agents, strict=True))
    zeros = np.zeros(count)
    stretches = Stretches(
        job=np.full(count, -1),
        start_s=begin_s,
        end_s=over_s,
        units=np.ones(count, np.int64),
        restore_s=zeros + 20,
        save_s=zeros + 60,
        lost_s=zeros,
        node=np.full(count, -1, np.int32),
    )
    jobs = uninterrupted(workload, workload.processors, start_s, end_s)
    schedule = Schedule(workload, of_processors(10), "easy", start_s, end_s, jobs, stretches)
    return figures(schedule, Conditions(of_processors(10), SchedulerSettings(), MARGINS_S, spread), settings)


def test_every_margin_is_worked_out_from_one_replay() -> None:
    # Of 10,000 unit seconds the regular jobs have 4 x 500; an agent from 100 to 700 computes 600 - 20 - 60 = 520.
    found = played([(100, 700)], AgentSettings(length_s=600, synchronised=False))
    assert found["regular_load"] == [0.2]
    assert found["effective_load"] == pytest.approx([0.252, 0.248, 0.2])
    assert found["lost"] == [0.0, 0.0, 0.0]
    assert (found["saving"], found["restoring"]) == (pytest.approx([0.006]), pytest.approx([0.002]))
    assert found["mean_wait_s"] == [100.0]


def test_only_what_lies_between_the_first_and_the_last_submission_counts() -> None:
    found = played([(900, 1500)], AgentSettings(length_s=600, synchronised=False))
    assert found["effective_load"] == pytest.approx([0.208, 0.208, 0.2])
    assert found["saving"] == [0.0]


def test_an_agent_that_is_vacated_needs_no_margin() -> None:
    rules = AgentSettings(length_s=600, synchronised=True, preemption=True)
    assert played([(100, 600)], rules)["effective_load"] == pytest.approx([0.242, 0.238, 0.2])
    assert played([(100, 590)], rules)["effective_load"] == pytest.approx([0.241, 0.241, 0.241])
    own = AgentSettings(length_s=600, synchronised=False, preemption=True)
    assert played([(100, 600)], own)["effective_load"] == pytest.approx([0.242, 0.242, 0.242])


def test_slices_whose_save_comes_too_late_are_lost() -> None:
    found = played([(100, 700)], AgentSettings(length_s=600, synchronised=False), spread=0.25)
    # One in ten saves takes longer than the safety; with 40 s more it is log-normal's tail beyond 60 s * 1.33 + 40 s.
    sigma = math.sqrt(math.log(1 + 0.25**2))
    factor = math.exp(1.2815515655446004 * sigma - sigma**2 / 2)
    computed_s = 600 - 20 - 60 * factor
    assert safety(0.25) == pytest.approx(factor)
    assert found["effective_load"][0] == pytest.approx(0.2 + 0.9 * computed_s / 10000)
    assert found["lost"][0] == pytest.approx(0.1 * computed_s / 10000)
    tail = 0.5 * math.erfc((math.log(factor + 40 / 60) + sigma**2 / 2) / sigma / math.sqrt(2))
    assert found["lost"][1] == pytest.approx(tail * (computed_s - 40) / 10000)


def test_the_margin_of_the_settings_counts_for_nothing() -> None:
    conditions = Conditions(of_processors(16), SchedulerSettings(), (10.0,), 0.25)
    plain = AgentSettings(length_s=3600, shortest_slice_s=120)
    without = trial_without(busy(), conditions)
    late = plain.model_copy(update={"margin_s": 600.0})
    assert trial(busy(), conditions, plain, without) == trial(busy(), conditions, late, without)


@pytest.mark.parametrize("synchronised", [True, False])
@pytest.mark.parametrize("preemption", [True, False])
def test_a_margin_worked_out_afterwards_is_the_one_that_a_replay_with_it_gives(
    synchronised: bool, preemption: bool
) -> None:
    workload, machine, scheduler = busy(), of_processors(16), SchedulerSettings()
    agents = AgentSettings(
        length_s=3600,
        shortest_slice_s=400,
        synchronised=synchronised,
        preemption=preemption,
        save=CostSettings(constant_s=60),
        restore=CostSettings(constant_s=30),
    )
    conditions = Conditions(machine, scheduler, (0.0, 120.0), 0.0)
    afterwards = trial(workload, conditions, agents, trial_without(workload, conditions))
    with_margin = replay(workload, machine, scheduler, agents.model_copy(update={"margin_s": 120.0}))
    without_agents = replay(workload, machine, scheduler)
    measured = measure(with_margin)
    assert afterwards["mean_wait_s"] == [measured.waits.mean_s]
    # Not the same to the last digit: an agent that starts within the margin has nothing to restore for the next.
    assert afterwards["effective_load"][1] == pytest.approx(measured.effective_load, abs=2e-4)
    assert afterwards["effective_load"][0] - afterwards["effective_load"][1] > 0.001
    assert afterwards["effective_load"][1] > measure(without_agents).effective_load + 0.1


def test_the_delays_say_who_pays_which_the_mean_hides() -> None:
    workload = busy(jobs=5)
    before_s = workload.submit_s + 100
    moved_s = np.array([60.0, 20.0, -90.0, 0.0, np.nan])  # the mean of these is -2.5 s; the last never starts
    without, schedule = (
        Schedule(
            workload,
            of_processors(16),
            "easy",
            start_s,
            start_s + workload.run_s,
            uninterrupted(workload, workload.processors, start_s, start_s + workload.run_s),
            no_stretches(),
        )
        for start_s in (before_s, before_s + moved_s)
    )
    found = delays(schedule, without)
    assert found["later"] == [0.5]
    assert found["earlier"] == [0.25]
    assert found["later_mean_s"] == [40.0]
    assert found["later_p95_s"] == pytest.approx([58.0])
    assert delays(without, without)["later_p95_s"] == [0.0]
