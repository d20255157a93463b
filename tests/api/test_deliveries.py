"""Deliveries as agents and people see them through the API."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.api.api_harness import Agent, ApiHarness, detail

from gleaner.control.queue import secret_key
from gleaner.control.settings import OutputSettings, Settings, StorageSettings


@pytest.fixture
def harness(harness: ApiHarness) -> ApiHarness:
    """Control at a site that allows a folder for each group."""
    outputs = OutputSettings(urls=("file:///data/{group}/",))
    harness.state.settings = harness.state.settings.model_copy(update={"outputs": outputs})
    return harness


def test_a_heartbeat_says_that_a_result_waits_and_the_agent_gets_it_with_the_rules(harness: ApiHarness) -> None:
    outputs = {"keep": ["*.root"], "to": "file:///data/atlas/{job}/"}
    job, agent = harness.user.submit(spec={"outputs": outputs}), harness.agent()
    agent.claim()
    assert agent.ask("beat", {}).json()["deliveries"] is False
    assert agent.ask("deliver", NEW).json()["delivery"] is None
    published = harness.publish_output(job, 1)
    agent.completed(job, 1, published)
    assert agent.ask("beat", {}).json()["deliveries"] is True
    assert agent.ask("deliver", NEW).json()["delivery"] == {
        "job": job, "attempt": 1, "number": 1, "digest": published.digest, "to": f"file:///data/atlas/{job}/",
        "keep": ["*.root"], "allowed": ["file:///data/atlas/"], "total_s": 3600, "silent_s": 60,
        "has_secret": False,
    }  # fmt: skip
    assert agent.ask("beat", {}).json()["deliveries"] is False
    assert agent.ask("delivered", {"job": job, "number": 2}).status_code == 409
    assert harness.agent("n2").ask("delivered", {"job": job, "number": 1}).status_code == 409
    assert agent.ask("delivered", {"job": job, "number": 1, "files": 3, "size_bytes": 9}).status_code == 204
    shown = harness.user.get(f"/v1/jobs/{job}").json()
    assert shown["spec"]["outputs"] == outputs | {"to": f"file:///data/atlas/{job}/"}
    assert (shown["delivery"]["phase"], shown["delivery"]["files"]) == ("delivered", 3)


def test_a_delivery_is_tried_again_for_those_who_may_change_the_job(harness: ApiHarness) -> None:
    job, agent = harness.user.submit(spec={"outputs": {"to": "file:///data/atlas/{job}/"}}), harness.agent()
    agent.claim()
    agent.completed(job, 1, harness.publish_output(job, 1))
    agent.ask("deliver", NEW)
    agent.ask("delivered", {"job": job, "number": 1, "failed": "a link", "may_pass": False})
    assert harness.caller("user", "eve", "cms").post(f"/v1/jobs/{job}/deliver", {}).status_code in {403, 404}
    assert agent.ask("deliver", NEW).json()["delivery"] is None
    assert harness.user.post(f"/v1/jobs/{job}/deliver", {}).status_code == 200
    assert agent.ask("deliver", NEW).json()["delivery"]["number"] == 2
    other = harness.user.submit()
    assert "has no result that is to be delivered" in detail(harness.user.post(f"/v1/jobs/{other}/deliver", {}), 404)


NEW = {"delivers": ["https", "file"]}


def put_secret(harness: ApiHarness, url: str, group: str) -> None:
    key_file = harness.state.settings.queue.secret_key_file
    secret_key.make(key_file)
    given = {"name": "dav", "url": url, "value": f"{group}-t0ken", "group": group}
    assert harness.admin.post("/v1/secrets", given).status_code == 201


def done(harness: ApiHarness, agent: Agent, to: str = "https://dav.example.org/atlas/{job}/") -> int:
    """Let a job with this target succeed; return its id."""
    job = harness.user.submit(spec={"outputs": {"to": to}})
    agent.claim()
    agent.completed(job, 1, harness.publish_output(job, 1))
    return job


@pytest.fixture
def dav(harness: ApiHarness) -> ApiHarness:
    """Control at a site that allows a server, too."""
    outputs = OutputSettings(urls=("file:///data/{group}/", "https://dav.example.org/{group}/"))
    harness.state.settings = harness.state.settings.model_copy(update={"outputs": outputs})
    return harness


def test_a_targets_secret_goes_to_the_agent_that_delivers_and_to_nobody_else(dav: ApiHarness) -> None:
    put_secret(dav, "https://dav.example.org/", "atlas")
    put_secret(dav, "https://dav.example.org/atlas/", "cms")
    agent, other = dav.agent(), dav.agent("n2")
    job = done(dav, agent)
    asked = {"job": job, "number": 1}
    assert "try 0 to deliver" in detail(agent.ask("delivery-credential", asked), 409)
    offered = agent.ask("deliver", NEW)
    assert offered.json()["delivery"]["has_secret"] is True
    assert "t0ken" not in offered.text
    given = {"version": 1, "url": "https://dav.example.org/", "value": "atlas-t0ken"}
    assert agent.ask("delivery-credential", asked).json() == given
    assert "try 1 to deliver" in detail(other.ask("delivery-credential", asked), 409)
    assert "try 1 to deliver" in detail(agent.ask("delivery-credential", asked | {"number": 2}), 409)
    detail(dav.admin.post(f"/v1/agents/{agent.name}/delivery-credential", asked), 403)
    detail(other.post(f"/v1/agents/{agent.name}/delivery-credential", asked), 403)
    assert "t0ken" not in dav.user.get(f"/v1/jobs/{job}").text
    agent.ask("delivered", asked | {"failed": "busy"})
    assert "try 1 to deliver" in detail(agent.ask("delivery-credential", asked), 409)
    dav.now_s += 60
    assert agent.ask("deliver", NEW).json()["delivery"]["number"] == 2
    assert "try 2 to deliver" in detail(agent.ask("delivery-credential", asked), 409)
    agent.ask("farewell", {"ended_s": dav.now_s})
    assert agent.ask("delivery-credential", asked | {"number": 2}).status_code in {401, 403, 409}


def test_an_agent_is_told_again_only_of_what_it_delivers(dav: ApiHarness) -> None:
    files, both = dav.agent(), dav.agent("n2")
    done(dav, files)
    assert files.ask("beat", {}).json()["deliveries"] is True  # nobody knows what it delivers
    assert files.ask("deliver", {"delivers": ["file"]}).json()["delivery"] is None
    assert files.ask("beat", {}).json()["deliveries"] is False
    assert both.ask("beat", {}).json()["deliveries"] is True
    done(dav, files, "file:///data/atlas/{job}/")
    assert files.ask("beat", {}).json()["deliveries"] is True


@pytest.mark.parametrize(
    ("one", "other", "whose"),
    [
        ("file:///data/{group}/", "file:///data/shared/results/", "the group shared"),
        ("file:///data/{group}/", "file:///data/", "each group"),
        ("file:///data/{group}/", "file:///data/x-{group}/", "each group"),
        ("file:///data/{group}/one/", "file:///data/two/{group}/", "the group one"),
        ("file:///data/{group}/", "file:///data/x/{group}/", "the group x"),
        ("https://{group}.example.org/", "https://dav.example.org/data/", "the group dav"),
        ("https://*.example.org/{group}/", "https://dav.example.org/a/", "the group a"),
        ("s3://{group}/", "s3://results/{group}/", "the group results"),
    ],
)
def test_entries_that_give_a_groups_place_to_others_are_refused(one: str, other: str, whose: str) -> None:
    for urls in ((one, other), (other, one)):
        with pytest.raises(ValidationError) as refused:
            OutputSettings(urls=urls)
        (only,) = refused.value.errors()
        assert f"others could write over the results of {whose}" in only["msg"]
        assert "\n" not in only["msg"]


@pytest.mark.parametrize(
    "urls",
    [
        ("file:///data/{group}/", "https://dav.example.org/{group}/", "s3://s3.example.org/results/{group}/"),
        ("file:///data/{group}/a/", "file:///data/{group}/a/b/", "file:///data/{group}/c/"),
        ("file:///data/a-{group}/", "file:///data/b-{group}/"),
        ("file:///data/{group}.d/", "file:///data/{group}.e/", "file:///data/a/"),
        ("file:///data/{group}/{group}/", "file:///data/one/two/"),
        ("file:///data/{group}/one/", "file:///data/one/{group}/", "file:///data/_/"),
        ("file:///data/", "file:///data/shared/"),
        ("https://a.example.org/{group}/", "https://a.example.org:444/x/", "https://b.example.org/x/"),
    ],
)
def test_entries_that_keep_groups_apart_are_taken(urls: tuple[str, ...]) -> None:
    assert OutputSettings(urls=urls).urls == urls


@pytest.mark.parametrize("url", ["file:///data/storage/x/", "file:///data/", "file:///data/{group}/", "ftp://host/"])
def test_a_folder_that_could_overwrite_the_storage_is_no_target(url: str) -> None:
    with pytest.raises(ValidationError, match=r"which is Gleaner|must begin with"):
        Settings(storage=StorageSettings(folder=Path("/data/storage")), outputs=OutputSettings(urls=(url,)))
