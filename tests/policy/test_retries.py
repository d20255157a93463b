"""A job that has failed by itself is tried again after some exit codes, and after a pause that grows."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.policy import retries

codes = st.sets(st.integers(1, 255), min_size=1, max_size=5)


@given(failures=st.integers(1, 10_000))
def test_the_pause_doubles_with_each_failure_up_to_ten_minutes(failures: int) -> None:
    assert retries.pause_s(1) == 10
    assert retries.pause_s(failures + 1) == min(600, 2 * retries.pause_s(failures))


@given(code=st.integers(1, 255), retry_on=st.none() | codes, never_retry_on=st.none() | codes)
def test_a_code_is_tried_again_unless_a_list_says_otherwise(
    code: int, retry_on: set[int] | None, never_retry_on: set[int] | None
) -> None:
    why = retries.refusal(code, retry_on=retry_on, never_retry_on=never_retry_on)
    assert bool(why) == ((retry_on is not None and code not in retry_on) or code in (never_retry_on or ()))
    assert not why or str(code) in why
