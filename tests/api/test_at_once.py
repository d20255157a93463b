"""The same submission several times, also at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from httpx import Response
from sqlalchemy import Engine
from tests.api.api_harness import ApiHarness, Caller, control_on, detail

from gleaner.control.queue import retention
from gleaner.control.settings import Settings


@pytest.fixture
def harness(queue_engine: Engine, tmp_path: Path) -> Iterator[ApiHarness]:
    """Control on each database."""
    with control_on(queue_engine, tmp_path) as opened:
        yield opened


def test_the_same_submission_with_the_same_key_has_one_answer_for_a_day(harness: ApiHarness) -> None:
    body: dict[str, Any] = {"job": {"name": "pi", "image": "gleaner/pi"}, "indices": [2, 0]}

    def submitted(caller: Caller, key: str = "8e03978e-40d5-43dd-bc93", **changed: object) -> Response:
        headers = caller.headers | {"Idempotency-Key": key}
        answer: Response = caller.client.post("/v1/jobs", json=body | changed, headers=headers)
        return answer

    too_long = {"job": body["job"] | {"needs_at_least_s": 10**6}}
    assert submitted(harness.user, **too_long).status_code == 422  # what is refused takes no key
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(submitted, [harness.user] * 4))
    assert [answer.status_code for answer in answers] == [201] * 4
    assert [answer.json() for answer in answers] == [answers[0].json()] * 4
    assert sorted(answers[0].json()["jobs"]) == [1, 2]
    assert detail(submitted(harness.user, hold=True), 409) == (
        "this Idempotency-Key came with another submission: send a new key"
    )
    assert "Idempotency-Key" in detail(submitted(harness.user, key="short"), 422)
    for caller, key in ((harness.caller("user", "bob", "atlas"), {}), (harness.user, {"key": "another-key-of-alice"})):
        assert submitted(caller, **key).json()["campaign"] > 1
    remove_old_rows = partial(retention.remove_old_rows, harness.state.engine, harness.state.writing)
    remove_old_rows(Settings(), harness.now_s + 86_000)
    assert submitted(harness.user).json() == answers[0].json()
    remove_old_rows(Settings(), harness.now_s + 87_000)
    assert submitted(harness.user).json()["campaign"] > 1
