"""When saving begins."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.margin import KEPT, MIB, Measured, expected_save_s, remembered, save_point_s

sizes = st.integers(min_value=0, max_value=64 * 1024 * MIB)
measurements = st.lists(
    st.builds(Measured, size_bytes=st.integers(1, 16 * 1024 * MIB), took_s=st.floats(0.01, 600)), max_size=KEPT
)


def test_an_unmeasured_node_uses_the_settings() -> None:
    assert expected_save_s(100 * MIB, [], assumed_mib_s=10) == 10


def test_a_slow_save_counts_more_than_a_fast_one() -> None:
    seen = [Measured(100 * MIB, 1.0)] * 3 + [Measured(100 * MIB, 10.0)] * 2
    assert expected_save_s(100 * MIB, seen, assumed_mib_s=1000) == 10.0


@given(sizes, measurements, st.floats(0.1, 1000))
def test_more_memory_never_takes_less_time_in_the_unmeasured_case(size: int, seen: list[Measured], rate: float) -> None:
    assert expected_save_s(size, [], assumed_mib_s=rate) <= expected_save_s(size + MIB, [], assumed_mib_s=rate)
    assert expected_save_s(size, seen, assumed_mib_s=rate) >= 0


@given(st.floats(0, 2e9), st.floats(0, 1e4), st.floats(0, 1e4))
def test_saving_begins_before_the_end(end_s: float, margin_s: float, save_s: float) -> None:
    assert save_point_s(end_s=end_s, margin_s=margin_s, save_s=save_s) <= end_s


def test_only_the_newest_measurements_are_kept() -> None:
    seen: tuple[Measured, ...] = ()
    for size in range(KEPT + 5):
        seen = remembered(seen, Measured(size, 1.0))
    assert len(seen) == KEPT
    assert seen[-1].size_bytes == KEPT + 4
