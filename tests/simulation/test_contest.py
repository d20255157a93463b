"""The race of the settings: seeds are spent where they decide, and the answer says how sure it is."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from tests.simulation.test_recommendation import LIMIT, tried

from gleaner.control.simulation.tuning.evidence import Evidence
from gleaner.control.simulation.tuning.recommendation import contest, looks, recommend, seeds_needed

SEEDS = 40


def scattered(minutes: float, load: float, growth: float, *, spread: float = 0.002, seed: int = 1) -> Evidence:
    """A setting whose load and growth of the wait scatter around these means, as its own seeds have it."""
    chance = np.random.Generator(np.random.PCG64([seed, int(minutes)]))
    loads, growths = chance.normal(load, spread, SEEDS), chance.normal(growth, spread, SEEDS)
    return tried(minutes, tuple(loads), tuple(growths))


def names(evidence: tuple[Evidence, ...]) -> list[float]:
    return [one.setting.length_s / 60 for one in evidence]


def test_a_setting_that_is_surely_behind_past_the_limit_or_useless_has_no_more_seeds() -> None:
    first, second = scattered(60, 0.9700, 0.0), scattered(45, 0.9699, 0.0)
    behind, past, useless = scattered(30, 0.95, 0.0), scattered(90, 0.99, 0.05), scattered(5, 0.88, 0.0)
    found = contest([useless, behind, second, first, past], LIMIT)
    assert names(found.contenders) == [45, 60]
    assert not found.is_settled


def test_the_race_is_settled_when_the_first_is_separated_from_all_others() -> None:
    found = contest([scattered(60, 0.97, 0.0), scattered(30, 0.95, 0.0)], LIMIT)
    assert names(found.contenders) == [60]
    assert found.is_settled


def test_it_is_not_settled_while_the_limit_is_in_doubt_although_one_is_left() -> None:
    doubtful = scattered(60, 0.97, 0.0099)
    found = contest([doubtful, scattered(30, 0.89, 0.0)], LIMIT)
    assert names(found.contenders) == [60]
    assert not found.is_settled


def test_it_is_settled_too_when_all_are_surely_past_the_limit() -> None:
    evidence = [scattered(60, 0.97, 0.05), scattered(30, 0.95, 0.04)]
    assert contest(evidence, LIMIT).is_settled
    assert recommend(evidence, LIMIT).reasons[1].startswith("This is settled at 95 % confidence")


def test_a_comparison_counts_for_all_settings_and_looks_together() -> None:
    """A difference that one comparison alone would call sure may be chance where twenty looks are made at many."""
    pair = [scattered(60, 0.9700, 0.0), scattered(30, 0.9690, 0.0)]
    assert pair[0].ahead_of(pair[1]).low > 0
    assert names(contest(pair, LIMIT).contenders) == [60, 30]


def test_a_setting_that_was_beaten_comes_back_when_the_one_that_beat_it_leaves() -> None:
    few = replace_seeds(scattered(30, 0.95, 0.0), 4)
    leader, gone = scattered(60, 0.97, 0.0), scattered(60, 0.97, 0.05)
    assert names(contest([few, leader], LIMIT).contenders) == [60]
    assert names(contest([few, gone], LIMIT).contenders) == [30]


def test_means_over_other_seeds_are_not_compared() -> None:
    """The first seeds may be of busy weeks: four of them are no reason to prefer the setting that left with them."""
    lucky = replace_seeds(tried(15, (0.99,) * 4 + (0.5,) * 36, (0.0,) * 40), 4)
    steady = tried(60, (0.995,) * 4 + (0.95,) * 36, (0.0,) * 40)
    assert recommend([lucky, steady], LIMIT).setting == steady.setting


def replace_seeds(one: Evidence, count: int) -> Evidence:
    return replace(
        one,
        effective_loads=one.effective_loads[:count],
        waits_s=one.waits_s[:count],
        waits_without_s=one.waits_without_s[:count],
        loads_without=one.loads_without[:count],
    )


def test_the_seeds_that_would_tell_are_about_those_that_do() -> None:
    few = [replace_seeds(one, 20) for one in (scattered(60, 0.9700, 0.0), scattered(30, 0.9690, 0.0))]
    race = contest(few, LIMIT)
    needed = seeds_needed(few[0], race.contenders, LIMIT)
    assert 60 < needed < 400  # standard error 0.002 √2 / √n, and 3.6 of them are 0.001 at n = 104
    said = recommend(few, LIMIT).reasons[-1]
    assert "One other setting is not told apart" in said
    assert "seeds would settle it" in said


def test_settings_that_are_the_same_are_said_to_need_no_number_of_seeds() -> None:
    one, other = tried(60, (0.96, 0.97, 0.98), (0.0, 0.001, 0.0)), tried(30, (0.97, 0.98, 0.96), (0.0, 0.001, 0.0))
    assert math.isinf(seeds_needed(one, contest([one, other], LIMIT).contenders, LIMIT))
    assert recommend([one, other], LIMIT).reasons[-1].endswith("no number of seeds would settle it.")


def test_looks_grow_so_that_few_are_made() -> None:
    counts = list(looks())
    assert counts[0] >= 2
    assert all(after > before for before, after in zip(counts, islice(counts, 1, None), strict=False))
    assert counts[-1] > 5000


@pytest.mark.parametrize("load", [0.97, 0.89])
def test_a_single_setting_is_answered_too(load: float) -> None:
    found = recommend([scattered(60, load, 0.0)], LIMIT)
    assert found.is_settled
    assert "settled" in found.reasons[-1] or "settled" in found.reasons[-2]
