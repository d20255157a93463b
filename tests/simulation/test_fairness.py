"""Jain's index."""

from gleaner.control.simulation.metrics.node_time import jain


def test_among_none_and_alone_nothing_is_shared() -> None:
    assert jain([0.0, 0.0, 0.0]) is jain([5.0]) is jain([]) is None
