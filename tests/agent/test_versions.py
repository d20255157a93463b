"""Agents and control of different versions understand each other: what is not known is passed over, on both sides."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from tests.golden import check_golden

from gleaner.agent import messages
from gleaner.agent.messages import MAJOR, ClaimRequest, Message, Orders, VersionedMessage
from gleaner.agent.reporting.client import ControlClient, ControlSilent

SECOND = 1_800_000_000.0
CHECKPOINT = {"attempt": 1, "number": 2, "digest": f"sha256:{'0' * 64}", "size_bytes": 5, "log_lines": 3}
SLICE = {"started_s": SECOND}
MEASURED = {"memory_bytes": 1, "stored_bytes": 1, "took_s": 1.0, "way": "shim"}
FACTS = {
    "node": "n1", "cpus": 1, "memory_mib": 1, "runtime": "docker 26", "criu": "4", "kernel": "6", "architecture": "x",
}  # fmt: skip
ASSIGNMENT = {
    "job": 1, "attempt": 1, "group": "g", "name": "n", "image": "i", "command": [], "cpus": 1, "memory_mib": 1,
}  # fmt: skip
LIMIT = {"limit_s": 60, "left_s": 1.5}
PUSHED = {"name": "pythia:8.3", "digest": f"sha256:{'0' * 64}"}
INPUT = {"name": "a.cmnd", "content": f"sha256:{'1' * 64}", "digest": f"sha256:{'0' * 64}", "size_bytes": 2048}
URL_INPUT = {"name": "b.lhe", "url": "https://data.example.org/b.lhe"}
FETCH_RULES = {"allowed": ["https://data.example.org/"], "largest_bytes": 1, "total_s": 1.0, "silent_s": 1.0}
DELIVERY = {
    "job": 1, "attempt": 1, "number": 1, "digest": f"sha256:{'0' * 64}", "to": "file:///data/1/",
    "allowed": ["file:///data/"], "total_s": 1.0, "silent_s": 1.0,
}  # fmt: skip
LEAST: dict[str, dict[str, Any]] = {
    "NodeImages": {},
    "NodeFacts": FACTS,
    "Registration": {"facts": FACTS, "end_s": SECOND},
    "NodeRates": {},
    "Welcome": {"heartbeat_s": 1.0, "lease_s": 3.0},
    "SelfSave": {},
    "Checkpoint": CHECKPOINT,
    "ComputeLimit": LIMIT,
    "PushedImage": PUSHED,
    "StoredInput": INPUT,
    "UrlInput": URL_INPUT,
    "FetchRules": FETCH_RULES,
    "InputFetched": {"name": "a.cmnd", "content": f"sha256:{'1' * 64}", "size_bytes": 2048},
    "InputFixed": {},
    "CredentialRequest": {"name": "b.lhe"},
    "CredentialGiven": {},
    "ClaimRequest": {"cpus": 1, "memory_mib": 1},
    "Assignment": ASSIGNMENT,
    "Assignments": {},
    "AttemptRef": {"job": 1, "attempt": 1},
    "Heartbeat": {},
    "Orders": {},
    "RestoreMeasurement": {"stored_bytes": 1, "took_s": 1.0, "way": "shim"},
    "SaveMeasurement": MEASURED,
    "Slice": SLICE,
    "Checkpointed": {"checkpoint": CHECKPOINT, "slice": SLICE},
    "Saved": {"checkpoint": CHECKPOINT, "slice": SLICE},
    "Output": {"digest": CHECKPOINT["digest"], "size_bytes": 1},
    "Completed": {"exit_code": 0, "slice": SLICE},
    "Returned": {"why": "unstarted"},
    "LogLines": {"first": 0, "lines": []},
    "Deregistration": {"ended_s": SECOND},
    "DeliveryClaim": {},
    "DeliveryCredentialRequest": {"job": 1, "number": 1},
    "Delivery": DELIVERY,
    "DeliveryOffer": {},
    "DeliveryReport": {"job": 1, "number": 1},
}
"""Each message with what it must have, and no more: as an older sender says it."""
NESTED: dict[str, dict[str, Any]] = {
    "Registration": {"facts": FACTS},
    "Assignments": {
        "jobs": [
            ASSIGNMENT | {"checkpoint": CHECKPOINT, "saves_itself": {}, "compute_limit": LIMIT, "pushed": PUSHED},
            ASSIGNMENT | {"inputs": [INPUT, URL_INPUT], "fetch_rules": FETCH_RULES},
            ASSIGNMENT | {"keep": ["*.root"]},
        ]
    },
    "CredentialGiven": {"url": "https://data.example.org/", "value": "t0ken"},
    "DeliveryOffer": {"delivery": DELIVERY},
    "Heartbeat": {"attempts": [{"job": 1, "attempt": 1}]},
    "Saved": {"checkpoint": CHECKPOINT, "slice": SLICE, "measured": MEASURED},
    "Completed": {"output": {"digest": CHECKPOINT["digest"], "size_bytes": 1, "unmatched": ["a"]}, "slice": SLICE},
}
names = pytest.mark.parametrize("name", LEAST)


def message(name: str) -> type[Message]:
    found: type[Message] = getattr(messages, name)
    return found


def said(name: str) -> dict[str, Any]:
    return LEAST[name] | NESTED.get(name, {})


def with_news(value: Any, news: dict[str, Any]) -> Any:
    """The same with further fields in each object of it, but where keys are the writer's own."""
    if isinstance(value, dict):
        return {key: with_news(each, news) for key, each in value.items()} | news
    return [with_news(each, news) for each in value] if isinstance(value, list) else value


def test_each_message_is_looked_at_here() -> None:
    there = {
        name for name, each in vars(messages).items()
        if isinstance(each, type) and issubclass(each, BaseModel) and each not in {Message, VersionedMessage, BaseModel}
    }  # fmt: skip
    assert there == set(LEAST)


def test_the_messages_are_written_as_before() -> None:
    """An agent and a control of different versions meet, so no field of a message gets another name or form."""
    written = {name: json.loads(message(name).model_validate(said(name)).model_dump_json()) for name in LEAST}
    check_golden(Path(__file__).parent / "golden" / "messages.json", written)


@names
@given(value=st.none() | st.booleans() | st.integers() | st.text() | st.dictionaries(st.text(), st.text()))
def test_what_a_newer_sender_adds_is_passed_over(name: str, value: object) -> None:
    newer = with_news(said(name), {"added_later": value})
    assert message(name).model_validate_json(json.dumps(newer)) == message(name).model_validate(said(name))


@names
def test_what_an_older_sender_does_not_say_has_a_default(name: str) -> None:
    assert message(name).model_validate_json(json.dumps(LEAST[name]))


@names
def test_an_optional_field_that_is_left_out_on_either_side_changes_nothing_else(name: str) -> None:
    """A receiver from before an optional field existed reads what today's sender says, and the other way round."""
    kind = message(name)
    whole = json.loads(kind.model_validate(said(name)).model_dump_json())
    for key, field in kind.model_fields.items():
        if field.is_required():
            continue
        without = {other: value for other, value in whole.items() if other != key}
        read = kind.model_validate_json(json.dumps(without))
        assert {other: value for other, value in json.loads(read.model_dump_json()).items() if other != key} == without


letters = pytest.mark.parametrize("name", [name for name in LEAST if issubclass(message(name), VersionedMessage)])


@letters
def test_a_message_says_its_version_and_one_of_a_newer_major_is_refused_in_one_line(name: str) -> None:
    kind = message(name)
    assert json.loads(kind.model_validate(said(name)).model_dump_json())["version"] == MAJOR
    for newer in (said(name) | {"version": MAJOR + 1}, {"version": MAJOR + 1, "quite": "different"}):
        with pytest.raises(ValidationError) as refused:
            kind.model_validate_json(json.dumps(newer))
        (only,) = refused.value.errors()
        assert only["msg"].startswith(f"this message is of version {MAJOR + 1}, and here")
        assert "\n" not in only["msg"]


@letters
@pytest.mark.parametrize("version", [0, -1, "1", None, True, 1.5])
def test_a_version_that_is_none_is_refused(name: str, version: object) -> None:
    with pytest.raises(ValidationError):
        message(name).model_validate_json(json.dumps(said(name) | {"version": version}))


def test_whoever_is_asked_is_a_letter_and_so_is_every_answer() -> None:
    """The parts of messages have no version of their own; all that is sent as a whole has."""
    parts = {name for name in LEAST if not issubclass(message(name), VersionedMessage)}
    inner = {
        "NodeImages",
        "NodeFacts",
        "NodeRates",
        "SelfSave",
        "Checkpoint",
        "Assignment",
        "AttemptRef",
        "RestoreMeasurement",
    }
    assert parts == inner | {"SaveMeasurement", "Slice", "Output", "ComputeLimit", "PushedImage", "StoredInput"} | {
        "UrlInput",
        "FetchRules",
        "Delivery",
    }


def test_an_agent_says_in_one_line_that_control_is_too_new() -> None:
    answer = Orders().model_dump() | {"version": MAJOR + 1}
    client = ControlClient(url="http://control", name="a", token="t", ca_file=None, timeout_s=1)
    transport = httpx.MockTransport(lambda _request: httpx.Response(200, json=answer))
    client._http = httpx.Client(base_url="http://control/v1", transport=transport)
    with pytest.raises(ControlSilent, match="upgrade this side") as silent:
        client.claim(ClaimRequest(cpus=1, memory_mib=1))
    assert "\n" not in str(silent.value)
