"""The Slurm admin service at its socket, with the real client; Slurm's programs are faked as answers."""

import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.slurm.records import JOB, NODE, WORD, table
from tests.slurm_admin import facts

from gleaner.agent.privileged.common.request import Refused
from gleaner.control.slurm.interface import ClusterError, ClusterRefused, ClusterUnavailable
from gleaner.control.slurm_admin import client, server
from gleaner.control.slurm_admin.request import Awake, Drain
from gleaner.control.slurm_admin.rules import Command
from gleaner.control.slurm_admin.settings import SlurmAdminSettings, WrongSettings

ALIVE = b'{"do": "alive", "partitions": ["shared"]}'


class Slurm:
    """Its programs: what they were told, and what `sinfo` and `squeue` answer."""

    def __init__(self) -> None:
        self.told: list[Command] = []
        self.shows = table(JOB)
        self.fails: dict[str, ClusterError] = {}

    def run(self, command: Command) -> str:
        """See `server.Run`."""
        if error := self.fails.get(command[1], self.fails.get(command[0])):
            raise error
        if command[0] in {"sinfo", "squeue"}:
            return self.shows.replace(WORD, command[-1].rpartition(":")[2])
        self.told.append(command)
        return ""


class ServerHarness:
    """A Slurm admin service that serves, and what surrounds it."""

    def __init__(self, folder: Path, uid: int) -> None:
        self.settings = facts.admin_settings(folder)
        self.slurm = Slurm()
        self.wrong = ""
        self.slurm_admin = server.SlurmAdmin(self.settings.heartbeat, facts.ACCOUNT, self.slurm.run, self.read)
        listener = server.Listener(self.slurm_admin, server.listen(self.settings.socket), uid)
        threading.Thread(target=listener.serve, daemon=True).start()
        self.client = client.SlurmAdminClient(self.settings.socket, timeout_s=20)

    def read(self) -> SlurmAdminSettings:
        """Return the admin's settings of this moment. Raises `WrongSettings` if the test has made them wrong."""
        if self.wrong:
            raise WrongSettings(self.wrong)
        return self.settings


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ServerHarness]:
    yield ServerHarness(tmp_path, os.getuid())


def test_a_request_is_done_and_answered(harness: ServerHarness) -> None:
    harness.client.release("7", top=False)
    assert [command[1] for command in harness.slurm.told] == ["release", "update"]


def test_a_refusal_says_why_and_does_nothing(harness: ServerHarness) -> None:
    for ask, why in (
        (lambda: harness.client.requeue("7"), "job 7 is not preemptible"),
        (lambda: harness.client.hold("8"), "Slurm knows no job 8"),
        (lambda: harness.client.hold("all"), "'job' is not what it must be"),
        (lambda: harness.client.set_reason("7", "x" * 300), "'text' is not what it must be"),
    ):
        with pytest.raises(ClusterRefused, match=why):
            ask()
    harness.slurm.shows = table(JOB | {"JobArrayID": "7_1"})
    with pytest.raises(ClusterRefused, match="job 7 is an array: name one task of it, as in 7_1"):
        harness.client.hold("7")
    assert harness.slurm.told == []


def test_the_heartbeat_is_the_time_in_a_file_that_all_may_read(harness: ServerHarness, tmp_path: Path) -> None:
    harness.client.alive(["shared"])
    server.write_heartbeat(harness.settings.heartbeat, 1_795_233_600.7)
    assert harness.settings.heartbeat.read_text() == "1795233600\n"
    assert harness.settings.heartbeat.stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive", "slurm-admin.sock"]


def test_who_drains_and_has_entitlements_off_has_a_heartbeat_of_its_own(harness: ServerHarness, tmp_path: Path) -> None:
    harness.client.awake()
    assert not harness.settings.heartbeat.exists(), "jobs would be held"
    assert (tmp_path / "alive.nodes").read_text().strip().isdigit()


@pytest.mark.parametrize(
    ("named", "held", "why"),
    [
        (
            ["shared"],
            ["shared", "debug", "big"],
            "slurm-admin.conf holds the jobs of big, debug, which [entitlements] parti",
        ),
        (
            ["shared", "big"],
            ["shared"],
            "[entitlements] partitions names big, which has no line in slurm-admin.conf: add",
        ),
        (
            ["big"],
            ["shared"],
            "or take its line out of slurm-admin.conf; [entitlements] partitions names big, which has",
        ),
    ],
    ids=["held and not decided on", "decided on and not held", "both"],
)
def test_no_job_is_held_where_control_never_looks(
    harness: ServerHarness, named: list[str], held: list[str], why: str
) -> None:
    harness.settings = replace(harness.settings, partitions=dict.fromkeys(held, frozenset({"preemptible"})))
    with pytest.raises(ClusterRefused, match=re.escape(why)) as refused:
        harness.client.alive(named)
    assert "\n" not in str(refused.value)
    assert not harness.settings.heartbeat.exists()
    harness.client.alive(held)
    assert harness.settings.heartbeat.exists()


def test_while_the_file_is_wrong_nothing_is_enforced_and_drained_nodes_stay_so(
    harness: ServerHarness, tmp_path: Path
) -> None:
    harness.wrong = "slurm-admin.conf, line 4: 'x' says nothing that is known here"
    for ask in (lambda: harness.client.alive(["shared"]), lambda: harness.client.release("7", top=False)):
        with pytest.raises(ClusterUnavailable, match="line 4"):
            ask()
    harness.client.awake()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alive.nodes", "slurm-admin.sock"]
    assert harness.slurm.told == []


def test_the_heartbeat_waits_for_nobody(harness: ServerHarness) -> None:
    hangs = threading.Event()
    harness.slurm.run = lambda _: str(hangs.wait(20))  # type: ignore[method-assign,assignment]
    slurm_admin = server.SlurmAdmin(harness.settings.heartbeat, facts.ACCOUNT, harness.slurm.run, harness.read)
    stuck = threading.Thread(
        target=server.answer, args=(slurm_admin, b'{"do": "hold", "job": "7"}', 0.0, lambda _: None), daemon=True
    )
    stuck.start()
    assert server.answer(slurm_admin, ALIVE, 4711.0, lambda _: None) == {"ok": True}
    assert harness.settings.heartbeat.read_text() == "4711\n"
    hangs.set()


def test_another_account_is_not_listened_to(tmp_path: Path) -> None:
    harness = ServerHarness(tmp_path, os.getuid() + 1)
    with pytest.raises(ClusterUnavailable, match=r"does not answer|said b''"):
        harness.client.alive(["shared"])
    assert not harness.settings.heartbeat.exists()


def test_who_says_too_much_or_half_a_line_keeps_nobody_else_waiting(harness: ServerHarness) -> None:
    talker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    talker.connect(str(harness.settings.socket))
    talker.sendall(b'{"do": ')
    harness.client.alive(["shared"])
    flood = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    flood.settimeout(20)
    flood.connect(str(harness.settings.socket))
    with pytest.raises(OSError):  # closed, or reset while it still talks
        for _ in range(1000):
            flood.sendall(b"x" * 65536)
    harness.client.alive(["shared"])
    talker.close()
    flood.close()


def of_epoch(harness: ServerHarness, epoch: int) -> client.SlurmAdminClient:
    return client.SlurmAdminClient(harness.settings.socket, timeout_s=20, epoch=lambda: epoch)


def test_a_control_that_was_succeeded_may_ask_nothing_any_more(harness: ServerHarness) -> None:
    old, new = of_epoch(harness, 7), of_epoch(harness, 8)
    old.alive(["shared"])
    old.release("7", top=False)
    new.awake()
    done = list(harness.slurm.told)
    beat = harness.settings.heartbeat.stat().st_mtime_ns
    for ask in (
        lambda: old.alive(["shared"]),
        old.awake,
        lambda: old.release("7", top=False),
        lambda: old.hold("7"),
        lambda: old.requeue("7"),
        lambda: old.signal("7"),
        lambda: old.set_reason("7", "no room"),
        lambda: old.drain(["n1"]),
        lambda: old.resume(["n1"]),
    ):
        with pytest.raises(ClusterRefused, match=r"has led in epoch 7, and another one leads since, in 8 \(if"):
            ask()
    assert (harness.slurm.told, harness.settings.heartbeat.stat().st_mtime_ns) == (done, beat)
    new.release("7", top=False)


def test_the_epoch_outlives_the_slurm_admin_and_one_that_cannot_be_kept_counts_until_then(
    harness: ServerHarness, tmp_path: Path
) -> None:
    of_epoch(harness, 8).awake()
    again = server.SlurmAdmin(harness.settings.heartbeat, facts.ACCOUNT, harness.slurm.run, harness.read)
    with pytest.raises(Refused, match="leads since, in 8"):
        again.do(Awake(), 0.0, 7)
    nowhere = server.Epochs(tmp_path / "nowhere" / "epoch")
    nowhere.check(9)
    with pytest.raises(Refused):
        nowhere.check(8)


def test_a_request_that_waited_while_a_later_leader_asked_is_refused(harness: ServerHarness) -> None:
    begins, goes_on = threading.Event(), threading.Event()

    def hangs(command: Command) -> str:
        begins.set()
        assert goes_on.wait(20)
        return harness.slurm.run(command)

    slurm_admin = server.SlurmAdmin(harness.settings.heartbeat, facts.ACCOUNT, hangs, harness.read)
    answers: list[dict[str, object]] = []

    def ask(epoch: int) -> None:
        line = f'{{"do": "release", "job": "7", "top": false, "epoch": {epoch}}}'.encode()
        answers.append(server.answer(slurm_admin, line, 0.0, lambda _: None))

    first = threading.Thread(target=ask, args=(7,))
    first.start()
    assert begins.wait(20)
    waits = threading.Thread(target=ask, args=(7,))
    waits.start()
    assert server.answer(slurm_admin, b'{"do": "awake", "epoch": 8}', 0.0, lambda _: None) == {"ok": True}
    goes_on.set()
    first.join(20)
    waits.join(20)
    assert sorted(bool(answer["ok"]) for answer in answers) in ([False, False], [False, True])
    assert any("leads since, in 8" in str(answer.get("why")) for answer in answers)


def test_a_number_that_is_another_jobs_by_now_is_left_alone(harness: ServerHarness) -> None:
    running = {"State": "RUNNING", "PriorityLong": "1"}
    for asks, comment, state in (
        (lambda at_s: harness.client.release("7", top=True, submitted_s=at_s), "", {}),
        (lambda at_s: harness.client.set_reason("7", "no room", submitted_s=at_s), "", {}),
        (lambda at_s: harness.client.requeue("7", submitted_s=at_s), "gleaner:preemptible", running),
        (lambda at_s: harness.client.signal("7", submitted_s=at_s), "gleaner:checkpointable", running),
    ):
        harness.slurm.told.clear()
        harness.slurm.shows = table(JOB | {"SubmitTime": "2000", "Comment": comment} | state)
        with pytest.raises(
            ClusterRefused, match="job 7 is not the one that is meant: it was submitted or requeued at 2"
        ):
            asks(1000.0)
        assert harness.slurm.told == []
        asks(2000.0)
        assert harness.slurm.told


def drained(count: int, *, free: int) -> str:
    """Return Slurm's listing of `count` nodes that we have drained, and of `free` idle ones."""
    ours = NODE | {"StateComplete": "idle+drain", "Reason": "gleaner: drained by alice", "User": facts.ACCOUNT}
    shown = [ours | {"NodeList": f"d{number}"} for number in range(count)]
    return table(*shown, *(NODE | {"NodeList": f"n{number}"} for number in range(free)))


def test_no_more_nodes_are_drained_at_once_than_the_admin_allows(harness: ServerHarness) -> None:
    harness.settings = replace(harness.settings, drain_at_most=3)
    harness.slurm.shows = drained(2, free=3)
    with pytest.raises(ClusterRefused) as refused:
        harness.client.drain(["n0", "n1"])
    assert str(refused.value) == (
        "drain-at-most in slurm-admin.conf is 3, 2 nodes are drained by us, and 2 more are asked for: set some back"
        " first, or raise it"
    )
    assert harness.slurm.told == []
    harness.client.drain(["n0"])
    harness.slurm.shows = drained(3, free=3)
    harness.client.resume(["d0", "d1", "d2"])


def test_no_node_is_drained_while_one_cannot_be_read(harness: ServerHarness) -> None:
    """It may be one of those that are drained by us, and that count."""
    harness.slurm.shows = drained(2, free=3)
    harness.slurm.shows += table(NODE | {"NodeList": "d9", "Memory": "much"})
    with pytest.raises(ClusterRefused, match="Slurm said of node d9 what cannot be read: 'much', where a number"):
        harness.client.drain(["n0"])
    assert harness.slurm.told == []


def test_no_more_nodes_are_drained_in_an_hour_than_the_admin_allows(harness: ServerHarness) -> None:
    harness.settings = replace(harness.settings, drains_per_hour=3)
    harness.slurm.shows = drained(0, free=5)

    def drain(at_s: float, *nodes: str) -> None:
        harness.slurm_admin.do(Drain(nodes, "alice"), at_s)

    drain(1000.0, "n0", "n1")
    with pytest.raises(
        Refused, match=r"^drains-per-hour in slurm-admin.conf is 3, 2 nodes .* and 2 more are asked for"
    ):
        drain(1000.0 + 3599, "n2", "n3")
    drain(1000.0 + 3599, "n2")
    with pytest.raises(Refused):
        drain(1000.0 + 3599, "n3")
    drain(1000.0 + 3600, "n3", "n4")
    assert len(harness.slurm.told) == 3
