"""The agent's outbox: nothing is lost, nothing overtakes."""

import json
from pathlib import Path

import pytest

from gleaner.agent.client import ControlRefused, ControlSilent, Outbox
from gleaner.agent.protocol import LogLines


def lines(first: int) -> LogLines:
    return LogLines(first=first, lines=("x",))


def test_reports_wait_in_order_while_control_is_silent() -> None:
    heard: list[str] = []
    silent = True

    def send(path: str, body: str) -> str:
        if silent:
            raise ControlSilent("away")
        heard.append(f"{path} {json.loads(body)['first']}")
        return ""

    outbox = Outbox(send)
    outbox.put("/a", lines(0))
    outbox.put("/b", lines(1))
    with pytest.raises(ControlSilent):
        outbox.deliver()
    assert len(outbox) == 2
    silent = False
    outbox.deliver()
    assert heard == ["/a 0", "/b 1"]
    assert len(outbox) == 0


def test_a_refused_report_does_not_hold_up_the_next() -> None:
    heard: list[str] = []

    def send(path: str, _body: str) -> str:
        if path == "/old":
            raise ControlRefused(409, "not the current attempt")
        heard.append(path)
        return ""

    outbox = Outbox(send)
    outbox.put("/old", lines(0))
    outbox.put("/new", lines(0))
    outbox.deliver()
    assert heard == ["/new"]


def test_what_is_left_at_the_end_goes_to_the_storage_in_order(tmp_path: Path) -> None:
    outbox = Outbox(lambda _path, _body: "")
    for number in range(3):
        outbox.put(f"/{number}", lines(number))
    assert outbox.spill_into(tmp_path / "reports") == 3
    found = [json.loads(path.read_text()) for path in sorted((tmp_path / "reports").iterdir())]
    assert [one["path"] for one in found] == ["/0", "/1", "/2"]
    assert json.loads(found[2]["body"])["first"] == 2
