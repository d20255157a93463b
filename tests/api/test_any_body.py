"""A body may hold anything: control answers in one line, and what it has taken it can store and show."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.api_harness import FACTS, SLICE, START_S, Agent, Caller, control_on
from tests.api.uploads import put_part
from tests.databases import new_sqlite
from tests.effort import examples
from tests.made_images import MadeImage
from tests.readers.changes import HOPELESS, changed

from gleaner.control.queue import secret_key
from gleaner.control.queue.database import connect, migrate
from gleaner.control.settings import ClusterSettings

DIGEST = "sha256:" + "0" * 64
CHECKPOINT = {
    "attempt": 1,
    "number": 1,
    "digest": DIGEST,
    "size_bytes": 5,
    "log_lines": 0,
    "open_lines": {"stdout": "YQ=="},
}
MEASURED = {"memory_bytes": 5, "stored_bytes": 5, "took_s": 1.5, "expected_s": 1.0, "way": "shim"}
JOB = {
    "name": "pi", "image": "gleaner/pi", "command": ["run", "café"], "environment": {"A": "b"}, "retry_on": [75],
    "compute_limit_s": 60, "saves_itself": {"signal": "SIGTERM", "exit_code": 85},
}  # fmt: skip
ROUTES: dict[str, tuple[str, Any]] = {
    "/v1/jobs": ("user", {"job": JOB, "indices": [1, 2], "hold": True}),
    "/v1/images": ("user", MadeImage().push()),
    "/v1/nodes/drain": ("admin", {"nodes": ["n[1-2]"], "spanning": "wait", "leave_others": True, "dry_run": True}),
    "/v1/nodes/resume": ("admin", {"nodes": ["n1"]}),
    "/v1/secrets": ("user", {"name": "eos", "url": "https://eos.example.org/", "value": "t0ken", "group": "atlas"}),
    "/v1/tokens": ("admin", {"role": "user", "name": "bob", "group": "atlas", "days": 1}),
    "/v1/jobs/1/migrate": ("admin", {"to": "n2"}),
    "/v1/agents/agent-1/register": ("agent", {"facts": FACTS | {"cpu_features": ["avx"]}, "end_s": START_S + 60}),
    "/v1/agents/agent-1/claim": ("agent", {"cpus": 0, "memory_mib": 1, "most": 1, "left_s": 5.0}),
    "/v1/agents/agent-1/beat": ("agent", {"attempts": [{"job": 1, "attempt": 1}]}),
    "/v1/jobs/1/attempts/1/log": ("agent", {"first": 0, "lines": ["a", "b"]}),
    "/v1/jobs/1/attempts/1/checkpointed": ("agent", {"checkpoint": CHECKPOINT, "slice": SLICE, "measured": MEASURED}),
    "/v1/jobs/1/attempts/1/return": ("agent", {"why": "unstarted", "detail": "why", "slice": SLICE}),
    "/v1/jobs/1/attempts/1/completed": ("agent", {"exit_code": 1, "reason": "why", "slice": SLICE}),
}
SHOWN = ("/v1/jobs", "/v1/jobs/1", "/v1/jobs/1/log", "/v1/status")
SHOWN_TO_ADMINS = ("/v1/agents", "/v1/nodes", "/v1/tokens", "/v1/drains/1", "/metrics")


@contextmanager
def callers_of(url: str, folder: Path) -> Iterator[dict[str, Caller]]:
    """Yield a user, an admin, and an agent that has the first job."""
    engine = connect(url)
    migrate(engine)
    with control_on(engine, folder, cluster=ClusterSettings(backend="slurm")) as harness:
        secret_key.make(folder / "secrets.key")
        agent: Agent = harness.agent(architecture="x86_64")
        harness.user.submit()
        agent.claim()
        assert harness.admin.post("/v1/nodes/drain", {"nodes": ["n1"], "dry_run": True}).status_code < 300
        image = MadeImage()
        assert put_part(harness.user, "images", image.image_id, image.stored, len(image.stored)).status_code < 300
        yield {"user": harness.user, "admin": harness.admin, "agent": agent}


@pytest.fixture(
    scope="module", params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.extended])]
)
def callers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Caller]]:
    """Callers of one queue for all bodies: what it has taken stays there."""
    folder = tmp_path_factory.mktemp("any-body")
    is_sqlite = request.param == "sqlite"
    url = new_sqlite(folder) if is_sqlite else request.getfixturevalue("postgres_server").create("any_body")
    with callers_of(url, folder) as found:
        yield found


def send(callers: dict[str, Caller], path: str, body: bytes) -> int:
    """Send it, and check the answer: a line for a person, or what was asked for."""
    caller = callers[ROUTES[path][0]]
    headers = caller.headers | {"Content-Type": "application/json"}
    answer = caller.client.post(path, content=body, headers=headers)
    assert answer.status_code < 500, (path, body[:300], answer.text)
    if answer.status_code >= 400:
        assert "\n" not in answer.json()["detail"]
    return answer.status_code


def check_all_is_shown(callers: dict[str, Caller]) -> None:
    for role, paths in (("user", SHOWN), ("admin", SHOWN_TO_ADMINS)):
        for path in paths:
            answer = callers[role].get(path)
            assert answer.status_code == 200, (path, answer.text)


def test_what_is_good_is_taken(sqlite_url: str, tmp_path: Path) -> None:
    with callers_of(sqlite_url, tmp_path) as callers:
        for path, (_, good) in ROUTES.items():
            assert send(callers, path, json.dumps(good).encode()) in {200, 201, 202, 204, 409}, path


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_body_is_answered_and_what_was_taken_is_shown(
    callers: dict[str, Caller], path: str, data: st.DataObject
) -> None:
    good = (json.dumps(ROUTES[path][1]).encode(), json.dumps(ROUTES[path][1], ensure_ascii=False).encode())
    if send(callers, path, data.draw(changed(good) | st.binary(max_size=50))) < 300:
        check_all_is_shown(callers)


@pytest.mark.parametrize("body", HOPELESS, ids=lambda body: repr(body[:12]))
def test_a_hopeless_body_is_refused_by_every_call(callers: dict[str, Caller], body: bytes) -> None:
    assert max(send(callers, path, body) for path in ROUTES) in {413, 422}
