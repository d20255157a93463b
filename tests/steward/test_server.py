"""The steward at its socket, with the real client; Slurm's programs are faked as answers."""

import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.steward import facts

from gleaner.control.cluster.gateway import GatewayError, GatewayUnavailable
from gleaner.control.steward import client, server
from gleaner.control.steward.client import StewardRefuses, StewardSilent
from gleaner.control.steward.conf import Governed, Misconfigured
from gleaner.control.steward.rules import Command

ALIVE = b'{"do": "alive", "partitions": ["shared"]}'


class Slurm:
    """Its programs: what they were told, and what `scontrol show` answers."""

    def __init__(self) -> None:
        self.told: list[Command] = []
        self.shows = facts.answer(facts.shown())
        self.fails: dict[str, GatewayError] = {}

    def run(self, command: Command) -> str:
        """See `server.Run`."""
        if error := self.fails.get(command[1]):
            raise error
        if command[1] == "show":
            return self.shows
        self.told.append(command)
        return ""


class Office:
    """A steward that serves, and what surrounds it."""

    def __init__(self, folder: Path, uid: int) -> None:
        self.settings = facts.governed(folder)
        self.slurm = Slurm()
        self.wrong = ""
        self.steward = server.Steward(self.settings.heartbeat, facts.ACCOUNT, self.slurm.run, self.read)
        listener = server.Listener(self.steward, server.listen(self.settings.socket), uid)
        threading.Thread(target=listener.serve, daemon=True).start()
        self.client = client.Steward(self.settings.socket, timeout_s=20)

    def read(self) -> Governed:
        """What the admin says now."""
        if self.wrong:
            raise Misconfigured(self.wrong)
        return self.settings


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    yield Office(tmp_path, os.getuid())


def test_a_request_is_done_and_answered(office: Office) -> None:
    office.client.release("7", top=False)
    assert [command[1] for command in office.slurm.told] == ["release", "update"]


def test_a_refusal_says_why_and_does_nothing(office: Office) -> None:
    for ask, why in (
        (lambda: office.client.requeue("7"), "job 7 is not preemptible"),
        (lambda: office.client.hold("8"), "Slurm knows no job 8"),
        (lambda: office.client.hold("all"), "'job' is not what it must be"),
        (lambda: office.client.set_reason("7", "x" * 300), "'text' is not what it must be"),
    ):
        with pytest.raises(StewardRefuses, match=why):
            ask()
    office.slurm.shows = facts.answer(facts.shown(array_job_id={"set": True, "number": 7}))
    with pytest.raises(StewardRefuses, match="job 7 is an array: name one task of it, as in 7_1"):
        office.client.hold("7")
    assert office.slurm.told == []


def test_slurm_that_is_away_is_told_from_slurm_that_refuses(office: Office) -> None:
    office.slurm.fails = {"show": GatewayUnavailable("Slurm does not answer")}
    with pytest.raises(StewardSilent, match="Slurm does not answer"):
        office.client.hold("7")
    office.slurm.fails = {"release": GatewayError("Slurm refuses: scontrol says 'Access denied'")}
    with pytest.raises(StewardRefuses, match="Access denied"):
        office.client.release("7", top=True)


def test_the_heartbeat_is_the_time_in_a_file_that_all_may_read(office: Office, tmp_path: Path) -> None:
    office.client.alive(["shared"])
    server.write_heartbeat(office.settings.heartbeat, 1_795_233_600.7)
    assert office.settings.heartbeat.read_text() == "1795233600\n"
    assert office.settings.heartbeat.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive", "steward.sock"]


def test_who_drains_and_does_not_govern_has_a_heartbeat_of_its_own(office: Office, tmp_path: Path) -> None:
    office.client.awake()
    assert not office.settings.heartbeat.exists(), "jobs would be held"
    assert (tmp_path / "alive.nodes").read_text().strip().isdigit()


@pytest.mark.parametrize(
    ("named", "held", "why"),
    [
        (["shared"], ["shared", "debug", "big"], "governed.conf holds the jobs of big, debug, which [governing] parti"),
        (["shared", "big"], ["shared"], "[governing] partitions names big, which has no line in governed.conf: add"),
        (["big"], ["shared"], "or take its line out of governed.conf; [governing] partitions names big, which has"),
    ],
    ids=["held and not ruled on", "ruled on and not held", "both"],
)
def test_no_job_is_held_where_control_never_looks(office: Office, named: list[str], held: list[str], why: str) -> None:
    office.settings = replace(office.settings, partitions=dict.fromkeys(held, frozenset({"preemptible"})))
    with pytest.raises(StewardRefuses, match=re.escape(why)) as refused:
        office.client.alive(named)
    assert "\n" not in str(refused.value)
    assert not office.settings.heartbeat.exists()
    office.client.alive(held)
    assert office.settings.heartbeat.exists()


def test_what_the_admin_changes_counts_at_once_as_it_does_for_the_script(office: Office) -> None:
    office.client.alive(["shared"])
    office.settings = replace(office.settings, partitions={"other": frozenset({"preemptible"})})
    with pytest.raises(StewardRefuses, match="job 7 is in partition shared, which is not governed"):
        office.client.release("7", top=False)


def test_while_the_file_is_wrong_nothing_is_governed_and_drained_nodes_stay_so(office: Office, tmp_path: Path) -> None:
    office.wrong = "governed.conf, line 4: 'x' says nothing that is known here"
    for ask in (lambda: office.client.alive(["shared"]), lambda: office.client.release("7", top=False)):
        with pytest.raises(StewardSilent, match="line 4"):
            ask()
    office.client.awake()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive.nodes", "steward.sock"]
    assert office.slurm.told == []


def test_the_heartbeat_waits_for_nobody(office: Office) -> None:
    hangs = threading.Event()
    office.slurm.run = lambda _: str(hangs.wait(20))  # type: ignore[method-assign]
    steward = server.Steward(office.settings.heartbeat, facts.ACCOUNT, office.slurm.run, office.read)
    stuck = threading.Thread(
        target=server.answer, args=(steward, b'{"do": "hold", "job": "7"}', 0.0, lambda _: None), daemon=True
    )
    stuck.start()
    assert server.answer(steward, ALIVE, 4711.0, lambda _: None) == {"ok": True}
    assert office.settings.heartbeat.read_text() == "4711\n"
    hangs.set()


def test_another_account_is_not_listened_to(tmp_path: Path) -> None:
    office = Office(tmp_path, os.getuid() + 1)
    with pytest.raises(StewardSilent, match=r"does not answer|said b''"):
        office.client.alive(["shared"])
    assert not office.settings.heartbeat.exists()


def test_no_steward_and_one_that_talks_nonsense_are_silent(tmp_path: Path) -> None:
    with pytest.raises(StewardSilent, match="does not answer"):
        client.Steward(tmp_path / "nobody", timeout_s=1).alive(["shared"])
    listening = server.listen(tmp_path / "nonsense")

    def answer() -> None:
        connection, _ = listening.accept()
        connection.recv(1000)
        connection.sendall(b"[]\n")
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(StewardSilent, match="said b'\\[\\]"):
        client.Steward(tmp_path / "nonsense", timeout_s=20).alive(["shared"])


def test_who_says_too_much_or_half_a_line_keeps_nobody_else_waiting(office: Office) -> None:
    talker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    talker.connect(str(office.settings.socket))
    talker.sendall(b'{"do": ')
    office.client.alive(["shared"])
    flood = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    flood.settimeout(20)
    flood.connect(str(office.settings.socket))
    with pytest.raises(OSError):  # closed, or reset while it still talks
        for _ in range(1000):
            flood.sendall(b"x" * 65536)
    office.client.alive(["shared"])
    talker.close()
    flood.close()


def test_each_act_and_each_refusal_is_one_line(office: Office) -> None:
    lines: list[dict[str, object]] = []
    server.answer(office.steward, b'{"do": "release", "job": "7", "top": false}', 0.0, lines.append)
    server.answer(office.steward, b'{"do": "requeue", "job": "7"}', 0.0, lines.append)
    server.answer(office.steward, b"{", 0.0, lines.append)
    server.answer(office.steward, ALIVE, 0.0, lines.append)
    assert [sorted(line) for line in lines] == [["asked", "done"], ["asked", "kind", "why"], ["asked", "kind", "why"]]
    assert lines[0]["done"] == ["scontrol release 7", "scontrol update JobId=7 AdminComment=gleaner: released"]
