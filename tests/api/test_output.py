"""A job's output as a stream."""

import os

import httpx
import pytest
from tests.api.house import House, detail, served

from gleaner.agent.storage.protocol import output_key

CONTENT = os.urandom(3 * 2**20)


def _completed(house: House, content: bytes = CONTENT, part: str = "folder.tar") -> int:
    job = house.user.submit()
    agent = house.agent()
    agent.claim()
    assert agent.completed(job, 1, house.publish_output(job, 1, content, part)).status_code == 204
    return job


@pytest.mark.parametrize("content", [CONTENT, b""])
def test_the_output_arrives_byte_for_byte(house: House, content: bytes) -> None:
    answer = house.user.get(f"/v1/jobs/{_completed(house, content)}/output")
    assert answer.status_code == 200
    assert answer.content == content
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["content-length"] == str(len(content))


def test_no_output_yet_is_not_found_and_says_where_the_job_stands(house: House) -> None:
    job = house.user.submit()
    assert detail(house.user.get(f"/v1/jobs/{job}/output"), 404) == f"job {job} has no output: it is New"
    house.user.post(f"/v1/jobs/{job}/cancel")
    assert detail(house.user.get(f"/v1/jobs/{job}/output"), 404) == f"job {job} has no output: it is cancelled"


def test_an_output_that_is_gone_is_one_line(house: House) -> None:
    job = _completed(house)
    house.storage.delete(output_key(job, 1))
    assert output_key(job, 1) in detail(house.user.get(f"/v1/jobs/{job}/output"), 502)


def test_an_output_with_another_digest_than_the_queues_is_not_sent(house: House) -> None:
    job = _completed(house)
    house.storage.delete(output_key(job, 1))
    house.publish_output(job, 1, b"something else")
    assert "digest" in detail(house.user.get(f"/v1/jobs/{job}/output"), 502)


def test_an_output_without_a_folder_is_one_line(house: House) -> None:
    assert "folder.tar" in detail(house.user.get(f"/v1/jobs/{_completed(house, part='x.tar')}/output"), 502)


def test_a_damaged_output_never_looks_whole(house: House) -> None:
    job = _completed(house)
    path = house.site.settings.storage.folder / output_key(job, 1) / "blocks.pack"
    whole = path.read_bytes()
    end = whole.index(CONTENT[-100:]) + 100
    path.write_bytes(whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:])
    with served(house.site) as client, pytest.raises(httpx.RemoteProtocolError):
        client.get(f"/v1/jobs/{job}/output", headers=house.user.headers)
    path.unlink()
    assert "gone" in detail(house.user.get(f"/v1/jobs/{job}/output"), 502)


def test_a_storage_folder_that_is_gone_is_one_line_that_says_so(house: House) -> None:
    job = _completed(house)
    folder = house.site.settings.storage.folder
    folder.rename(folder.with_name("elsewhere"))
    assert str(folder) in detail(house.user.get(f"/v1/jobs/{job}/output"), 502)
    assert house.user.get(f"/v1/jobs/{job}").status_code == 200
