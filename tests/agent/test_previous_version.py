"""An agent of an earlier version meets this control, also one upgraded meanwhile; this agent meets an older one.

What the earlier version said was recorded (`previous/README.md`), and its own code reads what is said to it.
"""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from tests.agent.control_harness import Control, ControlTransport, controlled, expect_agent
from tests.agent.fake_clock import FakeClock
from tests.agent.previous import messages as previous

from gleaner.control.queue.database import check_schema, connect, migrate
from gleaner.control.states import Outcome

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "previous" / "exchange.json").read_text())
SAID: list[dict[str, Any]] = RECORDED["exchange"]
UPGRADED_AT = next(at for at, one in enumerate(SAID) if one["path"].endswith("/saved"))
GOAL = 400
MESSAGES: dict[str, tuple[type[previous.VersionedMessage], type[previous.VersionedMessage] | None]] = {
    "register": (previous.Registration, previous.Welcome),
    "beat": (previous.Heartbeat, previous.Orders),
    "claim": (previous.ClaimRequest, previous.Assignments),
    "log": (previous.LogLines, None),
    "checkpointed": (previous.Checkpointed, None),
    "saved": (previous.Saved, None),
    "completed": (previous.Completed, None),
    "farewell": (previous.Deregistration, None),
}
"""The message that each address of the earlier version takes, and its answer, by the last word of the path."""
A_SECOND = 1 / 86_400


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    """As at the recording."""
    with controlled(tmp_path, assumed_mtbf_days=A_SECOND) as made:
        yield made


def database_of_before(folder: Path) -> Path:
    """Return the queue's database as the earlier control had it while the first agent saved its job."""
    file = folder / "previous.db"
    with sqlite3.connect(file) as db:
        db.executescript("\n".join(RECORDED["database"]))
    db.close()
    return file


@pytest.mark.parametrize("upgraded_at", [0, UPGRADED_AT])
def test_an_agent_of_the_version_before_does_its_work_with_this_control(
    control: Control, tmp_path: Path, upgraded_at: int
) -> None:
    """It registers, sends heartbeats, takes a job, saves it now and at its end; a second one completes it."""
    if upgraded_at:
        control.state.engine = connect(f"sqlite:///{database_of_before(tmp_path)}")
        migrate(control.state.engine)
        check_schema(control.state.engine)
    else:
        assert control.submit(str(GOAL)) == 1
    for one in SAID[upgraded_at:]:
        control.clock.advance(one["at_s"] - control.now_s)
        answer = say(control, one)
        assert answer.status_code == one["status"], answer.text
        understood = MESSAGES[verb(one["path"])][1]
        if understood is not None:
            assert understood.model_validate_json(answer.content) == understood.model_validate(one["answer"])
    detail = control.job(1)
    assert (detail.job.outcome, detail.job.exit_code) == (Outcome.SUCCEEDED, 0)
    assert [attempt.restored_from for attempt in detail.attempts] == [None, "1/3"]
    control.in_order(1, GOAL)


def verb(path: str) -> str:
    return path.rpartition("/")[2]


def say(control: Control, one: dict[str, Any]) -> httpx.Response:
    """Send what an agent of the version before has sent."""
    if verb(one["path"]) == "register":
        expect_agent(control.state, one["agent"], end_s=one["body"]["end_s"])
    headers = {"Authorization": f"Bearer secret-of-{one['agent']}"}
    return control.transport.handle_request(
        httpx.Request("POST", f"http://control{one['path']}", headers=headers, json=one["body"])
    )


class ControlOfBefore(httpx.BaseTransport):
    """A control of the version before, as far as one job needs it: it reads with its own code, and answers as recorded.

    A message that it cannot read ends the test.
    """

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._recorded = {(one["agent"], verb(one["path"])): one["answer"] for one in reversed(SAID)}
        self._claimed: set[str] = set()
        self.heard: list[previous.VersionedMessage] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        agent = request.headers["Authorization"].removeprefix("Bearer secret-of-")
        asked = verb(request.url.path)
        if asked not in MESSAGES:
            return httpx.Response(404, json={"detail": "Not Found"})
        message = MESSAGES[asked][0].model_validate_json(request.content)
        self.heard.append(message)
        if MESSAGES[asked][1] is None:
            return httpx.Response(204)
        answer: dict[str, Any] = self._recorded[agent, asked]
        if isinstance(message, previous.Heartbeat):
            answer = answer | {"orders": ["go-on"] * len(message.attempts), "now_s": self._clock.true_s}
        elif isinstance(message, previous.ClaimRequest):
            answer = {"version": 1, "jobs": self._jobs_for(agent, answer["jobs"])}
        return httpx.Response(200, json=answer)

    def _jobs_for(self, agent: str, recorded: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the jobs of an agent's first claim, from the checkpoint that this control was told of."""
        if agent in self._claimed:
            return []
        self._claimed.add(agent)
        saved = [one.checkpoint for one in self.heard if isinstance(one, previous.Saved)]
        return [one | {"checkpoint": saved[-1].model_dump() if saved else None} for one in recorded]


def test_this_agent_does_its_work_with_a_control_of_the_version_before(control: Control) -> None:
    """Control was rolled back while nodes stay upgraded: what the older control does not know is not needed."""
    older = ControlOfBefore(control.clock)
    control.transport = cast("ControlTransport", older)
    control.live(control.brief("a1"))
    saved = [one for one in older.heard if isinstance(one, previous.Saved)]
    assert [(one.checkpoint.attempt, one.checkpoint.number > 0) for one in saved] == [(1, True)]
    control.live(control.agent("a2", lives_s=30))
    (completed,) = (one for one in older.heard if isinstance(one, previous.Completed))
    assert (completed.exit_code, completed.output is not None, completed.log_lines) == (0, True, GOAL + 1)
    assert control.runtime.restores == 1
    assert [type(one) for one in older.heard].count(previous.Deregistration) == 2
