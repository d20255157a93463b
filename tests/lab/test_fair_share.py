"""The four set-ups with Alice, Bob and Chris, against what was published of them."""

import pytest
from lab.experiments import fair_share, settings_of
from lab.experiments.comparison import Reproduction, Row

from gleaner.control.simulation.settings import SchedulerKind

pytestmark = pytest.mark.extended

SETTINGS = fair_share.FairShareSettings.model_validate(settings_of("fair_share"))


@pytest.fixture(scope="module")
def comparison() -> Reproduction:
    return fair_share.run(settings_of("fair_share"), quick=False)


def row(comparison: Reproduction, beginning: str) -> Row:
    return next(row for row in comparison.rows if row.what.startswith(beginning))


@pytest.mark.slow
def test_a_first_start_lies_where_the_released_program_has_it(comparison: Reproduction) -> None:
    for set_up in SETTINGS.set_ups:
        for user, start in set_up.starts.items():
            found = row(comparison, f"{set_up.name}: {user}")
            assert isinstance(found.ours, float)
            assert start.least <= found.ours <= start.most
            assert found.remark.startswith("inside")


@pytest.mark.parametrize(("name", "kind"), [("linear", SchedulerKind.PRIORITY), ("SFS", SchedulerKind.SFS)])
def test_shares_are_within_the_tolerance_of_the_published(
    comparison: Reproduction, name: str, kind: SchedulerKind
) -> None:
    published = SETTINGS.published[kind]
    for what, share in (("share of days", published.bob_runs), ("utilisation until", published.utilisation)):
        assert row(comparison, f"{name}: {what}").ours == pytest.approx(share, abs=published.tolerance)


def test_bob_is_served_steadily_under_fair_share_alone(comparison: Reproduction) -> None:
    linear, shared = row(comparison, "linear: share in which"), row(comparison, "SFS: share in which")
    assert isinstance(linear.ours, float)
    assert isinstance(shared.ours, float)
    assert linear.ours < 0.5 < 0.99 < shared.ours
