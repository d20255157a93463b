"""The node helper's door for ordinary users: a container for a Slurm job of one's own that runs here, no more."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.privileged import slurm
from tests.privileged.root import only_root
from tests.privileged.slurm import NODE
from tests.privileged.users_harness import AGENT, ALICE, BOB, BOBS, MINE, Node

from gleaner.agent.privileged.common import bundle, request
from gleaner.agent.privileged.common.bundle import Bundle
from gleaner.agent.privileged.common.request import LABEL_END, Refused
from gleaner.agent.privileged.common.slurm_job import Unknown, parse
from gleaner.agent.privileged.common.user_jobs import Owner, Places, check_spec, name_of
from gleaner.agent.system.ipc import HandshakeFailed

pytestmark = only_root


def wanted(**changes: Any) -> dict[str, Any]:
    return {
        "do": "create",
        "name": MINE,
        "image": "pi:1",
        "command": [],
        "environment": {},
        "cpus": 2,
        "memory_mib": 1000,
        "labels": {},
        "restore": False,
        "inputs": False,
        "mounts": [],
    } | changes


def test_who_owns_a_job_that_runs_here_gets_a_folder_of_its_own_and_a_place_to_wait(node: Node) -> None:
    said = node.ask(ALICE, do="admit", slurm_job="66")
    assert said.pop("ok")
    assert (said["name"], said["cpus"], said["memory_mib"]) == (MINE, 2, 1000)
    for place in (said["folder"], said["handshakes"]):
        facts = Path(place).stat()
        assert (facts.st_uid, facts.st_gid, facts.st_mode & 0o777) == (*ALICE, 0o700)


REFUSED: dict[str, dict[str, Any]] = {
    "not yours": {"user_id": BOB.uid},
    "does not run: Slurm calls it COMPLETED": {"job_state": ["COMPLETED"]},
    "does not run: Slurm calls it RUNNING.COMPLETING": {"job_state": ["RUNNING", "COMPLETING"]},
    "does not run: Slurm calls it PENDING": {"job_state": ["PENDING"], "parts": []},
    "does not run: Slurm calls it SUSPENDED": {"job_state": ["SUSPENDED"]},
    "does not run on node3, but on node1": {"parts": [("node1", 2, 1000)]},
    "not understood": {"user_id": "1"},
    "is not understood": {"job_resources": {"nodes": {"allocation": [{"name": NODE}]}}},
}


@pytest.mark.parametrize("why", [*REFUSED])
@pytest.mark.parametrize("message", [{"do": "admit", "slurm_job": "66"}, wanted()], ids=["admit", "create"])
def test_a_job_must_be_the_callers_and_run_here_now(node: Node, why: str, message: dict[str, Any]) -> None:
    node.knows(**REFUSED[why])
    said = node.ask(ALICE, **message)
    assert not said["ok"]
    assert why.replace(".", "+") in said["why"]
    assert "\n" not in said["why"]
    assert list((node.place / "work").iterdir()) == []


def test_a_job_that_slurm_does_not_know_or_does_not_speak_of_is_refused(node: Node) -> None:
    assert "no job 99" in node.ask(ALICE, do="admit", slurm_job="99")["why"]
    (node.place / "silent").touch()
    assert "Unable to contact" in node.ask(ALICE, do="admit", slurm_job="66")["why"]


@pytest.mark.parametrize(
    "number", ["", "0", "66_1", "-1", "66;id", "66 67", "../66", "66\n", 66, None, ["66"], "6" * 11]
)
def test_a_job_is_a_plain_number(node: Node, number: object) -> None:
    assert "'slurm_job'" in node.ask(ALICE, do="admit", slurm_job=number)["why"]


def test_what_a_user_calls_a_job_says_nothing_about_it(node: Node) -> None:
    node.knows(user_id=BOB.uid, name='x", "user_id": 1, "y": "', comment="UserId=daemon(1) JobState=RUNNING")
    assert "not yours" in node.ask(ALICE, do="admit", slurm_job="66")["why"]


TOO_MUCH: dict[str, dict[str, Any]] = {
    "3 CPUs are more": {"cpus": 3},
    "1001 MiB are more": {"memory_mib": 1001},
    "'labels'": {"labels": {"org.gleaner.end-s": "9999999999"}},
    "'name'": {"name": BOBS},
    "not yours": {"name": name_of(ALICE.uid, "67")},
    "'name' ": {"name": "gleaner-7-1"},
    "'cpus'": {"cpus": 0},
    "'memory_mib'": {"memory_mib": "1000"},
    "'uid'": {"uid": 0},
}


@pytest.mark.parametrize("why", [*TOO_MUCH])
def test_nothing_beyond_the_job_and_nothing_in_anothers_name(node: Node, why: str) -> None:
    said = node.ask(ALICE, **wanted(**TOO_MUCH[why]))
    assert not said["ok"]
    assert why in said["why"]


@pytest.mark.parametrize("who", [ALICE, AGENT], ids=["a user", "the service account"])
@pytest.mark.parametrize("do", ["pause", "unpause", "checkpoint", "remove", "about", "logs", "wait", "signal"])
def test_the_containers_of_others_are_not_there(node: Node, who: Owner, do: str) -> None:
    node.made(BOBS, BOB)
    service = node.made("gleaner-7-1", AGENT)
    for name in {BOBS, service.name} - ({service.name} if who == AGENT else set()):
        more: dict[str, Any] = {"signal": "KILL"} if do == "signal" else {}
        assert node.ask(who, do=do, name=name, **more)["kind"] == "gone"
    assert {one.name for one in bundle.all_bundles(node.settings)} == {BOBS, "gleaner-7-1"}
    assert BOBS not in node.ask(who, do="list")["containers"]


def test_a_user_sees_its_own_container_alone(node: Node) -> None:
    for name, who in ((MINE, ALICE), (BOBS, BOB)):
        node.made(name, who)
    assert [*node.ask(ALICE, do="list")["containers"]] == [MINE]
    assert node.ask(ALICE, do="about", name=MINE)["ok"]


def test_the_service_account_takes_no_name_of_an_user_job(node: Node) -> None:
    assert "'name'" in node.ask(AGENT, **wanted())["why"]


def test_a_user_brings_no_image(node: Node) -> None:
    with (node.place / "key").open("rb") as file:
        said = node.ask(ALICE, file.fileno(), do="import", image="evil:1")
    assert (said["kind"], "only an admin" in said["why"]) == ("image", True)


def test_a_container_runs_in_the_folder_that_the_helper_made_and_in_no_other(node: Node) -> None:
    node.ask(ALICE, do="admit", slurm_job="66")
    node.made(MINE, ALICE)
    other = node.place / "other"
    other.mkdir()
    os.chown(other, *ALICE)
    descriptor = os.open(other, os.O_PATH)
    assert "folder must be" in node.ask(ALICE, descriptor, do="run", name=MINE)["why"]
    os.close(descriptor)


def test_nothing_is_started_for_a_job_that_has_ended_meanwhile(node: Node) -> None:
    folder = node.ask(ALICE, do="admit", slurm_job="66")["folder"]
    node.made(MINE, ALICE)
    node.knows(job_state=["COMPLETED"])
    node.forget()
    descriptor = os.open(folder, os.O_PATH)
    assert "does not run" in node.ask(ALICE, descriptor, do="run", name=MINE)["why"]
    os.close(descriptor)


def test_root_has_no_user_jobs(node: Node) -> None:
    node.knows(user_id=0)
    assert "root's jobs" in node.ask(Owner(0, 0), do="admit", slurm_job="66")["why"]


def test_whoever_is_no_account_here_is_refused(node: Node) -> None:
    assert "no account" in node.ask(Owner(54321, 54321), do="facts")["why"]


def test_users_are_turned_away_where_nothing_is_set(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    node = Node(tmp_path)
    node.helper._user_jobs = None
    with pytest.raises(HandshakeFailed):
        node.ask(ALICE, do="facts")


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans())))
def test_no_user_and_not_all_together_can_take_every_place(asked: list[tuple[int, bool]]) -> None:
    places, taken = Places(of_one=2, of_all=5), dict.fromkeys(range(1, 5), 0)
    for uid, comes in asked:
        if comes:
            had = places.take(uid)
            assert had == (taken[uid] < 2 and sum(taken.values()) < 5)
            taken[uid] += had
        elif taken[uid]:
            places.release(uid)
            taken[uid] -= 1


@given(cpus=st.integers(1, 10), memory_mib=st.integers(6, 3000), has=st.tuples(st.integers(1, 8), st.integers(0, 2000)))
def test_whatever_is_taken_fits_into_what_the_job_has(cpus: int, memory_mib: int, has: tuple[int, int]) -> None:
    job = parse(json.dumps({"jobs": [slurm.job(parts=[(NODE, *has)])]}), "66")
    spec = request.spec(wanted(cpus=cpus, memory_mib=memory_mib))
    try:
        allowed = check_spec(spec, job, owner=ALICE, node=NODE, now_s=0)
    except Refused:
        assert cpus > has[0] or 0 < has[1] < memory_mib
        return
    assert allowed.cpus <= has[0]
    assert has[1] == 0 or allowed.memory_mib <= has[1]
    assert allowed.labels == {
        "org.gleaner.slurm-job": "66",
        "org.gleaner.end-s": "2000000000",
    }


def test_a_container_stays_as_long_as_slurm_gives_its_job_more_time(node: Node) -> None:
    made = node.made(MINE, ALICE, end_s=1)
    node.helper.watchdog.remove_users_overdue()
    assert made.facts()["labels"][LABEL_END] == "2000000000"
    node.helper.watchdog.remove_users_overdue()
    assert [one.name for one in bundle.all_bundles(node.settings)] == [MINE]


def test_a_container_whose_job_has_ended_goes_and_one_of_which_slurm_does_not_speak_stays(node: Node) -> None:
    node.made(MINE, ALICE, end_s=1)
    (node.place / "silent").touch()
    with pytest.raises(Unknown):
        node.user_jobs.still_runs(Bundle(node.settings, MINE).facts())
    (node.place / "silent").unlink()
    node.knows(job_state=["TIMEOUT"])
    assert node.user_jobs.still_runs(Bundle(node.settings, MINE).facts()) is None


def test_what_no_job_needs_any_more_is_removed_at_the_start_and_after_its_job(node: Node) -> None:
    folder = Path(node.ask(ALICE, do="admit", slurm_job="66")["folder"])
    (folder / "deep").mkdir()
    node.user_jobs.clear("67")
    assert folder.exists()
    node.user_jobs.clear("66")
    assert not folder.exists()
    node.ask(ALICE, do="admit", slurm_job="66")
    node.user_jobs.set_up()
    assert list((node.place / "work").iterdir()) == []
