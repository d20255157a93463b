"""The control program as a process of its own: started, asked, ended, killed, started again."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.cli import app
from gleaner.control.queue import tokens
from gleaner.control.queue.database import connect, transaction
from gleaner.control.settings import Settings

pytestmark = pytest.mark.slow

PROGRAM = "from gleaner.control.cli.main import main; import sys; sys.argv[0] = 'glean'; sys.exit(main())"


def until(holds: Callable[[], Any], *, within_s: float = 150) -> Any:
    end_s = time.monotonic() + within_s
    while not (found := holds()):
        assert time.monotonic() < end_s, f"not within {within_s} s"
        time.sleep(0.05)
    return found


@dataclass
class Control:
    """A control program, whose agents are faked."""

    folder: Path
    url: str
    name: str = "one"
    process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        """The log of the last program of this name."""
        return (self.folder / f"{self.name}.log").read_text()

    @property
    def address(self) -> str:
        """The address of the people's door; empty until it is open."""
        return self.door("people")

    @property
    def agents_address(self) -> str:
        """The address of the agents' door; empty until it is open."""
        return self.door("agents")

    def door(self, name: str) -> str:
        """The address of the door that was opened last. It takes a free port itself: nobody can be quicker."""
        ports = re.findall(rf"listening +address=\('127\.0\.0\.1', (\d+)\) door={name}", self.said)
        return f"http://127.0.0.1:{ports[-1]}" if ports else ""

    def start(self, **changes: str) -> "Control":
        """Start it; `changes` go to the environment."""
        self.write_settings()
        with (self.folder / f"{self.name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "control", "run"],
                env=os.environ | {"GLEANER_SETTINGS": str(self.settings)} | changes,
                stderr=log,
            )
        return self

    @property
    def settings(self) -> Path:
        return self.folder / f"{self.name}.toml"

    def write_settings(self) -> None:
        self.settings.write_text(
            f'[queue]\nurl = "{self.url}"\nlease_s = 20\nheartbeat_s = 4\n'
            f"[rounds]\nlength_s = 1000000\nshortest_slice_s = 5\npoll_s = 1\n"
            f'[api]\nport = 0\nagents_port = 0\n[storage]\nfolder = "{self.folder / "storage"}"\n'
        )

    def refused(self, **changes: str) -> str:
        """Run it here with these changes of the environment; return the line with which it ends at once."""
        self.write_settings()
        logs, umask = structlog.get_config(), os.umask(0o022)
        with pytest.MonkeyPatch.context() as patch, redirect_stderr(StringIO()) as told:
            for name, value in {"GLEANER_SETTINGS": str(self.settings), **changes}.items():
                patch.setenv(name, value)
            try:
                assert app.run(["control", "run"]) == 1
            finally:
                structlog.configure(**logs)
                os.umask(umask)
        return told.getvalue().strip()

    def health(self) -> dict[str, Any]:
        """The health at the agents' door."""
        address = self.agents_address
        if not address:
            return {}
        try:
            return dict(httpx.get(f"{address}/health").json())
        except httpx.TransportError:
            return {}

    def leads(self) -> bool:
        return bool(self.health().get("leader"))

    def ask(self, method: str, path: str, token: str, body: object = None) -> httpx.Response:
        """Ask at the people's door, once it is open."""
        return httpx.request(
            method,
            f"{until(lambda: self.address)}/v1{path}",
            json=body,
            headers={"Authorization": f"Bearer {token}"},
        )

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Send a signal and wait; exit status and what it logged."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=150), self.said


@pytest.fixture
def control(tmp_path: Path, sqlite_url: str, faked: FakedSlurm) -> Iterator[Control]:
    FolderStorage(tmp_path / "storage").prepare()
    control = Control(tmp_path, sqlite_url)
    yield control
    if control.process is not None and control.process.poll() is None:
        control.process.kill()


@pytest.fixture
def admin(sqlite_url: str) -> str:
    engine = connect(sqlite_url)
    with transaction(engine) as db:
        secret = tokens.issue(db, role="admin", name="root", group=None, now_s=time.time())
    engine.dispose()
    return secret


JOB = {"job": {"name": "j", "image": "i", "command": ["true"]}, "group": "g"}


def test_killed_and_started_again_it_leads_at_once_and_finds_its_agent(control: Control, admin: str) -> None:
    # Its term is then 26 s: one that waited for its end would not lead in time, and one that starts slowly does.
    slow_beat = {"GLEANER_ROUNDS__POLL_S": "4"}
    control.start(**slow_beat)
    until(control.leads)
    assert control.ask("POST", "/jobs", admin, JOB).status_code == 201
    agents = until(lambda: control.ask("GET", "/agents", admin).json())
    until(lambda: control.ask("GET", "/agents", admin).json()[0]["scheduler_id"])
    control.end(signal.SIGKILL)
    control.start(**slow_beat)
    until(control.leads, within_s=25)  # less than its term
    until(lambda: control.ask("GET", "/nodes", admin).json()["read_s"])
    again = control.ask("GET", "/agents", admin).json()
    assert [agent["name"] for agent in again] == [agent["name"] for agent in agents]
    assert control.ask("GET", "/jobs/1", admin).json()["job"]["state"] == "New"


def test_people_use_the_door_of_either_program_and_the_second_takes_over(control: Control, admin: str) -> None:
    control.start()
    until(control.leads)
    second = Control(control.folder, control.url, name="two").start()
    try:
        until(second.health)
        assert second.ask("POST", "/jobs", admin, JOB).status_code == 201
        assert control.ask("GET", "/jobs", admin).json()["total"] == 1
        assert control.end(signal.SIGTERM)[0] == 0
        until(second.leads)
        assert second.ask("POST", "/jobs", admin, JOB).status_code == 201
    finally:
        _, said = second.end(signal.SIGTERM)
    assert "leads; this program only serves reads" in said


def test_the_peoples_door_may_hang_or_end_without_the_agents_door_and_ends_with_its_parent(
    control: Control, admin: str
) -> None:
    control.start()
    until(control.leads)
    until(lambda: control.ask("GET", "/nodes", admin).json()["read_s"])  # what the loops know
    address = control.address
    door = peoples_door(control)
    forged = {"Authorization": f"Bearer {admin}", "X-Forwarded-For": "10.66.6.6"}
    httpx.post(f"{address}/v1/jobs", headers=forged, json=JOB)
    until(lambda: "POST /v1/jobs" in control.said)
    assert "10.66.6.6" not in control.said, "nobody but a proxy that is listed names another address"
    os.kill(door, signal.SIGSTOP)
    assert control.leads()
    of_people = httpx.get(f"{control.agents_address}/v1/jobs", headers={"Authorization": f"Bearer {admin}"})
    assert of_people.status_code == 404
    os.kill(door, signal.SIGKILL)
    until(lambda: control.address != address)
    assert peoples_door(control) != door
    door = peoples_door(control)
    control.end(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{door}").exists())


def peoples_door(control: Control) -> int:
    """Return the process of the people's door."""
    assert control.process is not None
    children = Path(f"/proc/{control.process.pid}/task").glob("*/children")
    found = [int(each) for file in children for each in file.read_text().split()]
    return next(each for each in found if b"--with-parent" in Path(f"/proc/{each}/cmdline").read_bytes())


def test_what_keeps_it_from_starting_is_said_in_one_line(control: Control, tmp_path: Path) -> None:
    empty = f"sqlite:///{tmp_path / 'empty.db'}"
    assert control.refused(GLEANER_QUEUE__URL=empty) == (
        "glean: the queue's database has no tables yet: run `glean control migrate`"
    )
    gone = tmp_path / "gone"
    said = control.refused(GLEANER_STORAGE__FOLDER=str(gone))
    assert said.startswith("glean: ")
    assert str(gone) in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = control.refused(GLEANER_API__AGENTS_PORT=str(port))
    assert said == f"glean: [api] 127.0.0.1 port {port}: Address already in use"
    (tmp_path / "bad.pem").write_text("no certificate")
    bad = str(tmp_path / "bad.pem")
    said = control.refused(GLEANER_API__CERTIFICATE=bad, GLEANER_API__KEY=bad)
    assert said.startswith("glean: [api] certificate and key cannot be used")
    assert "\n" not in said
    said = control.refused(GLEANER_ENTITLEMENTS__MODE="dry-run", GLEANER_ENTITLEMENTS__PARTITIONS='["gleaner"]')
    assert said == "glean: [entitlements] partitions names gleaner, which is the agents' own", "it has not led"


def test_plain_text_off_this_machine_is_refused_by_the_settings() -> None:
    with pytest.raises(ValueError, match="set certificate and key"):
        Settings.model_validate({"api": {"host": "0.0.0.0"}})
