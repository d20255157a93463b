"""Jain's index."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.simulation.metrics.node_time import jain

AMOUNTS = st.lists(st.just(0.0) | st.floats(1e-100, 1e200), min_size=2, max_size=20).filter(any)


def test_among_none_and_alone_nothing_is_shared() -> None:
    assert jain([0.0, 0.0, 0.0]) is jain([5.0]) is jain([]) is None


@given(got=AMOUNTS, factor=st.floats(1e-3, 1e3))
def test_the_index_is_between_one_nth_and_one_and_has_no_unit(got: list[float], factor: float) -> None:
    index = jain(got)
    assert index is not None
    assert 1 / len(got) <= index * (1 + 1e-9)
    assert index <= 1 + 1e-9
    assert jain([factor * amount for amount in got]) == pytest.approx(index)
