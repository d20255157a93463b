"""The acts of the Slurm admin service for each request, and what it refuses whatever control asks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slurm_admin import facts

from gleaner.agent.privileged.common.request import Refused
from gleaner.control.slurm import snapshot
from gleaner.control.slurm_admin import rules
from gleaner.control.slurm_admin.request import (
    Drain,
    Explain,
    Hold,
    JobRequest,
    NodeRequest,
    Release,
    Requeue,
    Resume,
    Signal,
)

SETTINGS = facts.admin_settings()
REQUESTS: list[JobRequest] = [
    Release("7", top=True), Release("7", top=False), Explain("7", "x"), Hold("7"), Requeue("7"), Signal("7"),
]  # fmt: skip


def done(request: JobRequest, job: snapshot.SlurmJob) -> list[str]:
    return [" ".join(command) for command in rules.commands_for_job(request, job, SETTINGS)]


def done_to(request: NodeRequest, *nodes: snapshot.SlurmNode) -> list[str]:
    found = rules.commands_for_nodes(request, {node.name: node for node in nodes}, SETTINGS, facts.ACCOUNT)
    return [" ".join(command) for command in found]


def refusal(request: JobRequest, job: snapshot.SlurmJob) -> str:
    with pytest.raises(Refused) as refused:
        done(request, job)
    return str(refused.value)


def refusal_to(request: NodeRequest, *nodes: snapshot.SlurmNode) -> str:
    with pytest.raises(Refused) as refused:
        done_to(request, *nodes)
    return str(refused.value)


def test_a_job_that_is_released_on_top_is_before_all_others_at_once() -> None:
    assert done(Release("7", top=True), facts.job(nice=3)) == [
        "scontrol update JobId=7 Nice=-1999999997",
        "scontrol release 7",
        "scontrol update JobId=7 AdminComment=gleaner: released on top",
    ]


def test_a_job_that_was_requeued_need_not_wait_for_slurms_two_minutes() -> None:
    assert done(Release("7", top=False), facts.job(restarts=1))[0] == "scontrol update JobId=7 StartTime=now"


@given(st.integers(-10_000, 10_000_000))
def test_the_nice_of_an_owner_is_found_again(nice: int) -> None:
    assert rules.own_nice(nice - rules.TOP_NICE) == rules.own_nice(nice) == nice


def test_the_reason_stands_in_the_comment_that_squeue_shows() -> None:
    said = ["scontrol update JobId=7 AdminComment=gleaner: 12 of 10 CPUs"]
    assert done(Explain("7", "12 of 10 CPUs"), facts.job()) == done(Explain("7", "gleaner: 12 of 10 CPUs"), facts.job())
    assert done(Explain("7", "12 of 10 CPUs"), facts.job()) == said


def test_a_reason_cannot_say_that_the_job_was_released() -> None:
    assert "no reason to be held" in refusal(Explain("7", "released"), facts.job())


def test_a_job_is_marked_as_waiting_before_it_is_held() -> None:
    released = facts.job(admin_comment="gleaner: released on top", priority=5, nice=-rules.TOP_NICE)
    assert done(Hold("7"), released) == [
        "scontrol update JobId=7 AdminComment=gleaner: waits for its turn Nice=0",
        "scontrol uhold 7",
    ]


def test_a_preemptible_job_is_requeued_and_a_checkpointable_one_is_asked_to_save_itself() -> None:
    assert done(Requeue("7"), facts.running("preemptible"))[-1] == "scontrol requeuehold 7"
    assert done(Signal("7"), facts.running("checkpointable"))[-1] == "scancel --signal=USR1 7"


@pytest.mark.parametrize(
    ("request_", "declared", "why"),
    [
        (Requeue("7"), "checkpointable", "job 7 is not preemptible: it declares checkpointable"),
        (Signal("7"), "preemptible", "job 7 is not checkpointable: it declares preemptible"),
        (Requeue("7"), "non-preemptible", "job 7 is not preemptible: it is left alone once it runs"),
        (Signal("7"), "non-preemptible", "job 7 is not checkpointable: it is left alone once it runs"),
        (Requeue("7"), "mortal", "job 7 is not preemptible: it declares no class that there is"),
        (Requeue("7"), "preemptible gleaner:checkpointable", "job 7 is not preemptible: it declares no class that"),
    ],
)
def test_nothing_is_done_to_a_job_that_its_owner_did_not_allow(request_: JobRequest, declared: str, why: str) -> None:
    assert refusal(request_, facts.running(declared)).startswith(why)


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({"admin_comment": ""}, "held by somebody else"),
        ({"admin_comment": "ask Bob before you release it"}, "held by somebody else"),
        ({"admin_comment": "gleaner: released"}, "held by somebody else (JobHeldUser)"),
        ({"reason": "JobHeldAdmin"}, "held by somebody else (JobHeldAdmin)"),
        ({"priority": 4000}, "is not held"),
        ({"states": frozenset({"RUNNING"}), "priority": 4000}, "does not wait (RUNNING)"),
        ({"states": frozenset({"PENDING", "COMPLETING"})}, "does not wait (COMPLETING+PENDING)"),
    ],
)
def test_only_what_we_hold_is_released(held: dict[str, Any], why: str) -> None:
    assert why in refusal(Release("7", top=True), facts.job(**held))
    assert why in refusal(Explain("7", "x"), facts.job(**held))


@pytest.mark.parametrize("mark", ["", "(null)", "mine", "gleaner: waits for its turn", "gleaner: released on top"])
@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_what_control_takes_for_held_for_us_the_slurm_admin_releases(mark: str, reason: str, restarts: int) -> None:
    """Else control would ask for the same release at each look."""
    job = facts.job(admin_comment=mark, reason=reason, restarts=restarts)
    try:
        done(Release("7", top=False), job)
    except Refused:
        assert not snapshot.is_held_for_us(job)
    else:
        assert snapshot.is_held_for_us(job)


@pytest.mark.parametrize("facts_", [{"can_requeue": False}, {"is_batch": False}], ids=["no-requeue", "interactive"])
def test_a_job_that_slurm_cannot_requeue_is_left_alone(facts_: dict[str, bool]) -> None:
    assert "cannot be requeued" in refusal(Requeue("7"), facts.running("preemptible", **facts_))


@pytest.mark.parametrize(
    "mark", [snapshot.ASKED_TO_SAVE, snapshot.WAITS_FOR_ITS_TURN, snapshot.RELEASED_ON_TOP, "gleaner: 12 of 10 CPUs"]
)
def test_what_was_put_back_and_is_not_held_is_held_whatever_our_mark_on_it_says(mark: str) -> None:
    """Its owner has requeued it, or Slurm has since its node died; it carries the mark of before."""
    put_back = facts.job(admin_comment=mark, priority=5, restarts=1, reason="BeginTime")
    assert done(Hold("7"), put_back)[-1] == "scontrol uhold 7"


def test_only_what_is_ours_is_held_again() -> None:
    assert "was not released by us" in refusal(Hold("7"), facts.job())
    assert "was not released by us" in refusal(Hold("7"), facts.job(priority=5, admin_comment=""))
    assert "does not wait" in refusal(Hold("7"), facts.running("preemptible"))


@given(
    request_=st.sampled_from(REQUESTS),
    partition=st.sampled_from(["shared", "regular"]),
    state=st.sampled_from(["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "COMPLETED", "SOMETHING_NEW"]),
    priority=st.sampled_from([0, 4000]),
    mark=st.sampled_from(["", "mine", "gleaner: waits for its turn", "gleaner: released on top"]),
    declared=st.sampled_from(["", "gleaner:preemptible", "gleaner:checkpointable", "gleaner:x"]),
    reason=st.sampled_from(["JobHeldUser", "JobHeldAdmin", "None"]),
    restarts=st.integers(0, 1),
)
def test_no_request_ever_ends_an_undeclared_job_or_lets_go_what_others_hold(
    request_: JobRequest,
    partition: str,
    state: str,
    priority: int,
    mark: str,
    declared: str,
    reason: str,
    restarts: int,
) -> None:
    job = facts.job(
        partitions=(partition,), states=frozenset({state}), priority=priority, admin_comment=mark, comment=declared,
        reason=reason, restarts=restarts,
    )  # fmt: skip
    try:
        commands = rules.commands_for_job(request_, job, SETTINGS)
    except Refused:
        return
    assert partition == "shared"
    for _, verb, *_ in commands:
        if verb == "requeuehold":
            assert (declared, state) == ("gleaner:preemptible", "RUNNING")
        elif verb.startswith("--signal"):
            assert (declared, state) == ("gleaner:checkpointable", "RUNNING")
        elif verb == "release":
            assert state == "PENDING"
            assert priority == 0
            assert reason != "JobHeldAdmin"
            assert mark.startswith("gleaner:")
        else:
            assert verb in {"update", "uhold"}


def test_nodes_are_drained_together_with_a_mark_and_its_author() -> None:
    nodes = [facts.node("IDLE"), facts.node("ALLOCATED", name="n2", partition="regular")]
    said = ["scontrol update NodeName=n1,n2 State=DRAIN Reason=gleaner: drained by alice"]
    assert done_to(Drain(("n1", "n2"), "alice"), *nodes) == said


def test_only_drained_is_taken_back_so_a_node_that_is_down_stays_down() -> None:
    assert done_to(Resume(("n1",)), facts.drained_by_us()) == ["scontrol update NodeName=n1 State=UNDRAIN"]


@pytest.mark.parametrize(
    "states", [("IDLE", "DRAIN"), ("DOWN",), ("ALLOCATED", "DRAIN"), ("IDLE", "FAIL")], ids="+".join
)
def test_a_node_that_is_out_of_service_already_is_not_drained_by_us(states: tuple[str, ...]) -> None:
    said = refusal_to(Drain(("n1",), "alice"), facts.node(*states, reason="new memory", by="root"))
    assert said.startswith("node n1 is ")
    assert said.endswith("already (new memory)")


@pytest.mark.parametrize(
    "node",
    [
        facts.node("IDLE", "DRAIN", reason="new memory", by="root"),
        facts.node("IDLE", "DRAIN", reason="gleaner: drained by alice", by="root"),
        facts.node("IDLE", "DRAIN", reason="new memory", by=facts.ACCOUNT),
        facts.node("IDLE"),
    ],
    ids=["another's", "another's with our words", "our account's with other words", "not drained"],
)
def test_only_nodes_that_carry_our_mark_are_set_back(node: snapshot.SlurmNode) -> None:
    assert "was not drained by us" in refusal_to(Resume(("n1",)), node)


def test_one_node_that_cannot_be_drained_leaves_the_others_as_they_are() -> None:
    both = Drain(("n1", "n2"), "alice")
    assert "n2 is DOWN" in refusal_to(both, facts.node("IDLE"), facts.node("DOWN", name="n2"))
    assert refusal_to(both, facts.node("IDLE")) == "Slurm knows no node n2"
    elsewhere = facts.node("IDLE", name="n2", partition="private")
    assert refusal_to(both, facts.node("IDLE"), elsewhere) == "node n2 is in no partition that Gleaner may drain"
