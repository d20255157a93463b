"""The number of reasons written on held jobs, since each is a call to the scheduler."""

from gleaner.control.daemon.entitlements import REASON_AGAIN_S, REASONS_A_ROUND, HoldReasons
from gleaner.control.policy.entitlements_view import Decision, Verdict

MANY = 2 * REASONS_A_ROUND + 5


def holds(why: str, count: int = MANY) -> tuple[Decision, ...]:
    return tuple(Decision(f"j{number:03}", Verdict.HOLD, why=why) for number in range(count))


def test_a_first_reason_is_written_at_once_and_a_new_one_a_minute_later() -> None:
    reasons, said = HoldReasons(), {"j000": "gleaner: waits for its turn"}
    assert reasons.due(holds("full", 1), said, 0) == [("j000", "gleaner: full")]
    assert reasons.due(holds("fuller", 1), said, REASON_AGAIN_S - 1) == []
    assert reasons.due(holds("fuller", 1), said, REASON_AGAIN_S) == [("j000", "gleaner: fuller")]
    reasons.forget("j000")
    assert reasons.due(holds("fullest", 1), said, REASON_AGAIN_S + 1) == [("j000", "gleaner: fullest")]


def test_what_stands_there_already_is_not_written_again() -> None:
    assert HoldReasons().due(holds("full", 1), {"j000": "gleaner: full"}, 0) == []


def test_those_that_wait_longest_for_their_reason_come_first() -> None:
    reasons, said = HoldReasons(), dict.fromkeys((decision.job for decision in holds("")), "")
    found = [reasons.due(holds("full"), said, at_s) for at_s in (0, 5, 10)]
    assert [len(one) for one in found] == [REASONS_A_ROUND, REASONS_A_ROUND, 5]
    assert len({job for one in found for job, _ in one}) == MANY
    later = [reasons.due(holds(f"{at_s} CPUs are idle"), said, at_s) for at_s in (REASON_AGAIN_S, REASON_AGAIN_S + 10)]
    assert [job for job, _ in later[0]] == [job for job, _ in found[0]]
    assert [job for job, _ in later[1]] == [job for job, _ in found[1]]
