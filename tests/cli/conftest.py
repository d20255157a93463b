"""A desk and a control program for each test."""

import math
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli.desk import Desk, Node, Service
from tests.databases import new_sqlite

from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.queue.engine import connect
from gleaner.control.settings import QueueSettings, Settings, StorageSettings
from gleaner.control.site import Site


@pytest.fixture
def service(tmp_path: Path) -> Generator[Service]:
    """Control with an empty queue; no scheduler, so nothing runs unless the test's node takes it."""
    url = new_sqlite(tmp_path)
    settings = Settings(queue=QueueSettings(url=url), storage=StorageSettings(folder=tmp_path / "storage"))
    FolderStorage(tmp_path / "storage").prepare()
    engine = connect(url)
    running = Service(Site(settings, engine, FolderStorage(tmp_path / "storage"), leads_until_s=math.inf))
    running.start()
    yield running
    running.stop()
    engine.dispose()


@pytest.fixture
def admin(service: Service, tmp_path: Path) -> Desk:
    """The admin's desk; the token is made as the first one of a site is."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (tmp_path / "gleaner.toml").touch()
    environment = {
        "GLEANER_SETTINGS": str(tmp_path / "gleaner.toml"),
        "GLEANER_QUEUE__URL": service.site.settings.queue.url,
        "GLEANER_CLIENT__URL": f"http://127.0.0.1:{service.port}",
        "GLEANER_CLIENT__TOKEN_FILE": str(tmp_path / "admin-token"),
    }
    node = Node(service.site.engine, FolderStorage(tmp_path / "storage"), tmp_path / "work")
    made = Desk(folder, environment, node, service.site)
    made.good("token", "create", "--local", "--role", "admin", "--name", "root", "--to", str(tmp_path / "admin-token"))
    return made


@pytest.fixture
def desk(admin: Desk, tmp_path: Path) -> Desk:
    """The desk of a user of group `atlas`, with a token that the admin has made."""
    user = ["--role", "user", "--name", "alice", "--group", "atlas"]
    admin.good("token", "create", *user, "--to", str(tmp_path / "token"))
    environment = admin.environment | {"GLEANER_CLIENT__TOKEN_FILE": str(tmp_path / "token")}
    return Desk(admin.folder, environment, admin.node, admin.site)
