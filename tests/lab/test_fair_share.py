"""The four set-ups with Alice, Bob and Chris, against what was published of them."""

import pytest

from gleaner.control.simulation.settings import SchedulerKind
from gleaner.lab.experiments import fair_share
from gleaner.lab.experiments.catalog import settings_of
from gleaner.lab.experiments.comparison import Comparison, Row

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return fair_share.run(settings_of("fair_share"), quick=False)


def row(comparison: Comparison, beginning: str) -> Row:
    return next(row for row in comparison.rows if row.what.startswith(beginning))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "least", "most"),
    [
        ("linear, W 247: Bob", 1.47, 1.65),
        ("linear, W 247: Chris", 5.6, 6.0),
        ("linear, W 741: Bob", 3.1, 3.4),
        ("linear, W 741: Chris", 0.27, 0.61),
        ("SFS, W 247: Bob", 0.0025, 0.0035),
        ("SFS, W 247: Chris", 4.9, 5.4),
        ("SFS, W 741: Bob", 0.0025, 0.0035),
        ("SFS, W 741: Chris", 0.17, 0.53),
    ],
)
def test_a_first_start_lies_where_the_released_program_has_it(
    comparison: Comparison, what: str, least: float, most: float
) -> None:
    found = row(comparison, what)
    assert isinstance(found.ours, float)
    assert least <= found.ours <= most
    assert found.remark.startswith("inside")


@pytest.mark.parametrize(
    ("what", "published"),
    [
        ("linear: share of days", 0.40),
        ("SFS: share of days", 1.00),
        ("linear: utilisation until", 0.90),
        ("SFS: utilisation until", 0.94),
    ],
)
def test_shares_are_within_a_hundredth_of_the_published(comparison: Comparison, what: str, published: float) -> None:
    assert row(comparison, what).ours == pytest.approx(published, abs=0.01)


def test_bob_is_served_steadily_under_fair_share_alone(comparison: Comparison) -> None:
    linear, shared = row(comparison, "linear: share in which"), row(comparison, "SFS: share in which")
    assert isinstance(linear.ours, float)
    assert isinstance(shared.ours, float)
    assert linear.ours < 0.5 < 0.99 < shared.ours


def test_a_figure_outside_its_interval_says_so() -> None:
    settings = settings_of("fair_share") | {"seeds": 1, "run_share": [0.2, 0.3]}
    assert any(row.remark.startswith("OUTSIDE") for row in fair_share.run(settings, quick=True).rows)


def test_the_same_seed_gives_the_same_figures() -> None:
    settings = fair_share.FairShareSettings.model_validate(settings_of("fair_share"))
    for set_up in settings.set_ups:
        assert set_up.kind in (SchedulerKind.PRIORITY, SchedulerKind.SFS)
        assert fair_share.found(settings, set_up, 7) == fair_share.found(settings, set_up, 7)


def test_an_experiment_without_a_file_is_none() -> None:
    with pytest.raises(KeyError, match="fair_chair"):
        settings_of("fair_chair")
