"""Inputs from URLs, as control sees them: what is allowed, and which bytes count once an agent has fetched them."""

from typing import Any

import pytest
from httpx import Response
from tests.api.api_harness import Agent, ApiHarness, detail
from tests.made_inputs import MadeInput, packed

from gleaner.agent.job.inputs import input_key
from gleaner.control.daemon.storage_gc import forget_inputs
from gleaner.control.models.inputs import InputRow, JobInput
from gleaner.control.queue import inputs, secret_key
from gleaner.control.settings import DAY_S, InputSettings

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
    harness.state.settings = harness.state.settings.model_copy(update={"inputs": inputs})


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
    assert one["inputs"] == two["inputs"] == [FROM_URL | {"sha256": None, "into_job": False}]
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


def test_another_submission_may_read_other_bytes(harness: ApiHarness) -> None:
    jobs = [harness.user.submit(spec={"inputs": [FROM_URL]}) for _ in range(2)]
    agent = harness.agent()
    agent.claim(most=2)
    for job, made in zip(jobs, (ONE, OTHER), strict=True):
        assert fetched(agent, job, made, digest=stored(harness, made)).json()["input"]["content"] == made.content
    assert forget_inputs(harness.state, harness.now_s + 100 * DAY_S) == 0  # both are needed


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


def damage(harness: ApiHarness, made: MadeInput = ONE) -> None:
    """Damage what is stored of it."""
    (pack,) = (harness.state.settings.storage.folder / input_key("atlas", made.content)).glob("*pack*")
    pack.write_bytes(bytes(pack.stat().st_size))


def fixed_job(harness: ApiHarness, agent: Agent) -> int:
    """A job that runs with an input that was fetched and stored."""
    job = harness.user.submit(spec={"inputs": [FROM_URL]})
    assert agent.claim()[0]["job"] == job
    assert fetched(agent, job, digest=stored(harness)).json()["input"]["content"] == ONE.content
    return job


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_is_broken_in_the_storage_is_fetched_anew_and_must_be_the_same_bytes(
    harness: ApiHarness, is_gone: bool
) -> None:
    agent = harness.agent()
    job = fixed_job(harness, agent)
    assert fetched(agent, job, is_broken=True).json()["input"]["content"] == ONE.content  # control finds it whole
    if is_gone:
        harness.storage.delete(input_key("atlas", ONE.content))
    else:
        damage(harness)
    assert fetched(agent, job, is_broken=True).json()["input"] is None
    assert fetched(agent, job, is_broken=True).json()["input"] is None  # the answer was lost
    assert agent.report(job, 1, "return", {"why": "unstarted"}).status_code == 204
    (again,) = agent.claim()
    assert (again["inputs"][0]["url"], "digest" in again["inputs"][0]) == (URL, False)
    assert again["fetch_rules"] is not None
    line = detail(fetched(agent, job, OTHER, attempt=2), 422)
    assert line == "what its jobs have read is lost, and its URL has other bytes by now: submit the jobs anew"
    assert fetched(agent, job, attempt=2).json()["input"] is None  # store it first
    assert fetched(agent, job, attempt=2, digest=stored(harness)).json()["input"]["content"] == ONE.content
    assert agent.report(job, 2, "return", {"why": "unstarted"}).status_code == 204
    assert agent.claim()[0]["inputs"][0]["content"] == ONE.content


def test_a_file_that_a_user_has_sent_and_that_is_broken_is_to_be_sent_anew(harness: ApiHarness) -> None:
    agent, sent = harness.agent(), {"name": "a.lhe", "content": ONE.content}
    with harness.state.writing() as db:
        row = InputRow(content=ONE.content, group="atlas", size_bytes=len(ONE.archive), used_s=harness.now_s)
        inputs.put(db, row, digest=stored(harness))
    job = harness.user.submit(spec={"inputs": [sent]})
    agent.claim()
    damage(harness)
    line = detail(fetched(agent, job, is_broken=True), 422)
    assert "submit its file again" in line
    asked = harness.user.post("/v1/inputs/missing", {"contents": [ONE.content]})
    assert asked.json()["missing"] == [ONE.content]


def test_a_stranger_or_an_old_attempt_does_not_make_control_forget_an_input(harness: ApiHarness) -> None:
    first, second = harness.agent(), harness.agent("n2")
    job = fixed_job(harness, first)
    damage(harness)
    detail(fetched(second, job, is_broken=True), 403)
    assert first.report(job, 1, "return", {"why": "unstarted"}).status_code == 204
    detail(fetched(first, job, is_broken=True), 409)
    assert harness.storage.keys("inputs") == [input_key("atlas", ONE.content)]


def test_what_a_job_has_read_is_read_again_and_fetched_anew_when_it_is_gone(harness: ApiHarness) -> None:
    agent = harness.agent()
    job = fixed_job(harness, agent)
    allow(harness, urls=[])  # what the group has needs no leave
    spec = {"inputs": [JobInput.model_validate(read(harness, job)).spec.model_dump()]}  # as the page does
    again = harness.user.submit(spec=spec)
    assert read(harness, again) == read(harness, job)
    agent.report(job, 1, "completed", {"exit_code": 0, "slice": {"started_s": harness.now_s}})
    assert agent.claim()[0]["inputs"][0]["content"] == ONE.content
    agent.report(again, 1, "completed", {"exit_code": 0, "slice": {"started_s": harness.now_s}})
    assert forget_inputs(harness.state, harness.now_s + 100 * DAY_S) == 1
    refused = harness.user.post("/v1/jobs", {"job": {"name": "pi", "image": "gleaner/pi"} | spec})
    assert "this site allows no URLs" in detail(refused, 409)
    allow(harness)
    late = harness.user.submit(spec=spec)
    assert read(harness, late)["content"] is None
    assert agent.claim()[0]["inputs"][0]["url"] == URL
    assert fetched(agent, late, OTHER, digest=stored(harness, OTHER)).json()["input"]["content"] == OTHER.content


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


def asked(agent: Agent, job: int, attempt: int = 1, name: str = "a.lhe") -> Response:
    return agent.report(job, attempt, "credential", {"name": name})


def test_a_secret_goes_to_the_agent_whose_attempt_is_about_to_fetch_and_to_nobody_else(harness: ApiHarness) -> None:
    key_file = harness.state.settings.queue.secret_key_file
    secret_key.make(key_file)
    put_secret(harness, "near", "https://data.example.org/pub/", "near-t0ken")
    put_secret(harness, "far", "https://data.example.org/", "far-t0ken")
    put_secret(harness, "beside", "https://data.example.org/pub/b", "beside-t0ken")
    put_secret(harness, "theirs", URL, "their-t0ken", group="cms")
    job = harness.user.submit(spec={"inputs": [FROM_URL]})
    first, second = harness.agent(), harness.agent("n2")
    assert "no attempt 1" in detail(asked(first, job), 404)
    (claimed,) = first.claim()
    assert "t0ken" not in str(claimed)
    assert asked(first, job).json() == {
        "version": 1, "url": "https://data.example.org/pub/", "value": "near-t0ken"
    }  # fmt: skip
    assert "another agent" in detail(asked(second, job), 403)
    assert "agent's token" in detail(harness.admin.post(f"/v1/jobs/{job}/attempts/1/credential", {"name": "a"}), 403)
    assert "has no input b" in detail(asked(first, job, name="b"), 404)
    fetched(first, job, digest=stored(harness))
    assert asked(first, job).json()["value"] is None, "it is fetched, and needs none any more"
    assert "t0ken" not in harness.user.get(f"/v1/jobs/{job}").text
    first.report(job, 1, "return", {"why": "unstarted"})
    assert "the job is New" in detail(asked(first, job), 409)


def test_without_a_secret_no_key_is_needed_and_with_a_wrong_key_the_agent_asks_again(harness: ApiHarness) -> None:
    job = harness.user.submit(spec={"inputs": [FROM_URL]})
    agent = harness.agent()
    agent.claim()
    assert asked(agent, job).json() == {"version": 1, "url": None, "value": None}
    key_file = harness.state.settings.queue.secret_key_file
    secret_key.make(key_file)
    put_secret(harness, "mine", URL, "t0ken")
    key_file.unlink()
    secret_key.make(key_file)
    assert "put that key back, or set it anew" in detail(asked(agent, job), 503)
