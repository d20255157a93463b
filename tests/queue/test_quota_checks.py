"""Quotas: a group and a user never get more, whoever races; and the cost of a claim when sizes are many."""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select, text
from tests.queue.queue_harness import QueueHarness

from gleaner.control.policy.quotas import Allowance, Limit, Quantity, QuotaRules
from gleaner.control.policy.resources import memory_step
from gleaner.control.queue import jobs, queries, quota_checks
from gleaner.control.queue.claims import OCCUPIED
from gleaner.control.queue.quota_checks import OverQuota, Stored
from gleaner.control.queue.tables import JOB
from gleaner.control.settings import QuotaSettings


def submit(
    harness: QueueHarness,
    rules: QuotaRules,
    *,
    user: str = "alice",
    runs: int = 1,
    stored: Mapping[tuple[str, str], int] | None = None,
    **spec: Any,
) -> tuple[int, ...]:
    known = jobs.SubmissionRules(0, quotas=rules, stored_bytes=lambda _db: stored or {})
    return harness.submit(indices=tuple(range(runs)), submitter=user, rules=known, **spec).jobs


def claim(
    harness: QueueHarness, rules: QuotaRules, agent: str, *, stored: Stored | None = None, most: int = 64
) -> list[int]:
    counted = stored or Stored()

    def limits(db: Connection, groups: Collection[str]) -> Allowance:
        return quota_checks.allowance(db, rules, groups, lambda: counted.bytes_by_owner(db))

    return [work.job for work in harness.claim(agent, most=most, limits=limits)]


def quotas_of(group: Mapping[str, int], user: Mapping[str, int]) -> QuotaRules:
    """Return these limits, by the names of quantities: `jobs`, `cores`, `stored` (in bytes) and `sizes`."""
    limits = [Limit(Quantity[name.upper()], most) for name, most in group.items()]
    limits += [Limit(Quantity[name.upper()], most, is_of_user=True) for name, most in user.items()]
    return QuotaRules(tuple(limits))


def of_group(**most: int) -> QuotaRules:
    return quotas_of(most, {})


def test_a_group_has_no_more_jobs_that_have_not_ended_than_allowed(harness: QueueHarness) -> None:
    rules = of_group(jobs=5)
    first = submit(harness, rules, runs=3)
    before = harness.everything()
    with pytest.raises(OverQuota) as refused:
        submit(harness, rules, user="bob", runs=3)
    assert str(refused.value) == (
        "group physics has 3 jobs that have not ended and may have 5: 3 more are too many; wait until some end, cancel"
        " some, or ask an admin for more ([quotas] jobs)"
    )
    assert harness.everything() == before, "a refusal changes nothing"
    harness.hold(first[0])
    assert claim(harness, rules, harness.agent("a")), "what runs or is held has not ended"
    submit(harness, rules, runs=2)
    with pytest.raises(OverQuota):
        submit(harness, rules)
    harness.cancel(first[0])
    submit(harness, rules)
    harness.submit(group="theory")  # another group's quota is its own


def test_of_submissions_that_race_only_as_many_are_taken_as_the_quota_holds(harness: QueueHarness) -> None:
    rules = of_group(jobs=10)
    submit(harness, rules, runs=1)

    def one(_number: int) -> int:
        try:
            return len(submit(harness, rules, runs=4))
        except OverQuota:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(one, range(8))) == [0] * 6 + [4, 4]


def test_of_claims_that_race_only_as_many_cores_are_given_as_the_quota_holds(harness: QueueHarness) -> None:
    rules = quotas_of({"cores": 7}, {"cores": 5})
    for user in ("alice", "bob"):
        submit(harness, rules, user=user, runs=20, cpus=2)
    agents = [harness.agent(f"a{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        given_ = [job for jobs in pool.map(lambda agent: claim(harness, rules, agent, most=2), agents) for job in jobs]
    assert len(given_) == 3
    with harness.engine.connect() as db:
        held = select(JOB.c.submitter, func.count()).where(JOB.c.agent.is_not(None)).group_by(JOB.c.submitter)
        assert max(number for _, number in db.execute(held)) <= 2


def test_a_group_and_a_user_have_no_more_cores_running_than_allowed(harness: QueueHarness) -> None:
    rules = quotas_of({"cores": 6}, {"cores": 4})
    for user in ("alice", "bob"):
        submit(harness, rules, user=user, runs=9, cpus=2)
    agent = harness.agent("a")
    assert sorted(claim(harness, rules, agent)) == [1, 2, 10], "alice has her 4 cores, and the group its 6"
    assert claim(harness, rules, agent) == []
    harness.record_completion(1, 1)
    assert claim(harness, rules, agent) == [3]
    theory = harness.job(group="theory")
    assert claim(harness, rules, agent) == [theory], "another group is not kept back"


def test_who_has_stored_too_much_begins_nothing_new_and_loses_nothing(harness: QueueHarness) -> None:
    rules = of_group(stored=999)
    submit(harness, rules, runs=3)
    agent = harness.agent("a")
    assert claim(harness, rules, agent, most=1) == [1]
    harness.record_save(1, 1)  # a save is never refused; it is of 1000 bytes
    assert harness.look(quota_checks.stored_bytes) == {("physics", "alice"): 1000, ("physics", ""): 1000}
    with pytest.raises(OverQuota, match=r"group physics has 0.0 GiB stored .* nothing new begins; cancel saved jobs"):
        submit(harness, rules, stored=harness.look(quota_checks.stored_bytes))
    assert claim(harness, rules, agent) == [1], "what was begun goes on"
    harness.record_completion(1, 2, output=True)
    assert harness.look(quota_checks.stored_bytes) == {("physics", "alice"): 5, ("physics", ""): 5}
    assert claim(harness, rules, agent) == [2, 3]


def test_bytes_are_counted_once_in_a_while_only(harness: QueueHarness) -> None:
    at = [0.0]
    stored = Stored(lambda: at[0])
    rules = of_group(stored=0)
    submit(harness, QuotaRules(), runs=2)
    agent = harness.agent("a")
    assert claim(harness, rules, agent, stored=stored, most=1) == [1]
    harness.record_save(1, 1)
    assert claim(harness, rules, agent, stored=stored) == [1, 2], "the save is not counted yet"
    at[0] += quota_checks.STORED_FRESH_S
    submit(harness, QuotaRules())
    assert claim(harness, rules, agent, stored=stored) == []


@given(memory_mib=st.integers(16, 16 * 2**20), nodes=st.frozensets(st.integers(1, 2**24), max_size=3))
def test_a_step_is_at_least_what_was_asked_for_and_at_most_an_eighth_more(memory_mib: int, nodes: set[int]) -> None:
    step = memory_step(memory_mib, nodes)
    assert memory_mib <= step <= memory_mib * 9 / 8 + 1
    assert memory_step(step, nodes) == step, "what was rounded is not rounded further"
    for node in nodes:
        assert node < memory_mib or step <= node, "what fits a node still does"
    assert all(memory_step(1 << power) == 1 << power for power in range(4, 25))


def test_many_sizes_of_memory_make_few_lanes_for_a_claim_to_step_through(harness: QueueHarness) -> None:
    for number in range(0, 6000, 40):
        harness.job(memory_mib=1024 + number)
    lanes = harness.look(lambda db: db.execute(text(f"{OCCUPIED} SELECT count(lane) FROM occupied")).scalar_one())
    assert lanes <= 24  # eight from 1 to 2 GiB, eight to 4, six to 7
    assert harness.claim_one(harness.agent("a")).memory_mib == 1024


def test_a_group_has_jobs_of_no_more_sizes_than_allowed(harness: QueueHarness) -> None:
    rules = of_group(sizes=3)
    for cpus in (1, 2, 3):
        submit(harness, rules, cpus=cpus)
    submit(harness, rules, cpus=2, runs=5)
    with pytest.raises(OverQuota, match=r"jobs of 3 different sizes and may have 3: give this one the cores and"):
        submit(harness, rules, cpus=4)
    harness.hold(1)
    with pytest.raises(OverQuota):
        submit(harness, rules, cpus=4)
    harness.cancel(1)
    submit(harness, rules, cpus=4)


def test_a_job_of_more_cores_than_may_ever_run_is_refused_when_it_is_submitted(harness: QueueHarness) -> None:
    rules = quotas_of({"cores": 6}, {"cores": 4})
    before = harness.everything()
    with pytest.raises(OverQuota) as refused:
        submit(harness, rules, cpus=5)
    assert str(refused.value) == (
        "it needs 5 cores, and alice of group physics may have 4 running at once: it can never start; ask for fewer, or"
        " ask an admin for more ([quotas] user.cores)"
    )
    with pytest.raises(OverQuota, match=r"group physics may have 6 running at once.*\(\[quotas\] cores\)"):
        submit(harness, rules, cpus=7)
    assert harness.everything() == before
    submit(harness, rules, cpus=4)


def _foreseen(harness: QueueHarness, rules: QuotaRules, **stored: int) -> list[tuple[int, int]]:
    """Return what the planner sees: cores, and how many jobs of so many cores."""
    has_bytes = {(group, ""): count for group, count in stored.items()}
    seen = harness.look(
        queries.waiting,
        limits=lambda db, groups: quota_checks.allowance(db, rules, groups, lambda: has_bytes, locks=False),
    )
    return sorted((each.cpus, each.count) for each in seen)


def test_the_planner_counts_only_jobs_that_may_start(harness: QueueHarness) -> None:
    rules = quotas_of({"cores": 6}, {"cores": 4})
    for user in ("alice", "bob"):
        submit(harness, rules, user=user, runs=9, cpus=2)
    assert _foreseen(harness, rules) == [(2, 3)], "of one user two at most, of the group three"
    assert len(claim(harness, rules, harness.agent("a"), most=2)) == 2
    assert _foreseen(harness, rules) == [(2, 1)]
    claim(harness, rules, "a")
    assert _foreseen(harness, rules) == []
    harness.job(group="theory", cpus=1)
    assert _foreseen(harness, QuotaRules(groups={"physics": rules.default})) == [(1, 1)]
    assert _foreseen(harness, QuotaRules()) == [(1, 1), (2, 15)]


def test_a_quota_for_a_name_that_no_group_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="should match pattern"):
        QuotaSettings.model_validate({"group": {"atlas ": {"cores": 1}}})


def test_who_limits_users_cores_only_leaves_them_the_usual_number_of_jobs() -> None:
    limits = QuotaSettings.model_validate({"default": {"user": {"cores": 512}}}).rules.default
    assert {each.of: each.most for each in limits if each.is_of_user} == {"cores": 512, "jobs": 200_000}


def test_the_quota_that_keeps_a_job_waiting_is_named(harness: QueueHarness) -> None:
    first, second, third = submit(harness, QuotaRules(), runs=3, cpus=3)
    rules = of_group(cores=5)

    def why(job: int, rules: QuotaRules, has_bytes: int = 0) -> str:
        return harness.look(quota_checks.obstacle, rules, job, lambda: {("physics", ""): has_bytes})

    assert why(first, rules) == ""
    assert claim(harness, rules, harness.agent("a")) == [first]
    assert why(second, rules) == (
        "group physics has 3 cores running and may have 5: it starts when enough of them are free ([quotas] cores)"
    )
    assert "it can never start" in why(third, of_group(cores=2))
    assert "nothing new begins" in why(third, of_group(stored=1), 2)
    harness.record_save(first, 1)
    assert why(first, of_group(stored=1), 2) == ""
    assert why(second, QuotaRules()) == ""
    limited = quotas_of({}, {"cores": 4})
    mine, other = submit(harness, limited, user="bob", runs=2, cpus=4)
    for job in (first, second, third):
        harness.hold(job)
    assert claim(harness, limited, "a") == [mine]
    assert "bob of group physics has 4 cores running" in why(other, limited)
