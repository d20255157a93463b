"""Agents against no agents: the paired figures, their intervals, the setting that is best, and the sentence."""

import math
import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.simulation.made import busy

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import (
    Allocation,
    Machine,
    NodeClass,
    Schedule,
    no_stretches,
    of_nodes,
    of_processors,
    uninterrupted,
)
from gleaner.control.simulation.settings import AgentQueueSettings, AgentSettings, CostSettings, SchedulerSettings
from gleaner.control.simulation.tuning.answer import TuningAnswer, sentences, small_jobs, table
from gleaner.control.simulation.tuning.tune import Comparison, Sweep, Trial, compare, interval, settings_of, trial
from gleaner.control.simulation.tuning.variants import variation

AGENTS = AgentSettings(save=CostSettings(constant_s=60), restore=CostSettings(constant_s=30))
PLAIN = Trial(
    6000.0, 0.0, 0.6, 0.0, later=0.9, earlier=0.05, later_mean_s=600.0, earlier_mean_s=5100.0, never_started=0
)


def sweep(lengths_s: tuple[float, ...] = (1800.0, 3600.0), *, processors: int = 16) -> Sweep:
    workload = busy()
    settings = settings_of(AGENTS, lengths_s, (True, False))
    return Sweep(workload, of_processors(processors), SchedulerSettings(), variation(workload), settings)


def test_the_interval_of_five_figures_is_the_one_worked_out_by_hand() -> None:
    # Mean 10, deviations -2 -1 0 1 2, so s = sqrt(10 / 4); t(4, 0.975) = 2.776.
    found = interval([8.0, 9.0, 10.0, 11.0, 12.0])
    assert found.mean == 10.0
    assert found.high - 10.0 == pytest.approx(2.776445 * math.sqrt(2.5) / math.sqrt(5), rel=1e-6)
    assert 10.0 - found.low == pytest.approx(found.high - 10.0)


def test_a_trial_says_who_pays_which_the_mean_hides() -> None:
    workload = busy(jobs=5)
    before_s = workload.submit_s + 100
    moved_s = np.array([60.0, 20.0, -90.0, 0.0, np.nan])  # the last never starts
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
    found = trial(schedule, without)
    assert (found.wait_without_s, found.wait_growth_s) == (100.0, -2.5)
    assert (found.later, found.later_mean_s, found.earlier, found.earlier_mean_s) == (0.5, 40.0, 0.25, 90.0)
    assert found.never_started == 1
    same = trial(without, without)
    assert (same.later_mean_s, same.earlier_mean_s) == (0.0, 0.0)


def test_all_settings_see_the_same_histories_and_do_not_change_each_other() -> None:
    several, (alone, _) = compare(sweep(), 3, 1), compare(sweep((3600.0,)), 3, 1)
    histories = [[one.wait_without_s for one in comparison.trials] for comparison in several]
    assert all(history == histories[0] for history in histories)
    assert len(set(histories[0])) == 3
    assert several[1] == alone
    assert all(0.1 < one.load_growth < 1 - one.load_without for one in alone.trials)
    assert [(one.agents.length_s, one.agents.preemption) for one in several] == [
        (1800, True), (3600, True), (1800, False), (3600, False),
    ]  # fmt: skip


def interrupted_after(histories: int) -> Callable[[int, int], None]:
    def progress(done: int, _all: int) -> None:
        if done == histories:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_ends_the_work_and_what_is_done_is_the_answer(workers: int) -> None:
    before = set(threading.enumerate())
    found = compare(sweep(), 1000, workers, interrupted_after(2))
    assert {len(one.trials) for one in found} == {2}
    assert set(threading.enumerate()) <= before  # one that ends together with Python prints an error
    assert multiprocessing.active_children() == []


def compared(wait_s: float, won: float, *, spread: float = 0.1, length_s: float = 3600.0) -> Comparison:
    """Three histories in which the wait and what is won lie this share around their means."""
    trials = tuple(
        replace(PLAIN, wait_growth_s=wait_s * factor, load_growth=won * factor)
        for factor in (1 - spread, 1.0, 1 + spread)
    )
    return Comparison(AgentSettings(length_s=length_s, preemption=True), trials)


def answer(
    *comparisons: Comparison,
    machine: Machine | None = None,
    limit_s: float = 180.0,
    log_wait_s: float | None = None,
) -> TuningAnswer:
    machine = machine or of_nodes(8, 4)
    base = sweep()
    settings = tuple(one.agents for one in comparisons)
    asked = Sweep(base.workload, machine, base.scheduler, base.how, settings)
    return TuningAnswer(asked, comparisons, limit_s, log_wait_s)


def test_the_best_setting_wins_most_of_those_that_are_surely_within_the_limit() -> None:
    good, better = compared(60, 0.2), compared(100, 0.25)
    past, unsure, useless = compared(170, 0.4), compared(1, 0.5, spread=1), compared(0, 0.0)
    assert answer(good, better, past, unsure, useless).best is better
    assert answer(good, better, past, limit_s=90).best is good
    assert answer(past, unsure, useless).best is None
    assert answer(past, useless).nearest is useless


def test_the_first_sentence_has_the_wait_and_the_node_hours() -> None:
    # 0.2 of 8 nodes for 720 h are 1,152 node hours of the 2,304 that are idle.
    first, why, pays, costs, _small = sentences(answer(compared(58, 0.2), compared(900, 0.3)))
    assert first == (
        "Agents of 1 h, with preemption: regular jobs wait 100 min on average without agents, and 58 s longer with "
        "them (+44 s to +72 s). Of 2,304 idle node hours a month, 1,152 are harvested."
    )
    assert why == "No other setting that lengthens the mean wait by at most 180 s (--wait-limit) harvests more."
    assert pays == "90 % of the jobs start later than without agents, by 10 min on average, and 5 % earlier, by 85 min."
    assert costs.startswith("A save takes 0 s and a restore 0 s in these replays")
    failed, nearest, *_ = sentences(answer(compared(-3000, 0.0), machine=of_nodes(2)))
    assert failed.startswith("No setting is sure to harvest and to lengthen the mean wait by at most 180 s")
    assert nearest.startswith("The nearest, whose interval has the lowest upper end: Agents of 1 h")
    assert "and 50 min less with them" in nearest


def test_a_single_setting_is_not_said_to_be_the_best_of_several() -> None:
    why = sentences(answer(compared(58, 0.2)))[1]
    assert why == "No other setting was tried. The limit is 180 s (--wait-limit)."


def test_an_undecided_answer_names_the_length_and_the_seeds_that_would_decide() -> None:
    # The deviation is 150 s and the mean is 80 s below the limit: t(15, 0.975) * 150 / sqrt(16) = 79.9.
    unsure, past = compared(100, 0.2, spread=1.5), compared(250, 0.2, spread=0.2, length_s=1800)
    assert unsure.wait_growth_s.low < past.wait_growth_s.low < 180 < past.wait_growth_s.high
    advice = "Undecided. One length needs about 16 seeds, so add --lengths 60m --seeds 16."
    assert sentences(answer(unsure, past))[2] == advice
    assert not [line for line in sentences(answer(compared(300, 0.2))) if "seeds" in line]
    assert not [line for line in sentences(answer(compared(58, 0.2), unsure)) if "seeds" in line]


CORES = Machine((NodeClass(8, 4),), Allocation.CORES)


@pytest.mark.parametrize(
    ("log_wait_s", "machine", "words"),
    [
        (2900.0, None, "is 48 min in the log itself and 100 min in the replays without agents. First check --set mach"),
        (2900.0, CORES, "First check --scheduler and the number of nodes."),
        (12_100.0, None, "First check --scheduler and the number of nodes."),
        (3100.0, None, ""),
        (None, None, ""),
    ],
)
def test_a_wait_far_from_that_of_the_log_is_a_warning_with_what_to_check(
    log_wait_s: float | None, machine: Machine | None, words: str
) -> None:
    found = answer(compared(58, 0.2), machine=machine, log_wait_s=log_wait_s)
    warnings = [line for line in sentences(found) if line.startswith("Do not rely on this yet")]
    assert [words in line for line in warnings] == [True] * bool(words)
    assert ("in the log itself)" in table(found).title) is (log_wait_s is not None)


def test_a_short_wait_is_never_far_from_that_of_the_log() -> None:
    one = Comparison(AGENTS, tuple(replace(PLAIN, wait_without_s=700.0) for _ in range(2)))
    assert not [line for line in sentences(answer(one, log_wait_s=110.0)) if "rely" in line]
    assert [line for line in sentences(answer(one, log_wait_s=90.0)) if "rely" in line]


def test_an_interval_has_one_unit_in_the_sentence_and_in_the_table() -> None:
    found = answer(compared(1150, 0.2, spread=0.4), limit_s=3000)
    shown = "(+0 min to +38 min)"
    assert shown in sentences(found)[0]
    assert f"+19 min {shown}" in table(found).rows[0][2]


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (of_nodes(8, 4), " of 400 jobs are smaller than a node: each was given a whole node"),
        (Machine((NodeClass(8, 4),), Allocation.CORES), ": they were given cores of nodes that they shared"),
        (Machine((NodeClass(8, 4),), Allocation.PROCESSORS), ": they were given processors of one pool"),
        (of_processors(16), "Each of the 16 processors counts as a node"),
    ],
)
def test_jobs_smaller_than_a_node_are_counted_with_how_they_were_placed(machine: Machine, words: str) -> None:
    said = small_jobs(busy(), machine)
    assert words in said
    assert said.startswith(("Each of the 16", f"{int((busy().processors < 4).sum())} of 400"))


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        (AgentSettings(queue=AgentQueueSettings(jobs=5, work_s=60)), "endless low-priority queue"),
        (AgentSettings(shortest_slice_s=1), "control takes none below 5 s"),
        (AGENTS.model_copy(update={"margin_s": 4000.0}), "no agent would compute: the longest has 1 h"),
    ],
)
def test_agents_that_make_no_sense_are_refused(agents: AgentSettings, words: str) -> None:
    with pytest.raises(BadScenario, match=words):
        settings_of(agents, (1800.0, 3600.0), (True,))


def test_lengths_that_saves_eat_up_are_left_out_and_short_ones_have_a_shorter_slice() -> None:
    found = settings_of(AGENTS, (90.0, 400.0, 3600.0), (False,))
    assert [(one.length_s, one.shortest_slice_s) for one in found] == [(400, 200), (3600, 600)]
