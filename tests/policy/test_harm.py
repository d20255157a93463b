"""The delays of regular jobs: never negative, never endless, and counted once."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.policy.harm import LONGEST_DELAY_S, Delay, RegularStart, delays, harm

instants = st.floats(0, 1e5)
nodes = st.sampled_from(["n1", "n2", "n3"])
starts = st.builds(
    RegularStart, job=st.text("123", min_size=1), nodes=st.lists(nodes, unique=True).map(tuple), eligible_s=instants,
    start_s=instants,
)  # fmt: skip


@given(preempted_s=st.dictionaries(nodes, instants), some=st.lists(starts))
def test_no_delay_is_negative_or_endless_and_each_node_is_taken_once(
    preempted_s: dict[str, float], some: list[RegularStart]
) -> None:
    found = delays(preempted_s, some)
    assert all(0 <= delay.delay_s <= LONGEST_DELAY_S for delay in found)
    assert len({delay.start_s for delay in found}) <= len(preempted_s)


def test_the_last_agent_counts_and_only_the_first_start_on_a_node() -> None:
    left = {"n1": 100.0, "n2": 130.0, "n3": 500.0}
    wide = RegularStart("1", ("n1", "n2", "n9"), 90.0, 150.0)
    assert delays(left, [wide, RegularStart("2", ("n1",), 90.0, 300.0)]) == [Delay("1", 150.0, 20.0)]


def test_a_job_that_came_or_was_requeued_after_the_agent_had_to_leave_waited_only_since_then() -> None:
    assert delays({"n1": 100.0}, [RegularStart("1", ("n1",), 145.0, 150.0)])[0].delay_s == 5.0


def test_a_clock_that_was_set_back_or_far_ahead_makes_no_delay() -> None:
    assert delays({"n1": 100.0}, [RegularStart("1", ("n1",), 90.0, 99.0)]) == []
    assert delays({"n1": 100.0}, [RegularStart("1", ("n1",), 90.0, 100.0 + LONGEST_DELAY_S + 1)]) == []


def test_of_a_hundred_delays_the_95th_percentile_is_what_five_exceed() -> None:
    found = harm([float(number) for number in range(1, 101)])
    assert (found.jobs, found.sum_s, found.largest_s, found.late_s) == (100, 5050.0, 100.0, 96.0)
