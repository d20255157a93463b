"""The recommendation: never outside the limit, never without evidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.simulation.tuning.evidence import Evidence, Setting, WaitLimit
from gleaner.control.simulation.tuning.recommendation import recommend

LIMIT = WaitLimit(0.01)


def tried(
    minutes: float,
    loads: tuple[float, ...],
    growths: tuple[float, ...],
    *,
    synchronised: bool = True,
    margin_s: float = 30,
    preemption: bool = False,
) -> Evidence:
    """A setting with these effective loads and relative growths of the wait; without agents 0.9 and 1000 s."""
    setting = Setting(preemption=preemption, length_s=60 * minutes, synchronised=synchronised, margin_s=margin_s)
    count = len(loads)
    waits = tuple(1000 * (1 + growth) for growth in growths)
    return Evidence(setting, loads, waits, (1000.0,) * count, (0.9,) * count, level=0.95)


def test_the_highest_load_within_the_limit_is_taken() -> None:
    short = tried(15, (0.950, 0.951, 0.949), (0.001, 0.002, 0.001))
    middle = tried(30, (0.970, 0.971, 0.969), (0.004, 0.005, 0.004))
    long = tried(60, (0.990, 0.991, 0.989), (0.050, 0.060, 0.055))
    found = recommend([long, short, middle], LIMIT)
    assert found.setting == middle.setting
    assert found.runner_up == short.setting
    assert found.reasons[0].startswith("With agents of 30 min with one end, margin 30 s, the mean wait of regular jobs")
    assert "97.00 %, 7.00 points more than without agents" in found.reasons[0]
    assert (
        found.reasons[1] == "Of 3 settings tried, 2 are within the limit; of these it has the highest effective load."
    )
    assert "2.00 points less effective load" in found.reasons[2]
    assert found.reasons[3].startswith("Past the limit, agents of 60 min with one end, margin 30 s would give 2.00")


def test_a_mean_within_the_limit_is_not_enough() -> None:
    sure = tried(15, (0.93, 0.93, 0.93), (0.001, 0.001, 0.001))
    shaky = tried(30, (0.97, 0.97, 0.97), (-0.02, 0.0, 0.02))
    assert recommend([sure, shaky], LIMIT).setting == sure.setting


def test_of_settings_that_the_seeds_cannot_tell_apart_the_simpler_is_taken() -> None:
    long = tried(60, (0.962, 0.960, 0.961), (0.0, 0.0, 0.0))
    short = tried(30, (0.960, 0.961, 0.960), (0.0, 0.0, 0.0))
    alone = tried(30, (0.960, 0.961, 0.960), (0.0, 0.0, 0.0), synchronised=False)
    vacated = tried(15, (0.962, 0.960, 0.961), (0.0, 0.0, 0.0), preemption=True)
    found = recommend([vacated, long, alone, short], LIMIT)
    assert found.setting == short.setting
    assert "which these seeds cannot tell from none" in found.reasons[1]


def test_a_higher_load_that_all_seeds_confirm_is_no_tie() -> None:
    long = tried(60, (0.962, 0.952, 0.972), (0.0, 0.0, 0.0))
    short = tried(30, (0.960, 0.950, 0.970), (0.0, 0.0, 0.0))  # 0.2 points less under every seed
    assert recommend([long, short], LIMIT).setting == long.setting


def test_without_one_within_the_limit_the_nearest_is_named_and_none_recommended() -> None:
    far = tried(60, (0.97, 0.97, 0.97), (0.035, 0.035, 0.035))
    near = tried(10, (0.93, 0.93, 0.93), (0.031, 0.031, 0.031))
    found = recommend([far, near], LIMIT)
    assert found.setting is None
    assert found.nearest == near.setting
    assert "None of 2 settings keeps the wait within the limit of 1 %" in found.reasons[0]
    assert "--preemption" in found.reasons[-2]
    assert found.reasons[-1] == "With --wait-limit 4%, agents of 60 min with one end, margin 30 s would be recommended."
    assert recommend([far, near], WaitLimit(0.04)).setting == far.setting


def test_agents_that_win_nothing_are_not_recommended() -> None:
    useless = tried(30, (0.90, 0.91, 0.89), (0.0, 0.0, 0.0))
    found = recommend([useless], LIMIT)
    assert found.setting is None
    assert "none of them is sure to give more effective load than no agents" in found.reasons[0]


def test_a_limit_in_seconds_is_held_in_seconds() -> None:
    one = tried(30, (0.95, 0.95, 0.95), (0.02, 0.02, 0.02))  # 20 s of 1000 s
    assert recommend([one], WaitLimit(21, is_share=False)).setting == one.setting
    assert recommend([one], WaitLimit(19, is_share=False)).setting is None


def test_nothing_is_recommended_without_evidence() -> None:
    with pytest.raises(ValueError, match="nothing was tried"):
        recommend([], LIMIT)


figures = st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=4).map(tuple)
settings = st.builds(
    tried,
    st.sampled_from((10, 15, 30, 60)),
    st.lists(st.floats(0.85, 1), min_size=4, max_size=4).map(tuple),
    figures,
    synchronised=st.booleans(),
    margin_s=st.sampled_from((0.0, 30.0)),
    preemption=st.booleans(),
)
several = st.lists(settings, min_size=1, max_size=12, unique_by=lambda one: one.setting)


@given(several, st.floats(0, 0.1))
def test_no_setting_outside_the_limit_is_ever_recommended(evidence: list[Evidence], most: float) -> None:
    limit = WaitLimit(most)
    found = recommend(evidence, limit)
    if found.setting is None:
        assert found.nearest in {one.setting for one in evidence}
        assert not any(limit.holds(one) and one.gain.low > 0 for one in evidence)
    else:
        (chosen,) = (one for one in evidence if one.setting == found.setting)
        assert chosen.wait_share.high <= most
        assert chosen.gain.low > 0
        rivals = [one for one in evidence if limit.holds(one) and one.gain.low > 0]
        best = max(rivals, key=lambda one: one.effective_load.mean)
        assert best.ahead_of(chosen).low <= 1e-12
    assert found.reasons


@given(several, st.randoms(use_true_random=False))
def test_the_order_in_which_settings_come_changes_nothing(evidence: list[Evidence], chance: object) -> None:
    turned = list(evidence)
    chance.shuffle(turned)  # type: ignore[attr-defined]
    assert recommend(turned, LIMIT) == recommend(evidence, LIMIT)
