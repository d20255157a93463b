"""Inputs that groups store: what is stored, who may use it, and when it goes."""

from typing import Any

import pytest
from httpx import Response
from tests.api.api_harness import ApiHarness, Caller, detail
from tests.api.uploads import put_part
from tests.made_inputs import MadeInput, packed

from gleaner.agent.job.inputs import INPUT_PART, input_key
from gleaner.control.daemon.storage_gc import forget_inputs
from gleaner.control.settings import DAY_S, InputSettings

pytestmark = pytest.mark.slow
ONE = MadeInput()
NAMED = {"name": "a.cmnd", "content": ONE.content}


def send(caller: Caller, made: MadeInput, content: bytes = b"") -> Response:
    content = content or made.archive
    return put_part(caller, "inputs", made.content, content, len(content))


def put(caller: Caller, made: MadeInput = ONE, **more: object) -> Response:
    assert send(caller, made).json() == {"size_bytes": len(made.archive)}
    return caller.post("/v1/inputs", made.put(**more))


def missing(caller: Caller, *made: MadeInput) -> list[str]:
    found: list[str] = caller.post("/v1/inputs/missing", {"contents": [one.content for one in made]}).json()["missing"]
    return found


def limit(harness: ApiHarness, **inputs: object) -> None:
    harness.change(inputs=InputSettings.model_validate(inputs))


def test_an_input_is_stored_once_and_comes_with_the_job(harness: ApiHarness) -> None:
    assert missing(harness.user, ONE, ONE) == [ONE.content]
    answer = put(harness.user)
    assert (answer.status_code, answer.json()["group"]) == (201, "atlas")
    assert missing(harness.user, ONE) == []
    copy = {"name": "mine", "content": ONE.content, "into_job": True}
    job = harness.user.submit(spec={"inputs": [NAMED, copy]})
    (claimed,) = harness.agent().claim()
    first, second = claimed["inputs"]
    assert (first["name"], second["name"], second["into_job"]) == ("a.cmnd", "mine", True)
    archive = harness.storage.open(input_key("atlas", first["content"]), first["digest"])
    assert b"".join(archive.read(INPUT_PART)) == ONE.archive
    shown: dict[str, Any] = harness.user.get(f"/v1/jobs/{job}").json()["inputs"][0]
    assert shown == NAMED | {"size_bytes": len(ONE.archive), "into_job": False, "url": None, "sha256": None}


def test_another_groups_input_cannot_be_named(harness: ApiHarness) -> None:
    put(harness.user)
    other = harness.caller("user", "carol", "cms")
    assert missing(other, ONE) == [ONE.content]
    job = {"name": "pi", "image": "gleaner/pi", "inputs": [NAMED]}
    assert "group cms has not stored the input a.cmnd" in detail(other.post("/v1/jobs", {"job": job}), 409)
    assert harness.user.submit(spec={"inputs": [NAMED]})


def test_what_is_not_the_content_is_not_stored_and_what_is_stored_stays(harness: ApiHarness) -> None:
    other = packed(b"other bytes, same size")
    wrong = ONE.put(size_bytes=len(other))
    send(harness.user, ONE, other)
    assert "was changed or damaged" in detail(harness.user.post("/v1/inputs", wrong), 422)
    assert "not all of" in detail(harness.user.post("/v1/inputs", wrong), 409)  # what was sent has gone
    assert harness.storage.keys("inputs") == []
    assert missing(harness.user, ONE) == [ONE.content]
    put(harness.user)
    send(harness.user, ONE, other)
    again = harness.user.post("/v1/inputs", wrong)
    assert (again.status_code, again.json()["size_bytes"]) == (201, len(ONE.archive))
    assert harness.user.post("/v1/inputs", ONE.put()).status_code == 201
    harness.user.submit(spec={"inputs": [NAMED]})
    (claimed,) = harness.agent().claim()
    archive = harness.storage.open(input_key("atlas", ONE.content), claimed["inputs"][0]["digest"])
    assert b"".join(archive.read(INPUT_PART)) == ONE.archive


def test_limits_are_one_line_that_names_them(harness: ApiHarness) -> None:
    limit(harness, group_gib=2e-5)
    assert put(harness.user).status_code == 201
    assert put(harness.user).status_code == 201  # again: it counts once
    other = MadeInput(packed(b"other"))
    assert "[inputs] group_gib" in detail(send(harness.user, other), 409)
    assert harness.storage.keys("inputs") == [input_key("atlas", ONE.content)]
    limit(harness, largest_gib=1e-9)
    assert "[inputs] largest_gib" in detail(harness.user.post("/v1/inputs", ONE.put()), 413)
    limit(harness, group_gib=0)
    assert "stores no inputs" in detail(send(harness.user, ONE), 403)


def test_an_input_goes_when_no_job_needs_it_and_nobody_has_used_it_for_days(harness: ApiHarness) -> None:
    put(harness.user)
    job = harness.user.submit(spec={"inputs": [NAMED]})
    harness.now_s += 8 * DAY_S
    assert forget_inputs(harness.state, harness.now_s) == 0
    harness.user.post(f"/v1/jobs/{job}/cancel")
    assert missing(harness.user, ONE) == []  # somebody is about to use it
    assert forget_inputs(harness.state, harness.now_s + 6 * DAY_S) == 0
    assert forget_inputs(harness.state, harness.now_s + 8 * DAY_S) == 1
    assert missing(harness.user, ONE) == [ONE.content]


def test_what_the_storage_has_lost_is_sent_again(harness: ApiHarness) -> None:
    put(harness.user)
    harness.storage.delete(input_key("atlas", ONE.content))
    assert missing(harness.user, ONE) == [ONE.content]
    assert put(harness.user).status_code == 201
    assert missing(harness.user, ONE) == []
