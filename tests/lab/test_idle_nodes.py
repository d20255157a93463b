"""Agents on the idle nodes of the Lomonosov machines, against what was published of them."""

from pathlib import Path

import numpy as np
import pytest
from lab.experiments import settings_of
from lab.experiments.idle_nodes import (
    IdleNodesExperiment,
    Model,
    agents_of,
    found_log,
    full_queue,
    least_length_min,
    poisson,
    run,
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


def test_arrivals_are_tuned_to_the_base_load_whatever_the_jobs_are() -> None:
    short = SHORT.model_copy(update={"model": Model.LUBLIN})
    assert poisson(short, 1024, None, 0.888).loads(None).regular.mean() == pytest.approx(88.8, abs=0.7)


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


@pytest.mark.slow
def test_a_log_that_is_not_there_is_said_and_the_model_stands_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GLEANER_TRACES", str(tmp_path))
    assert found_log("Theta-2022.swf.gz") is None
    variants = [{"name": "as above"}, {"name": "jobs of the Lublin model", "model": "lublin"}]
    few = settings_of("idle_nodes") | {"lengths_min": [60], "costs_min": [5], "variants": variants, "days": 2}
    comparison = run(few, quick=True)
    assert "since Theta-2022.swf.gz is absent ($GLEANER_TRACES names its folder)" in comparison.not_published[0]
    assert "98.4 and 97.9 %" not in " ".join(comparison.explained)  # what the log gives
    assert [row.what for row in comparison.rows if row.remark == "how sensitive"] == [
        f"as above: an hour, 5 min, {kind}" for kind in ("one end", "one length")
    ]
    assert comparison == run(few, quick=True)
    bound = next(row for row in comparison.rows if row.what.startswith("the bound in all runs"))
    assert isinstance(bound.ours, float)
    assert bound.ours <= 1
