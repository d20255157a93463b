"""The eternal demo with fewer slices: a job without an end, pushed from node to node by regular jobs."""

import pytest
from demo import eternal

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(1200)]


def test_a_job_without_an_end_loses_and_repeats_nothing_however_often_its_agents_are_preempted(
    quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eternal, "SLICES", 6)
    monkeypatch.setattr(eternal, "PUSHED_EVERY", 2)
    told: dict[str, object] = {}
    monkeypatch.setattr(eternal, "write", lambda summary, _name: told.update(summary))
    assert eternal.main() == 0, told
