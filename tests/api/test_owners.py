"""The API's answer on owners with entitlements."""

from tests.api.api_harness import ApiHarness

from gleaner.control.policy.entitlements import decide
from gleaner.control.policy.entitlements_view import (
    AGENTS,
    EntitlementRules,
    EntitlementsStatus,
    EntitlementView,
    JobClass,
    RunningJob,
    WaitingJob,
    Wish,
)
from gleaner.control.policy.resources import Resources

NODE = Resources(6, 4000)


def test_without_entitlements_there_is_nothing_to_tell(harness: ApiHarness) -> None:
    answer = harness.admin.get("/v1/owners").json()
    assert (answer["mode"], answer["read_s"], answer["owners"]) == ("off", None, [])


def test_owners_with_what_they_have_and_who_waits_for_what(harness: ApiHarness) -> None:
    view = EntitlementView(
        now_s=100.0,
        rules=EntitlementRules(0, quantum_protects=False, saves_left=9),
        entitled_cpus={"physics": 6},
        size={"node1": NODE, "node2": NODE},
        free={"node1": Resources(0, 0), "node2": Resources(6, 4000)},
        waiting=(WaitingJob("7", "physics", JobClass.NON_PREEMPTIBLE, Wish(1, NODE)),),
        running=(RunningJob("5", AGENTS, JobClass.CHECKPOINTABLE, 0.0, {"node1": NODE, "drained": NODE}),),
    )
    harness.state.entitlements = EntitlementsStatus(view, decide(view), "the Slurm admin service does not answer")
    answer = harness.admin.get("/v1/owners").json()
    assert (answer["cpus"], answer["idle_cpus"], answer["problem"]) == (
        12,
        6,
        "the Slurm admin service does not answer",
    )
    assert [(row["owner"], row["entitled_cpus"], row["used_cpus"]) for row in answer["owners"]] == [
        ("physics", 6, 0),
        (AGENTS, 0, 6),
    ]
    (waiting,) = answer["waiting"]
    assert (waiting["job"], waiting["job_class"], waiting["verdict"]) == ("7", "non-preemptible", "claim")
