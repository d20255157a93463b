"""Agents on the idle nodes of the Lomonosov machines, against what was published of them."""

import numpy as np
import pytest
from lab.experiments import settings_of
from lab.experiments.idle_nodes import (
    IdleNodesExperiment,
    Model,
    agents_of,
    full_queue,
    least_length_min,
    poisson,
)
from tests.simulation.traces import trace

pytestmark = pytest.mark.extended

SETTINGS = IdleNodesExperiment.model_validate(settings_of("idle_nodes"))
SHORT = SETTINGS.model_copy(update={"days": 20.0, "seeds": 3})


def test_the_bound_is_the_published_one() -> None:
    for one in SETTINGS.arrivals:
        assert round(least_length_min(one.base, one.effective, 5)) == one.least_length_min


@pytest.mark.parametrize("nodes", [1024, 4000])
def test_with_a_full_queue_base_and_gain_are_in_the_published_range(nodes: int) -> None:
    site = full_queue(SHORT, nodes, trace("Theta-2022.swf.gz"))
    before, after = site.loads(None), site.loads(agents_of(SHORT, length_min=60, cost_min=5, synchronised=True))
    gain = (after.effective - before.effective).mean()
    fewer = 100 * gain / (100 - before.effective).mean()
    published = SETTINGS.published
    for found, (least, most) in zip(
        (before.effective.mean(), gain, fewer), (published.base, published.gain, published.idle_fewer), strict=True
    ):
        assert least <= found <= most


def test_agents_with_one_end_cost_regular_jobs_less_than_agents_of_one_length() -> None:
    short = SHORT.model_copy(update={"model": Model.LUBLIN})
    site = poisson(short, 1024, None, 0.888)
    before = site.loads(None)
    one_end, one_length = (
        site.loads(agents_of(short, length_min=120, cost_min=5, synchronised=synchronised))
        for synchronised in (True, False)
    )
    assert np.all(one_end.effective > before.effective)
    assert before.wait_s.mean() < one_end.wait_s.mean() < one_length.wait_s.mean()
