"""The checkpoints of a job that stay: control and `glean run` ask the same function."""

from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.checkpoints.interface import checkpoints_to_keep


@given(st.lists(st.sampled_from(["1/1", "1/5", "2/1", None]), max_size=8))
def test_the_last_two_stay_and_the_newest_of_another_chain_if_there_is_one(chains: list[str | None]) -> None:
    keep = checkpoints_to_keep(chains)
    newest = list(range(len(chains)))[:2]
    independent = [at for at, chain in enumerate(chains) if chain != chains[0]]
    assert list(keep[: len(newest)]) == newest
    assert set(keep) - set(newest) == set(independent[:1]) - set(newest)
