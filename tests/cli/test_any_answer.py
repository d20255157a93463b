"""Answers that are not of control: each command ends with one line, or shows what it was told."""

import json
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.cli.cli_harness import answering, become_user
from tests.effort import examples
from tests.readers.changes import HOPELESS, changed

from gleaner.client.unpack import Fetched
from gleaner.control.cli import app, render
from gleaner.control.cli.output import Answer

STATUS = dict.fromkeys(("new", "running", "saved", "succeeded", "failed", "cancelled", "held"), 1) | {"campaign": None}
JOB = {
    "id": 7, "name": "pi", "group": "atlas", "campaign": 1, "index": 3, "state": "New", "outcome": None,
    "exit_code": None, "held": False, "priority": 0, "cpus": 1, "memory_mib": 512, "attempt": 2, "node": "n1",
    "submitted_s": 1.5e9, "ended_s": None, "submitter": "alice",
}  # fmt: skip
ATTEMPT = {
    "attempt": 1, "agent": "a", "node": "n1", "claimed_s": 1.5e9, "ended_s": 1.6e9, "ending": "lost", "detail": "why",
    "started_s": 1.5e9, "from_attempt": 1, "from_number": 1, "restore_s": 0.5, "compute_s": 5.0,
    "save_s": 1.0,
}  # fmt: skip
SPEC: dict[str, Any] = {
    "name": "pi", "image": "a/b", "command": ["x"], "environment": {"A": "b"}, "retries": 1, "needs_at_least_s": 60,
    "compute_limit_s": 60,
}  # fmt: skip
DETAIL: dict[str, Any] = {
    "job": JOB, "spec": SPEC, "failures": 0, "waits_because": "no node is free", "attempts": [ATTEMPT],
    "output_bytes": 5, "events": [{"at_s": 1.5e9, "what": "claim", "detail": "d"}],
    "checkpoints": [{"attempt": 1, "number": 1, "size_bytes": 5, "published_s": 1.5e9}],
}  # fmt: skip
DRAIN: dict[str, Any] = {
    "id": 1, "task": "dry run", "phase": "looked", "nodes": ["n1"], "by": "root", "asked_s": 1.5e9, "ended_s": 1.6e9,
    "said": "why",
    "jobs": [
        {
            "job": "7", "user": "alice", "deed": "vacate", "nodes": ["n1"], "until_s": 1.7e9,
            "at_first": 1, "left": 1, "told_s": None, "gone_s": None,
        }
    ],
}  # fmt: skip
NODES: dict[str, Any] = {
    "read_s": 1.5e9, "stale": False, "problem": "why", "boundary_s": 1.6e9,
    "nodes": [
        {
            "name": "n1", "cpus": 6, "memory_mib": 4000, "state": "idle", "idle": True, "regular": False, "agent": "a",
            "failures": 1, "excluded_until_s": 1.9e9, "distrusted": "why", "drained": "by root",
        }
    ],
}  # fmt: skip
AGENT = {
    "name": "a", "node": "n1", "phase": "live", "scheduler_id": "7", "end_s": 1.5e9, "submitted_s": 1.5e9,
    "registered_s": 1.5e9, "ended_s": None, "jobs": [7], "reason": "",
}  # fmt: skip
OWNERS = {
    "mode": "on", "read_s": 1.5e9, "problem": "why", "cpus": 6, "idle_cpus": 1,
    "owners": [
        {"owner": "o", "entitled_cpus": 6, "used_cpus": 1, "leaving_cpus": 0, "waiting_jobs": 1, "waiting_cpus": 2}
    ],
    "waiting": [
        {
            "job": "7", "owner": "o", "job_class": "preemptible", "cpus": 1, "released": False, "verdict": "hold",
            "victims": ["8"], "why": "w",
        }
    ],
}  # fmt: skip
REPORT: dict[str, Any] = {
    "month": "2026-10", "begin_s": 1.5e9, "end_s": 1.6e9, "seen_h": 1.5, "regular_node_h": 1.0, "agents_node_h": 2.0,
    "idle_node_h": 3.0, "idle_without_node_h": 5.0, "unusable_node_h": 0.0, "harvested_core_h": 7.0,
    "saving_core_h": 0.5, "restoring_core_h": 0.25, "lost_core_h": 0.125, "energy_kwh": 1.5, "group": None,
    "rows": [
        {
            "group": "atlas", "user": "alice", "slices": 3, "harvested_core_h": 7.0, "saving_core_h": 0.5,
            "restoring_core_h": 0.25, "lost_core_h": 0.125,
        }
    ],
}  # fmt: skip
TOKEN = {
    "id": "t", "role": "user", "name": "alice", "group": "atlas", "manager": False, "issued_s": 1.5e9,
    "expires_s": 1.9e9, "revoked_s": None,
}  # fmt: skip
DECISION = {
    "id": 1, "at_s": 1.5e9, "kind": "hold", "policy": "entitlements 1", "acted": True, "subjects": ["job 7"],
    "given": {"a": [1]}, "answer": {"b": {"c": 1}},
}  # fmt: skip
IMAGE = {
    "name": "pi:1", "group": "atlas", "image_id": "sha256:" + "0" * 64, "architecture": "amd64", "size_bytes": 5,
    "jobs": 1, "pushed_s": 1.5e9, "pusher": "alice",
}  # fmt: skip
COMMANDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "status": (("status",), STATUS),
    "list": (("list",), {"jobs": [JOB], "total": 1}),
    "show": (("show", "7"), DETAIL),
    "logs": (("logs", "7"), {"first": 0, "lines": ["caf\udce9", "b"], "ended": True}),
    "hold": (("hold", "7"), JOB),
    "agents": (("agents",), [AGENT]),
    "nodes": (("nodes",), NODES),
    "drain": (("drain", "n1", "--dry-run"), DRAIN),
    "owners": (("owners",), OWNERS),
    "report": (("report", "--month", "2026-10"), REPORT),
    "explain": (("explain", "1"), DECISION),
    "tokens": (("token", "list"), [TOKEN]),
    "images": (("image", "list"), [IMAGE]),
    "as JSON": (("show", "7", "--json"), DETAIL),
}


@dataclass
class AnyControl:
    """It answers every request with the same bytes."""

    body: bytes = b""
    status: int = 200


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyControl]:
    told = AnyControl()
    with answering(lambda *_: (told.status, told.body)) as url, pytest.MonkeyPatch.context() as patch:
        become_user(patch, tmp_path_factory.mktemp("control"), url)
        yield told


def run(control: AnyControl, command: str, body: bytes, status: int = 200) -> int:
    """Return the exit code of a command that is answered so."""
    control.body, control.status = body, status
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = app.run(list(COMMANDS[command][0]))
    if code not in (0, 1) or not out.getvalue():
        assert err.getvalue().count("\n") == 1, err.getvalue()
    assert "Traceback" not in err.getvalue()
    return code


@pytest.mark.parametrize("command", COMMANDS)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), status=st.sampled_from([200, 200, 200, 401, 404, 422, 500]))
def test_any_answer_is_shown_or_is_one_line(
    control: AnyControl, command: str, data: st.DataObject, status: int
) -> None:
    good = json.dumps(COMMANDS[command][1]).encode()
    run(control, command, data.draw(changed((good,)) | st.sampled_from(HOPELESS) | st.binary(max_size=40)), status)


@pytest.mark.parametrize(
    "words",
    [
        "show {}", "why {}", "explain {}", "logs {}", "hold {}", "cancel {}", "priority 7 {}", "list --group {}",
        "migrate 7 --to {}", "nodes --forget {}", "drain {}", "resume {}", "image remove {}", "image push {} pi:1",
        "token create user {}", "submit --image {}", "submit --image a/b -- {}", "submit {}", "results 7 --to {}",
        "simulate run {}", "simulate replay {}", "simulate tune {}", "{}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("odd", ["caf\udce9", "n" * 20_000, "9" * 5000, "²"], ids=["bytes", "long", "huge", "²"])
def test_an_argument_that_nobody_expects_is_one_line(
    control: AnyControl, words: str, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.body, control.status = b'{"detail": "no"}', 404
    monkeypatch.chdir(tmp_path)
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert app.run([word.format(odd) for word in words.split()]) != 0
    assert err.getvalue().count("\n") == 1, err.getvalue()


def test_a_name_that_is_no_utf8_is_escaped_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    render.show(Answer(Fetched(job=7, folder="caf\udce9", files=0, size_bytes=0, skipped=()), as_json=True))
    assert json.loads(capsys.readouterr().out)["folder"] == "caf\udce9"
