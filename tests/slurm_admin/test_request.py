"""The requests that the Slurm admin service takes: none that is not in its table, field by field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.privileged.common.request import Refused
from gleaner.control.slurm_admin import request
from gleaner.control.slurm_admin.request import Alive, Awake, Drain, Explain, Heard, Hold, Release, Resume


def parsed(**message: Any) -> request.Request:
    return request.parse(json.dumps(message).encode()).request


def test_each_request_is_what_its_fields_say() -> None:
    assert parsed(do="alive", partitions=["shared", "big"]) == Alive(("shared", "big"))
    assert parsed(do="awake") == Awake()
    assert parsed(do="release", job="4711_3", top=False) == Release("4711_3", top=False)
    assert parsed(do="reason", job="7", text="chemistry: 12 of 10 CPUs") == Explain("7", "chemistry: 12 of 10 CPUs")
    assert parsed(do="drain", nodes=["n1", "n2"], by="alice") == Drain(("n1", "n2"), "alice")
    assert parsed(do="resume", nodes=["n1"]) == Resume(("n1",))


REQUESTS: dict[str, dict[str, Any]] = {
    "job": {"do": "hold"}, "nodes": {"do": "resume"}, "partitions": {"do": "alive"},
    "text": {"do": "reason", "job": "7"},
    "epoch": {"do": "hold", "job": "7"}, "submitted_s": {"do": "hold", "job": "7"},
}  # fmt: skip
NUMBERS: list[Any] = [-1, 1.5, True, "7", None, [7]]
WRONG: dict[str, list[Any]] = {
    "job": ["", "0", "7 ", "7,8", "7_", "7_[1-3]", "07", "-1", "7\n", "all", "7;8", "٧", 7, None, ["7"], "7" * 20],
    "nodes": [[], ["n1", "n1"], ["n[1-3]"], ["ALL,n1"], ["n1 State=DOWN"], ["-n"], [""], [1], "n1", None, ["n"] * 1001],
    "partitions": [[], "shared", None, [""], ["a,b"], ["a b"], ["a", "a"], ["a\n"], [7], ["a" * 65]],
    "text": ["", "a\nb", "\x1b[1m", "x" * 201, 7, None],
    "epoch": NUMBERS, "submitted_s": NUMBERS,
}  # fmt: skip
"""By field: a job is one number or one task of an array, nodes and partitions are lists of names each once, a reason is
one short printable line, and what may be missing is a whole number if it is there."""


@pytest.mark.parametrize("field", WRONG)
def test_a_field_that_is_not_what_it_must_be_is_named(field: str) -> None:
    for value in WRONG[field]:
        with pytest.raises(Refused, match=f"'{field}' is not what it must be"):
            parsed(**REQUESTS[field], **{field: value})


def test_a_request_carries_by_what_its_author_leads_and_which_job_is_meant() -> None:
    line = json.dumps({"do": "hold", "job": "7", "submitted_s": 3, "epoch": 4}).encode()
    assert request.parse(line) == Heard(Hold("7", submitted_s=3), 4)
    assert request.parse(b'{"do": "awake"}') == Heard(Awake(), None)
    with pytest.raises(Refused, match="'submitted_s' is no field of this request"):
        parsed(do="drain", nodes=["n1"], by="alice", submitted_s=3)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"do": "release", "job": "7"}, "'top' is missing"),
        ({"do": "release", "job": "7", "top": 1}, "'top' is not what"),
        ({"do": "hold", "job": "7", "node": "n1"}, "'node' is no field of this request"),
        ({"do": "drain", "nodes": ["n1"], "by": "a b"}, "'by' is not what"),
        ({"do": "cancel", "job": "7"}, "there is no request 'cancel'"),
        ({"job": "7"}, "there is no request 'None'"),
    ],
)
def test_what_is_missing_or_too_much_is_named(message: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        parsed(**message)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_whatever_is_said_is_refused_in_one_line_or_understood(line: bytes) -> None:
    try:
        request.parse(line)
    except Refused as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("line", [b"[" * 30_000, b"9" * 60_000, b"[]", b"7", b'{"do": "hold", "job": ' + b"9" * 999])
def test_hostile_json_is_refused(line: bytes) -> None:
    with pytest.raises(Refused):
        request.parse(line)
