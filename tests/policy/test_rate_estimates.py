"""Conclusions from lost agents."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.policy.rate_estimates import mean_time_between_losses_s, remaining_weight


@given(days=st.floats(0, 1e4), losses=st.floats(0, 1e4))
def test_a_further_loss_never_makes_a_node_look_safer(days: float, losses: float) -> None:
    before = mean_time_between_losses_s(agents_s=days, losses=losses, prior_s=30)
    assert mean_time_between_losses_s(agents_s=days, losses=losses + 1, prior_s=30) < before
    assert mean_time_between_losses_s(agents_s=days + 1, losses=losses, prior_s=30) > before


def test_a_clock_that_goes_back_makes_nothing_weigh_more() -> None:
    assert remaining_weight(8.0, age_s=-100, half_life_s=10) == 8.0
