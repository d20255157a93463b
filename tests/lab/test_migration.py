"""Compaction and migration with priorities on eight nodes, against what was published of them."""

import pytest
from lab.experiments import settings_of
from lab.experiments.migration import MigrationExperiment, found

from gleaner.control.simulation.metrics.node_time import EMPTY, FULL, MIXED
from gleaner.control.simulation.settings import Migration

pytestmark = pytest.mark.extended

SETTINGS = MigrationExperiment.model_validate(settings_of("migration"))


@pytest.mark.slow
@pytest.mark.parametrize("prefers_one", [False, True])
@pytest.mark.parametrize("load", [25, 50, 75, 90])
def test_compaction_leaves_fewer_nodes_partly_used_at_every_load(load: float, prefers_one: bool) -> None:
    shares = found(SETTINGS, Migration.COMPACTION, load, 12, prefers_one=prefers_one)
    without, moved = shares.without.mean(axis=0), shares.moved.mean(axis=0)
    assert moved[MIXED] < without[MIXED] - 1
    assert moved[FULL] > without[FULL]
    assert moved[EMPTY] > without[EMPTY]


@pytest.mark.slow
def test_jobs_on_one_node_give_the_published_share_without_compaction() -> None:
    published = [one for one in SETTINGS.compaction if one.tolerance is not None]
    assert [one.load for one in published] == [25, 50]
    for one in published:
        shares = found(SETTINGS, Migration.COMPACTION, one.load, 20, prefers_one=True)
        assert one.mixed is not None
        assert shares.without[:, MIXED].mean() == pytest.approx(one.mixed[0], abs=one.tolerance)


@pytest.mark.slow
def test_priorities_fill_the_nodes_of_the_higher_priority() -> None:
    shares = found(SETTINGS, Migration.PRIORITIES, 75, 12)
    assert shares.moved[:, FULL].mean() > shares.without[:, FULL].mean() + 5
    assert shares.without[:, EMPTY].mean() < 2
