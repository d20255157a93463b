"""The agent's outbox: nothing is lost, nothing overtakes."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.readers.changes import changed
from tests.recorded import recording

from gleaner.agent.messages import (
    Checkpoint,
    Checkpointed,
    ClaimRequest,
    Completed,
    Deregistration,
    Heartbeat,
    LogLines,
    Message,
    NodeFacts,
    Registration,
    Slice,
)
from gleaner.agent.reporting.client import (
    PERIODIC_AT_MOST,
    ControlClient,
    ControlRefused,
    ControlSilent,
    Outbox,
    Report,
)


def lines(first: int) -> LogLines:
    return LogLines(first=first, lines=("x",))


JOB = "/jobs/7/attempts/1"
DONE = Completed(exit_code=0, slice=Slice(started_s=1.0))
NOT_FINAL = (400, 401, 404, 405, 408, 410, 413, 415, 421, 422, 425, 429, 431, 451)


@pytest.mark.parametrize("status", [404, 413, 422])
def test_a_report_that_is_not_taken_holds_up_its_own_attempt_and_the_farewell_and_nothing_else(status: int) -> None:
    heard: list[str] = []
    refuses = True

    def send(path: str, _body: str) -> str:
        if refuses and path == f"{JOB}/checkpointed":
            raise ControlRefused(status, "no")
        heard.append(path)
        return ""

    outbox = Outbox(send)
    outbox.put(f"{JOB}/checkpointed", DONE)
    outbox.put(f"{JOB}/completed", DONE)
    outbox.put(f"{JOB}/log", lines(0))
    outbox.put("/jobs/8/attempts/1/saved", DONE)
    outbox.put("/agents/a/farewell", Deregistration(ended_s=2.0))
    with pytest.raises(ControlSilent, match=rf"{JOB}/checkpointed: {status}"):
        outbox.deliver()
    assert heard == [f"{JOB}/log", "/jobs/8/attempts/1/saved"]
    refuses = False
    outbox.deliver()
    assert heard[2:] == [f"{JOB}/checkpointed", f"{JOB}/completed", "/agents/a/farewell"]


@pytest.mark.parametrize(("status", "stays"), [(404, True), (422, False), (403, False)])
def test_lines_of_output_that_are_not_taken_hold_up_no_ending_and_no_farewell(status: int, stays: bool) -> None:
    heard: list[str] = []

    def send(path: str, _body: str) -> str:
        if path.endswith("/log"):
            raise ControlRefused(status, "no")
        heard.append(path)
        return ""

    outbox = Outbox(send)
    outbox.put(f"{JOB}/log", lines(0))
    outbox.put(f"{JOB}/completed", DONE)
    outbox.put("/agents/a/farewell", Deregistration(ended_s=2.0))
    with pytest.raises(ControlSilent) if stays else nullcontext():
        outbox.deliver()
    assert heard == [f"{JOB}/completed", "/agents/a/farewell"]
    assert outbox.waits_for(f"{JOB}/log") == stays


def test_lines_that_are_too_large_for_something_in_between_are_sent_in_smaller_pieces() -> None:
    heard: list[tuple[int, int]] = []

    def send(_path: str, body: str) -> str:
        told = LogLines.model_validate_json(body)
        if len(told.lines) > 3:
            raise ControlRefused(413, "the body is too large")
        heard.append((told.first, len(told.lines)))
        return ""

    outbox = Outbox(send)
    outbox.put(f"{JOB}/log", LogLines(first=5, lines=("x",) * 10), log_bytes=101)
    outbox.put(f"{JOB}/log", LogLines(first=15, lines=("y",)))
    outbox.deliver()
    assert [number for first, count in heard for number in range(first, first + count)] == list(range(5, 16))
    assert len(outbox) == 0


answers = st.sampled_from([204, 204, 204, *NOT_FINAL, 403, 409, 500, 502])
reports = st.lists(
    st.sampled_from([f"/jobs/{job}/attempts/1/{verb}" for job in (1, 2) for verb in ("log", "checkpointed", "saved")])
    | st.just("/agents/a/farewell"),
    max_size=12,
)


@given(reports, st.lists(answers, max_size=60))
def test_whatever_control_answers_nothing_is_lost_and_no_attempts_reports_change_their_order(
    paths: list[str], answered: list[int]
) -> None:
    """In the end control takes everything; until then any answer may come to any try."""
    ended: list[tuple[str, int]] = []
    to_come = answered[:]

    def send(path: str, body: str) -> str:
        status = to_come.pop(0) if to_come else 204
        if status >= 500:
            raise ControlSilent("away")
        is_final = status in (403, 409) or (status == 422 and path.endswith("/log"))
        if status == 204 or is_final:
            ended.append((path, json.loads(body).get("first", json.loads(body).get("ended_s"))))
        if status != 204:
            raise ControlRefused(status, "no")
        return ""

    outbox = Outbox(send)
    for number, path in enumerate(paths):
        outbox.put(path, Deregistration(ended_s=number) if path.endswith("farewell") else lines_of(path, number))
    while len(outbox):
        with suppress(ControlSilent):
            outbox.deliver()
    assert sorted(ended) == sorted((path, number) for number, path in enumerate(paths))
    for sequence in {Report(path, lines_of(path, 0)).sequence for path in paths}:
        mine = [number for path, number in ended if Report(path, lines_of(path, 0)).sequence == sequence]
        assert mine == sorted(mine)
    told = [path for path, _ in ended]
    for at, path in enumerate(told):
        if path.endswith("farewell"):
            before = paths[: next(number for number, one in enumerate(paths) if (one, number) == ended[at])]
            assert all(one in told[:at] for one in before if not one.endswith("log"))


class Reported(Message):
    """A report that is known by its number."""

    first: int


def lines_of(path: str, number: int) -> Message:
    return lines(number) if path.endswith("/log") else Reported(first=number)


@contextmanager
def answering(status: int, **headers: str) -> Iterator[ControlClient]:
    """A client of something that answers everything so: a proxy, for example."""

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield ControlClient(urls=[url], name="a", token="t", ca_file=None, timeout_s=5)
        server.shutdown()


@pytest.mark.parametrize("status", [200, 202, 302, 401, 403, 404, 409, 413, 422, 429, 500, 503])
def test_only_controls_own_answer_to_a_report_makes_it_heard(status: int) -> None:
    with answering(status, Location="http://127.0.0.1:1/") as client:
        outbox = Outbox(client.report)
        outbox.put(f"{JOB}/completed", DONE)
        with pytest.raises(ControlSilent):
            outbox.deliver()
    assert len(outbox) == 1
    with answering(204) as client:
        outbox.send = client.report
        outbox.deliver()
    assert len(outbox) == 0


def test_a_proxy_of_the_nodes_environment_never_sees_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:1")  # nobody listens
    with answering(204) as client:
        client.report(f"{JOB}/completed", DONE.model_dump_json())


def test_reports_on_the_storage_survive_a_power_cut_with_the_folders_that_lead_to_them(tmp_path: Path) -> None:
    """Each file is synced before it has its name, and the folders after that, up to the first that was there."""
    outbox = Outbox(lambda _path, _body: "")
    outbox.put("/0", lines(0))
    (tmp_path / "agents").mkdir()
    reports = tmp_path / "agents" / "a" / "reports"
    with recording() as calls:
        outbox.keep("", reports)
    assert ("fsync", reports.parent) in calls.all, "the folder's own entry"
    assert ("fsync", reports.parent.parent) in calls.all


def checkpointed(number: int) -> Checkpointed:
    made = Checkpoint(attempt=1, number=number, digest="sha256:" + "0" * 64, size_bytes=1, log_lines=0)
    return Checkpointed(checkpoint=made, slice=Slice(started_s=1.0))


def kept(folder: Path) -> list[str]:
    """Return what is on the storage, in the order in which control takes it: the attempt, and which report."""
    found: list[str] = []
    for file in sorted(folder.glob("[0-9]*.json")):
        left = json.loads(file.read_text())
        body = json.loads(left["body"])
        number = body["checkpoint"]["number"] if "checkpoint" in body else body.get("first", "")
        found.append(f"{left['path'].removeprefix('/jobs/')} {number}")
    return found


def test_what_must_not_be_lost_with_the_agent_is_on_the_storage_in_order_with_its_output_and_once(
    tmp_path: Path,
) -> None:
    outbox = Outbox(lambda _path, _body: "")
    reports = tmp_path / "agents" / "a" / "reports"
    outbox.put("/jobs/8/attempts/1/checkpointed", checkpointed(1))
    outbox.put(f"{JOB}/log", lines(0))
    outbox.put(f"{JOB}/checkpointed", checkpointed(1))
    outbox.keep(f"{JOB}/", reports)
    first = kept(reports)
    outbox.put(f"{JOB}/log", lines(1))
    outbox.put(f"{JOB}/checkpointed", checkpointed(2))
    with recording() as calls:
        outbox.keep(f"{JOB}/", reports)
    assert first == ["7/attempts/1/log 0", "7/attempts/1/checkpointed 1"]
    assert kept(reports) == [*first, "7/attempts/1/log 1", "7/attempts/1/checkpointed 2"]
    written = [path for what, path in calls.all if what == "rename"]
    assert len(written) == 2, "what is there is not written anew"
    for name in written:
        draft = name.with_name(f"{name.name}.new")
        assert calls.index(("fsync", draft)) < calls.index(("rename", name)) < calls.last(("fsync", reports))
    assert len(outbox) == 5, "control is told all the same"


def test_what_control_has_heard_since_does_not_stay_on_the_storage(tmp_path: Path) -> None:
    outbox = Outbox(lambda _path, _body: "")
    outbox.put(f"{JOB}/checkpointed", checkpointed(1))
    outbox.keep(f"{JOB}/", tmp_path)
    outbox.deliver()
    outbox.put(f"{JOB}/checkpointed", checkpointed(2))
    outbox.keep(f"{JOB}/", tmp_path)
    assert kept(tmp_path) == ["7/attempts/1/checkpointed 2"]


def test_what_is_overtaken_by_newer_saves_does_not_stay_on_the_storage(tmp_path: Path) -> None:
    """Control refuses a save that is older than one that it knows, and would set it aside for an admin."""
    outbox = Outbox(lambda _path, _body: "")
    for number in range(1, PERIODIC_AT_MOST + 3):
        outbox.put(f"{JOB}/checkpointed", checkpointed(number))
        outbox.keep(f"{JOB}/", tmp_path)
    numbers = range(3, PERIODIC_AT_MOST + 3)
    assert kept(tmp_path) == [f"7/attempts/1/checkpointed {number}" for number in numbers]


def test_control_may_have_taken_it_from_there_and_removed_the_folder(tmp_path: Path) -> None:
    outbox = Outbox(lambda _path, _body: "")
    reports = tmp_path / "reports"
    for number in (1, 2):
        outbox.put(f"{JOB}/checkpointed", checkpointed(number))
        outbox.keep(f"{JOB}/", reports)
        for file in reports.iterdir():
            file.unlink()
        reports.rmdir()
    outbox.put(f"{JOB}/checkpointed", checkpointed(3))
    outbox.keep(f"{JOB}/", reports)
    assert kept(reports) == ["7/attempts/1/checkpointed 3"]


def test_what_is_left_at_the_end_goes_to_the_storage_after_what_was_kept(tmp_path: Path) -> None:
    outbox = Outbox(lambda _path, _body: "")
    outbox.put("/jobs/8/attempts/1/log", lines(0))
    outbox.put(f"{JOB}/checkpointed", checkpointed(1))
    outbox.keep(f"{JOB}/", tmp_path)
    outbox.put(f"{JOB}/completed", DONE)
    outbox.put("/agents/a/farewell", Deregistration(ended_s=1.0))
    outbox.keep("", tmp_path)
    assert [line.rpartition(" ")[0] for line in kept(tmp_path)] == [
        "7/attempts/1/checkpointed", "8/attempts/1/log", "7/attempts/1/completed", "/agents/a/farewell"
    ]  # fmt: skip


def test_after_a_write_that_failed_nothing_is_on_the_storage_before_what_precedes_it(tmp_path: Path) -> None:
    """Control would take the later save, and then refuse the earlier one whenever the agent tells it."""
    outbox = Outbox(lambda _path, _body: "")
    outbox.put(f"{JOB}/checkpointed", checkpointed(1))
    (tmp_path / "reports").touch()
    with pytest.raises(OSError, match="reports"):
        outbox.keep(f"{JOB}/", tmp_path / "reports")
    (tmp_path / "reports").unlink()
    outbox.put(f"{JOB}/checkpointed", checkpointed(2))
    outbox.keep(f"{JOB}/", tmp_path / "reports")
    assert kept(tmp_path / "reports") == [f"7/attempts/1/checkpointed {number}" for number in (1, 2)]


ASSIGNMENT = {
    "job": 7, "attempt": 1, "group": "g", "name": "j", "image": "i", "command": ["x"], "cpus": 1, "memory_mib": 100,
    "checkpoint": {"attempt": 1, "number": 1, "digest": "sha256:" + "0" * 64, "size_bytes": 5, "log_lines": 0},
}  # fmt: skip
ANSWERS = tuple(
    json.dumps(one).encode()
    for one in (
        {"heartbeat_s": 5.0, "lease_s": 60, "rates": {"saves": [[100.0, 1.0]]}},
        {"jobs": [ASSIGNMENT]},
        {"orders": ["go-on", "drop"], "vacate": False},
        {"detail": "no"},
    )
)
FACTS = NodeFacts(node="n1", cpus=1, memory_mib=100, runtime="none", criu="", kernel="6", architecture="x")
CALLS: dict[str, Callable[[ControlClient], object]] = {
    "register": lambda client: client.register(Registration(facts=FACTS, end_s=1.0)),
    "claim": lambda client: client.claim(ClaimRequest(cpus=1, memory_mib=100)),
    "beat": lambda client: client.send_heartbeat(Heartbeat()),
    "report": lambda client: client.report("/jobs/7/attempts/1/saved", "{}"),
}


@pytest.mark.parametrize("call", CALLS)
@given(
    body=changed(ANSWERS) | st.binary(max_size=50) | st.sampled_from([b"[" * 100_000, b"9" * 5000]),
    status=st.sampled_from([200, 200, 200, 204, 307, 403, 409, 422, 500]),
    headers=st.sampled_from([{}, {"Content-Type": "text/html; charset=nonsense"}, {"Content-Encoding": "gzip"}]),
)
def test_no_answer_raises_anything_but_silence_or_a_refusal(
    call: str, body: bytes, status: int, headers: dict[str, str]
) -> None:
    transport = httpx.MockTransport(lambda _request: httpx.Response(status, content=body, headers=headers))
    client = ControlClient(
        urls=["http://control"], name="a", token="t", ca_file=None, timeout_s=60, transport=transport
    )
    with suppress(ControlSilent, ControlRefused):
        CALLS[call](client)
