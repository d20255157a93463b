"""Record how the agent and the control of one version talk: the data of `tests/agent/test_previous_version.py`.

It is run in that version's tree, with its own code and its own harness: README.md says how.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from tests.agent.control_harness import FAR_S, Control, controlled

A_SECOND = 1 / 86_400
"""Control thinks that agents are lost all the time, so a job is saved about once a second."""
NODE = {"node": "n1", "kernel": "6.12.1", "family": "ours", "cpu_features": ("avx", "sse")}


def main(commit: str, file: Path) -> None:
    """Let a job be computed by two agents, and write all that was said."""
    said: list[dict[str, Any]] = []
    database: list[str] = []
    with tempfile.TemporaryDirectory() as folder, controlled(Path(folder), assumed_mtbf_days=A_SECOND) as control:
        pass_on = control.transport.handle_request

        def listen(request: httpx.Request) -> httpx.Response:
            path = request.url.path
            if path.endswith("/saved"):
                database.extend(dump(control))
            at_s = control.now_s
            answer = pass_on(request)
            said.append(
                {
                    "at_s": at_s,
                    "agent": request.headers["Authorization"].removeprefix("Bearer secret-of-"),
                    "path": path,
                }
                | {"body": json.loads(request.content), "status": answer.status_code}
                | {"answer": json.loads(answer.content) if answer.content else None}
            )
            return answer

        control.transport.handle_request = listen  # type: ignore[method-assign]
        job = control.submit("400")
        first = control.agent("a1", lives_s=FAR_S, node=NODE, periodic_saves="auto", shortest_period_s=0.5)
        control.once(lambda: bool(control.job(job).checkpoints), lambda: control.end_soon(first, computes_s=1))
        control.live(first)
        control.live(control.agent("a2", lives_s=30, node=NODE, periodic_saves=False))
        assert control.job(job).job.state == "Complete"
    exchange = ",\n".join(json.dumps(one) for one in said)
    sql = ",\n".join(json.dumps(line) for line in database)
    file.write_text(f'{{"commit": {json.dumps(commit)},\n"exchange": [\n{exchange}\n],\n"database": [\n{sql}\n]}}\n')


def dump(control: Control) -> list[str]:
    """Return the queue's database as SQL."""
    connection = control.state.engine.raw_connection()
    try:
        return list(connection.driver_connection.iterdump())  # type: ignore[union-attr]
    finally:
        connection.close()


main(sys.argv[1], Path(sys.argv[2]))
