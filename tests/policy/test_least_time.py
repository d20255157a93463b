"""The steps of the least time that a job needs on an agent."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.policy.resources import time_step_s
from gleaner.control.policy.why_waiting import JobNeeds, NodeOutlook, Surroundings, waits_because

times = st.integers(1, 10**7)


@given(needs_s=times, longest_s=times)
def test_a_step_is_no_less_than_what_is_needed_and_no_more_than_any_agent_has(needs_s: int, longest_s: int) -> None:
    step_s = time_step_s(needs_s, longest_s)
    assert step_s >= needs_s
    assert step_s <= longest_s or longest_s < needs_s
    assert time_step_s(step_s, longest_s) == step_s


def test_there_are_few_steps() -> None:
    assert len({time_step_s(needs_s, 86_400) for needs_s in range(1, 86_401, 7)}) < 20


@given(needs_s=st.integers(0, 4000), left_s=st.floats(0, 4000))
def test_only_a_job_that_needs_time_waits_for_a_round_with_more_of_it(needs_s: int, left_s: float) -> None:
    around = Surroundings(0, [NodeOutlook(4, 2048)], "", 0, 0, 10, left_s, 600, agent_needs_s=55)
    is_too_little = waits_because(JobNeeds(1, 512, needs_s=needs_s), around).startswith("it needs ")
    assert is_too_little == (needs_s > max(0.0, left_s - 55))
