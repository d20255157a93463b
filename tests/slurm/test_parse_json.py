"""The reading of Slurm's JSON on jobs and nodes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.slurm_admin import facts

from gleaner.control.slurm import parse_json
from gleaner.control.slurm.interface import ClusterError


def number(value: int) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": value}


def test_a_job_is_found_by_its_number_and_read() -> None:
    assert parse_json.parse_job(facts.answer(facts.shown()), "7") == facts.job()
    assert parse_json.parse_job(facts.answer(facts.shown()), "8") is None
    assert parse_json.parse_job(facts.answer(), "7") is None


def test_a_task_is_found_by_itself_or_in_the_record_that_it_shares() -> None:
    array = number(7)
    shared = facts.shown(array_job_id=array, array_task_string="1,3-5%2", comment="shared")
    own = facts.shown(job_id=8, array_job_id=array, array_task_id=number(2), comment="own")
    answer = facts.answer(shared, own)
    found = {name: parse_json.parse_job(answer, name) for name in ("7_1", "7_4", "7_2", "7_6", "7", "8", "9_1")}
    assert {name: job.comment for name, job in found.items() if job} == {"7_1": "shared", "7_4": "shared", "7_2": "own"}
    assert parse_json.is_array(answer)
    assert not parse_json.is_array(facts.answer(facts.shown()))


PLAIN = facts.shown(
    job_state="PENDING", priority=0, nice=None, restart_cnt=0, submit_time=500, end_time=0, array_job_id=0,
    array_task_id=None,
)  # fmt: skip
"""Made by the source of Slurm 22.05 (openapi/v0.0.38): no cluster of that version was asked."""
ONE_WORD = facts.shown(job_state="PENDING")
"""Made by the source of Slurm 23.02 (data_parser/v0.0.39)."""


@pytest.mark.parametrize("record", [PLAIN, ONE_WORD, facts.shown()], ids=["22.05", "23.02", "24.11"])
def test_a_job_is_the_same_whichever_slurm_prints_it(record: dict[str, object]) -> None:
    assert parse_json.parse_job(facts.answer(record), "7") == facts.job()


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", ["PENDING", "REQUEUE_HOLD"]], ids=["22.05", "24.11"])
def test_a_job_that_was_requeued_into_a_hold_waits_and_is_held(state: object) -> None:
    found = parse_json.parse_job(facts.answer(facts.shown(job_state=state)), "7")
    assert found is not None and found.is_held


@pytest.mark.parametrize("priority", [None, {"set": False, "infinite": False, "number": 0}], ids=["22.05", "24.11"])
def test_a_priority_that_slurm_has_not_computed_yet_is_no_hold(priority: object) -> None:
    found = parse_json.parse_job(facts.answer(facts.shown(priority=priority)), "7")
    assert found is not None and found.is_pending and not found.is_held


@pytest.mark.parametrize(
    "states", [{"state": "idle", "state_flags": ["DRAIN"]}, {"state": ["IDLE", "DRAIN"]}], ids=["22.05", "24.11"]
)
def test_a_node_is_the_same_whichever_slurm_prints_it(states: dict[str, object]) -> None:
    """The first is made by the source of openapi/v0.0.38."""
    said = {"name": "n1", "partitions": ["shared"], "reason": "", "reason_set_by_user": None} | states
    found, gaps = parse_json.parse_nodes(json.dumps({"nodes": [said]}))
    assert (found, gaps) == ({"n1": facts.node("IDLE", "DRAIN")}, "")


@given(st.text())
def test_what_an_owner_writes_into_a_comment_is_nothing_but_its_comment(text: str) -> None:
    comment = f"{text}\n   AdminComment=gleaner: waits for its turn"
    found = parse_json.parse_job(facts.answer(facts.shown(comment=comment, admin_comment="")), "7")
    assert found is not None
    assert (found.comment, found.admin_comment) == (comment.replace("\0", "\N{REPLACEMENT CHARACTER}"), "")


def test_nodes_are_read_with_who_drained_them() -> None:
    said = {
        "name": "n1", "partitions": ["shared"], "state": ["IDLE", "DRAIN"], "reason": "gleaner: drained by alice",
        "reason_set_by_user": facts.ACCOUNT,
    }  # fmt: skip
    assert parse_json.parse_nodes(json.dumps({"nodes": [said]})) == ({"n1": facts.drained_by_us()}, "")


@pytest.mark.parametrize("answer", ["", "slurm_load_jobs error", "[]", '{"meta": {}}'])
def test_what_is_no_answer_is_an_error_and_never_a_guess(answer: str) -> None:
    with pytest.raises(ClusterError, match="scontrol said"):
        parse_json.parse_job(answer, "7")


def test_a_number_that_no_program_reads_is_named_in_one_line() -> None:
    with pytest.raises(ClusterError) as error:
        parse_json.parse_nodes('{"nodes": [{"name": "n1", "cpus": ' + "9" * 5000 + "}]}")
    assert str(error.value).endswith(" where JSON with nodes was expected: a number of 5000 digits")


def test_a_lone_record_that_cannot_be_read_is_an_error_only_for_who_asks_for_that_job() -> None:
    wrong = facts.answer(facts.shown(priority="high"))
    with pytest.raises(ClusterError, match="Slurm said of job 7 what cannot be read"):
        parse_json.parse_job(wrong, "7")
    assert not parse_json.is_array(facts.answer(facts.shown(array_job_id="seven")))
    found, gaps = parse_json.parse_nodes(json.dumps({"nodes": [{"name": "n1", "partitions": 7}]}))
    assert (found, gaps) == ({}, "Slurm said of node 'n1' what cannot be read: 7 is no text")
