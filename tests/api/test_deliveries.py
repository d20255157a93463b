"""Deliveries as agents and people see them through the API."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.api.api_harness import ApiHarness, detail

from gleaner.control.queue import secret_key
from gleaner.control.settings import OutputSettings, Settings, StorageSettings


@pytest.fixture
def harness(harness: ApiHarness) -> ApiHarness:
    """Control at a site that allows a folder for each group."""
    outputs = OutputSettings(urls=("file:///data/{group}/",))
    harness.change(outputs=outputs)
    return harness


def test_a_heartbeat_says_that_a_result_waits_and_the_agent_gets_it_with_the_rules(harness: ApiHarness) -> None:
    outputs = {"keep": ["*.root"], "to": "file:///data/atlas/{job}/"}
    job, agent = harness.user.submit(spec={"outputs": outputs}), harness.agent()
    agent.claim()
    assert agent.ask("beat", {}).json()["deliveries"] is False
    assert agent.ask("deliver", {}).json()["delivery"] is None
    published = harness.publish_output(job, 1)
    agent.completed(job, 1, published)
    assert agent.ask("beat", {}).json()["deliveries"] is True
    assert agent.ask("deliver", {}).json()["delivery"] == {
        "job": job, "attempt": 1, "number": 1, "digest": published.digest, "to": f"file:///data/atlas/{job}/",
        "keep": ["*.root"], "allowed": ["file:///data/atlas/"], "total_s": 3600, "silent_s": 60,
        "credential": None,
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
    agent.ask("deliver", {})
    agent.ask("delivered", {"job": job, "number": 1, "failed": "a link", "may_pass": False})
    assert harness.caller("user", "eve", "cms").post(f"/v1/jobs/{job}/deliver", {}).status_code in {403, 404}
    assert agent.ask("deliver", {}).json()["delivery"] is None
    assert harness.user.post(f"/v1/jobs/{job}/deliver", {}).status_code == 200
    assert agent.ask("deliver", {}).json()["delivery"]["number"] == 2
    other = harness.user.submit()
    assert "has no result that is to be delivered" in detail(harness.user.post(f"/v1/jobs/{other}/deliver", {}), 404)


def test_a_targets_secret_goes_to_the_agent_that_delivers_and_to_nobody_else(harness: ApiHarness) -> None:
    outputs = OutputSettings(urls=("https://dav.example.org/{group}/",))
    harness.change(outputs=outputs)
    secret_key.make(harness.state.settings.queue.secret_key_file)
    secret = {"name": "dav", "url": "https://dav.example.org/", "value": "t0ken", "group": "atlas"}
    assert harness.admin.post("/v1/secrets", secret).status_code == 201
    agent, other = harness.agent(), harness.agent("n2")
    job = harness.user.submit(spec={"outputs": {"to": "https://dav.example.org/atlas/{job}/"}})
    agent.claim()
    agent.completed(job, 1, harness.publish_output(job, 1))
    detail(other.post(f"/v1/agents/{agent.name}/deliver", {}), 403)
    offered = agent.ask("deliver", {}).json()["delivery"]
    assert offered["credential"] == {"url": "https://dav.example.org/", "value": "t0ken", "fault": ""}
    assert "t0ken" not in harness.user.get(f"/v1/jobs/{job}").text


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        (("file:///data/",), "needs {group} once, as the whole name of a folder"),
        (("file:///data/x-{group}/",), "needs {group} once"),
        (("file:///data/{group}/{group}/",), "needs {group} once"),
        (("https://dav.example.org/?to=/{group}/",), "needs {group} once"),
        (("https://{group}/",), "must be like https://host/name"),
        (("https://*.example.org/{group}/",), "is not on one host of"),
        (("root://*.example.org//{group}/",), "is not on one host of https or s3 or root or roots or file"),
        (("file:///data/shared/{group}/", "file:///data/{group}/"), "is in the folder in which file:///data/{group}/"),
        (
            ("s3://s3.amazonaws.com/{group}/", "s3://results/{group}/"),
            "is in the folder in which s3://s3.amazonaws.com",
        ),
    ],
)
def test_an_entry_that_gives_no_folder_to_each_group_alone_is_refused(urls: tuple[str, ...], said: str) -> None:
    for order in (urls, urls[::-1]):
        with pytest.raises(ValidationError) as refused:
            OutputSettings(urls=order)
        (only,) = refused.value.errors()
        assert said in only["msg"]
        assert "\n" not in only["msg"]


@pytest.mark.parametrize(
    "urls",
    [
        ("file:///data/{group}/", "https://dav.example.org/{group}/", "s3://s3.example.org/results/{group}/"),
        ("file:///data/{group}/a/", "file:///data/{group}/a/b/", "file:///data/{group}"),
        ("https://a.example.org/{group}/", "https://a.example.org:444/x/{group}/", "https://b.example.org/x/{group}/"),
    ],
)
def test_entries_that_keep_groups_apart_are_taken(urls: tuple[str, ...]) -> None:
    assert OutputSettings(urls=urls).urls == urls


@pytest.mark.parametrize("url", ["file:///data/storage/{group}/", "file:///data/{group}/"])
def test_a_folder_that_could_overwrite_the_storage_is_no_target(url: str) -> None:
    with pytest.raises(ValidationError, match=r"which is Gleaner"):
        Settings(storage=StorageSettings(folder=Path("/data/storage")), outputs=OutputSettings(urls=(url,)))
