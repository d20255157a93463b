"""The requests of the demos and of the cluster's tests to control."""

from collections.abc import Callable

import httpx
import pytest
from demo import cluster

Answers = Callable[[httpx.Request], httpx.Response]


def answered_by(monkeypatch: pytest.MonkeyPatch, answers: Answers) -> None:
    client = httpx.Client(base_url="https://head", transport=httpx.MockTransport(answers))
    monkeypatch.setattr(cluster, "_client", lambda: client)
    monkeypatch.setattr(cluster, "ASK_AGAIN_S", 0.0)


@pytest.mark.parametrize(("method", "asked"), [("GET", 3), ("POST", 1)])
def test_one_slow_answer_of_a_busy_machine_ends_no_demo_and_nothing_is_done_twice(
    monkeypatch: pytest.MonkeyPatch, method: str, asked: int
) -> None:
    seen: list[str] = []

    def answers(request: httpx.Request) -> httpx.Response:
        seen.append(request.method)
        if len(seen) == 1:
            raise httpx.ReadTimeout("no answer in time")
        return httpx.Response(503, text="busy") if len(seen) == 2 else httpx.Response(200, json={"total": 7})

    answered_by(monkeypatch, answers)
    if method == "GET":
        assert cluster.api(method, "/jobs") == {"total": 7}
    else:
        with pytest.raises(httpx.ReadTimeout):
            cluster.api(method, "/jobs")
    assert len(seen) == asked


def test_a_no_is_a_no_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answered_by(monkeypatch, lambda _: httpx.Response(404, text="there is no job 9"))
    with pytest.raises(cluster.ClusterError, match="there is no job 9"):
        cluster.api("GET", "/jobs/9")
