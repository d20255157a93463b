"""What the API says of governed owners."""

from tests.api.house import House

from gleaner.control.policy.governing import govern
from gleaner.control.policy.governing_view import (
    AGENTS,
    Governing,
    GovernRules,
    GovernView,
    RunningJob,
    WaitingJob,
    Wish,
)
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room

NODE = Room(6, 4000)


def test_without_governing_there_is_nothing_to_tell(house: House) -> None:
    answer = house.admin.get("/v1/owners").json()
    assert (answer["mode"], answer["read_s"], answer["owners"]) == ("off", None, [])


def test_owners_with_what_they_have_and_who_waits_for_what(house: House) -> None:
    view = GovernView(
        now_s=100.0,
        rules=GovernRules(0, quantum_protects=False, saves_left=9),
        entitled_cpus={"physics": 6},
        size={"node1": NODE, "node2": NODE},
        free={"node1": Room(0, 0), "node2": Room(6, 4000)},
        waiting=(WaitingJob("7", "physics", JobClass.NON_PREEMPTIBLE, Wish(1, NODE)),),
        running=(RunningJob("5", AGENTS, JobClass.CHECKPOINTABLE, 0.0, {"node1": NODE, "drained": NODE}),),
    )
    house.site.governing = Governing(view, govern(view), "the steward does not answer")
    answer = house.admin.get("/v1/owners").json()
    assert (answer["cpus"], answer["idle_cpus"], answer["problem"]) == (12, 6, "the steward does not answer")
    assert [(row["owner"], row["entitled_cpus"], row["used_cpus"]) for row in answer["owners"]] == [
        ("physics", 6, 0),
        (AGENTS, 0, 6),
    ]
    (waiting,) = answer["waiting"]
    assert (waiting["job"], waiting["job_class"], waiting["verdict"]) == ("7", "non-preemptible", "claim")
