"""A user's `glean` and a control program for each test."""

import math
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli.cli_harness import CliHarness, Node, Service
from tests.databases import new_sqlite

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.queue.database import connect
from gleaner.control.settings import QueueSettings, Settings, StorageSettings


@pytest.fixture
def service(tmp_path: Path) -> Generator[Service]:
    """Control with an empty queue; no scheduler, so nothing runs unless the test's node takes it."""
    url = new_sqlite(tmp_path)
    settings = Settings(
        queue=QueueSettings(url=url, secret_key_file=tmp_path / "secrets.key"),
        storage=StorageSettings(folder=tmp_path / "storage"),
    )
    FolderStorage(tmp_path / "storage").prepare()
    engine = connect(url)
    running = Service(ControlState(settings, engine, FolderStorage(tmp_path / "storage"), leads_until_s=math.inf))
    running.start()
    yield running
    running.stop()
    engine.dispose()


@pytest.fixture
def admin(service: Service, tmp_path: Path) -> CliHarness:
    """Return the admin's `glean`; the token is made as the first one of a site is."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (tmp_path / "gleaner.toml").touch()
    environment = {
        "GLEANER_SETTINGS": str(tmp_path / "gleaner.toml"),
        "GLEANER_QUEUE__URL": service.state.settings.queue.url,
        "GLEANER_QUEUE__SECRET_KEY_FILE": str(tmp_path / "secrets.key"),
        "GLEANER_CLIENT__URL": f"http://127.0.0.1:{service.port}",
        "GLEANER_CLIENT__TOKEN_FILE": str(tmp_path / "admin-token"),
        "GLEANER_CLIENT__TIMEOUT_S": "300",  # on a busy machine no test fails for want of patience
    }
    node = Node(service.state.engine, FolderStorage(tmp_path / "storage"), tmp_path / "work")
    made = CliHarness(folder, environment, node, service.state)
    made.good("token", "create", "--local", "--role", "admin", "--name", "root", "--to", str(tmp_path / "admin-token"))
    return made


@pytest.fixture
def harness(admin: CliHarness, tmp_path: Path) -> CliHarness:
    """Return the `glean` of a user of group `atlas`, with a token that the admin has made."""
    user = ["--role", "user", "--name", "alice", "--group", "atlas"]
    admin.good("token", "create", *user, "--to", str(tmp_path / "token"))
    environment = admin.environment | {"GLEANER_CLIENT__TOKEN_FILE": str(tmp_path / "token")}
    return CliHarness(admin.folder, environment, admin.node, admin.state)
