"""A job's output as a stream."""

import os

import httpx
import pytest
from tests.api.api_harness import ApiHarness, detail, served

from gleaner.agent.checkpoints.interface import output_key
from gleaner.control.api.app import create_app

CONTENT = os.urandom(3 * 2**20)


def _completed(harness: ApiHarness, content: bytes = CONTENT, part: str = "folder.tar") -> int:
    job = harness.user.submit()
    agent = harness.agent()
    agent.claim()
    assert agent.completed(job, 1, harness.publish_output(job, 1, content, part)).status_code == 204
    return job


@pytest.mark.parametrize("content", [CONTENT, b""])
def test_the_output_arrives_byte_for_byte(harness: ApiHarness, content: bytes) -> None:
    answer = harness.user.get(f"/v1/jobs/{_completed(harness, content)}/output")
    assert answer.status_code == 200
    assert answer.content == content
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["content-length"] == str(len(content))


def test_no_output_yet_is_not_found_and_says_where_the_job_stands(harness: ApiHarness) -> None:
    job = harness.user.submit()
    assert detail(harness.user.get(f"/v1/jobs/{job}/output"), 404) == f"job {job} has no output: it is New"
    harness.user.post(f"/v1/jobs/{job}/cancel")
    assert detail(harness.user.get(f"/v1/jobs/{job}/output"), 404) == f"job {job} has no output: it is cancelled"


def test_a_result_is_named_with_its_digest_and_its_place(harness: ApiHarness) -> None:
    done = _completed(harness)
    harness.user.submit(indices=[4, 5])
    row = harness.user.get(f"/v1/jobs/{done}/result").json()
    assert harness.storage.open(output_key(done, row["attempt"]), row["digest"]).parts.keys() == {"folder.tar"}
    assert row["storage"] == str(harness.state.settings.storage.folder)
    first, second = harness.user.get("/v1/campaigns/1/results").json()
    assert [first["index"], first["digest"]] == [4, None]
    assert harness.user.get("/v1/campaigns/1/results", after=first["job"]).json() == [second]


def test_an_output_that_is_gone_is_one_line(harness: ApiHarness) -> None:
    job = _completed(harness)
    harness.storage.delete(output_key(job, 1))
    assert output_key(job, 1) in detail(harness.user.get(f"/v1/jobs/{job}/output"), 502)


def test_an_output_with_another_digest_than_the_queues_is_not_sent(harness: ApiHarness) -> None:
    job = _completed(harness)
    harness.storage.delete(output_key(job, 1))
    harness.publish_output(job, 1, b"something else")
    assert "digest" in detail(harness.user.get(f"/v1/jobs/{job}/output"), 502)


def test_a_damaged_output_never_looks_whole(harness: ApiHarness) -> None:
    job = _completed(harness)
    path = harness.state.settings.storage.folder / output_key(job, 1) / "blocks.pack"
    whole = path.read_bytes()
    end = whole.index(CONTENT[-100:]) + 100
    path.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
    with served(create_app(harness.state)) as client, pytest.raises(httpx.RemoteProtocolError):
        client.get(f"/v1/jobs/{job}/output", headers=harness.user.headers)
    path.unlink()
    assert "gone" in detail(harness.user.get(f"/v1/jobs/{job}/output"), 502)
