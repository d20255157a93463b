"""Inputs from URLs, as control sees them: what is allowed, and which bytes count once an agent has fetched them."""

from typing import Any

import pytest
from httpx import Response
from tests.api.api_harness import Agent, ApiHarness, detail
from tests.made_inputs import MadeInput, packed

from gleaner.control.queue import secret_key
from gleaner.control.settings import InputSettings

pytestmark = pytest.mark.slow
ONE, OTHER = MadeInput(), MadeInput(packed(b"other"))
URL = "https://data.example.org/pub/a.lhe"
FROM_URL = {"name": "a.lhe", "url": URL}


@pytest.fixture
def harness(harness: ApiHarness) -> ApiHarness:
    """Control at a site that allows one folder of one server."""
    allow(harness)
    return harness


def allow(harness: ApiHarness, **more: object) -> None:
    inputs = InputSettings.model_validate({"urls": ["https://data.example.org/pub/"]} | more)
    harness.change(inputs=inputs)


def fetched(agent: Agent, job: int, made: MadeInput = ONE, attempt: int = 1, **more: object) -> Response:
    given = {"name": "a.lhe", "content": made.content, "size_bytes": len(made.archive)}
    return agent.report(job, attempt, "input", given | more)


def stored(harness: ApiHarness, made: MadeInput = ONE) -> str:
    """Store it as an agent does; return the digest."""
    return made.stored(harness.storage, group="atlas").digest


def read(harness: ApiHarness, job: int) -> dict[str, Any]:
    shown: dict[str, Any] = harness.user.get(f"/v1/jobs/{job}").json()["inputs"][0]
    return shown


def test_the_bytes_that_are_fetched_first_count_for_all_jobs_of_a_submission(harness: ApiHarness) -> None:
    harness.user.submit(spec={"inputs": [FROM_URL]}, indices=[0, 1])
    first, second = harness.agent(), harness.agent("n2")
    (one,), (two,) = first.claim(), second.claim()
    assert one["inputs"] == two["inputs"] == [FROM_URL | {"sha256": None, "into_job": False, "credential": None}]
    assert one["fetch_rules"]["allowed"] == ["https://data.example.org/pub/"]
    assert read(harness, one["job"])["content"] is None
    assert fetched(first, one["job"]).json()["input"] is None  # store it first
    digest = stored(harness)
    fixed = fetched(first, one["job"], digest=digest).json()["input"]
    assert (fixed["content"], fixed["digest"]) == (ONE.content, digest)
    assert fetched(second, two["job"], OTHER).json()["input"] == fixed
    assert fetched(second, two["job"], OTHER, digest=stored(harness, OTHER)).json()["input"] == fixed
    shown = FROM_URL | {"content": ONE.content, "size_bytes": len(ONE.archive), "sha256": None, "into_job": False}
    assert read(harness, two["job"]) == shown
    assert first.report(one["job"], 1, "return", {"why": "unstarted"}).status_code == 204
    (again,) = first.claim()
    assert again["inputs"][0]["content"] == ONE.content
    assert again["fetch_rules"] is None


def test_only_the_current_attempts_agent_says_what_was_fetched_and_only_of_what_is_stored(harness: ApiHarness) -> None:
    job = harness.user.submit(spec={"inputs": [FROM_URL]})
    first, second = harness.agent(), harness.agent("n2")
    first.claim()
    assert "another agent" in detail(fetched(second, job), 403)
    assert "has no input b" in detail(fetched(first, job, name="b"), 404)
    assert fetched(first, job, digest=f"sha256:{'0' * 64}").json()["input"] is None
    first.report(job, 1, "return", {"why": "unstarted"})
    second.claim()
    assert "attempt 2 is the latest" in detail(fetched(first, job, digest=stored(harness)), 409)
    assert read(harness, job)["content"] is None


def test_a_groups_limit_counts_before_anything_is_stored(harness: ApiHarness) -> None:
    allow(harness, group_gib=1e-9)
    job = harness.user.submit(spec={"inputs": [FROM_URL]})
    agent = harness.agent()
    agent.claim()
    assert "[inputs] group_gib" in detail(fetched(agent, job), 409)


def test_a_server_that_cannot_be_reached_lets_the_job_wait_longer_each_time(harness: ApiHarness) -> None:
    job = harness.user.submit(spec={"inputs": [FROM_URL]})
    agent = harness.agent()
    for attempt, pause_s in ((1, 10), (2, 20), (3, 40)):
        (claimed,) = agent.claim()
        assert claimed["attempt"] == attempt
        why = {"why": "input unreachable", "detail": "the input a.lhe: the server answers 503"}
        assert agent.report(job, attempt, "return", why).status_code == 204
        waits = harness.user.get(f"/v1/jobs/{job}").json()["waits_because"]
        assert waits.startswith("input unreachable: the input a.lhe: the server answers 503, and is tried again")
        harness.now_s += pause_s - 1
        assert agent.claim() == []
        harness.now_s += 2
    assert agent.claim()


def put_secret(harness: ApiHarness, name: str, url: str, value: str, group: str = "atlas") -> None:
    answer = harness.admin.post("/v1/secrets", {"name": name, "url": url, "value": value, "group": group})
    assert answer.status_code == 201, answer.text


def test_a_secret_goes_to_the_agent_that_is_to_fetch_and_to_nobody_else(harness: ApiHarness) -> None:
    key_file = harness.state.settings.queue.secret_key_file
    secret_key.make(key_file)
    put_secret(harness, "near", "https://data.example.org/pub/", "near-t0ken")
    put_secret(harness, "far", "https://data.example.org/", "far-t0ken")
    put_secret(harness, "beside", "https://data.example.org/pub/b", "beside-t0ken")
    put_secret(harness, "theirs", URL, "their-t0ken", group="cms")
    job, agent = harness.user.submit(spec={"inputs": [FROM_URL]}), harness.agent()
    near = {"url": "https://data.example.org/pub/", "value": "near-t0ken", "fault": ""}
    assert agent.claim()[0]["inputs"][0]["credential"] == near
    assert "t0ken" not in harness.user.get(f"/v1/jobs/{job}").text
    agent.report(job, 1, "return", {"why": "unstarted"})
    key_file.unlink()
    secret_key.make(key_file)
    faulty = agent.claim()[0]["inputs"][0]["credential"]
    assert (faulty["value"], "put that key back, or set it anew" in faulty["fault"]) == ("", True)
    fetched(agent, job, attempt=2, digest=stored(harness))
    agent.report(job, 2, "return", {"why": "unstarted"})
    assert "credential" not in agent.claim()[0]["inputs"][0], "it is fetched, and needs none any more"
