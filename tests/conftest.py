"""Fixtures for several folders: databases, real SQLite and real PostgreSQL, each fresh and with all tables; and
a faked Slurm.
"""

import fcntl
import gc
import os
import random
import signal
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import structlog
from hypothesis import settings
from sqlalchemy import Engine
from tests.databases import new_sqlite, share_compiled_statements
from tests.effort import examples
from tests.postgres import PostgresMissing, Server, running
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.control.queue.database import connect, migrate

TEMPLATE, SHARED = "with_tables", "shared"

# A collection of garbage looks at all that pytest has collected, too. Without these lines it takes a tenth of the time.
gc.disable()


# What is compiled first, or shares its core with another test, is slow once; that is no fault of the code.
settings.register_profile("unhurried", settings(), deadline=None, max_examples=examples(100))
# `make check` draws a fifth of the examples: who changes something runs it often.
settings.register_profile("brief", settings(), deadline=None, max_examples=20)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "unhurried"))
# Whoever starts the tests in the background has this signal ignored, in all that the tests start too.
signal.signal(signal.SIGINT, signal.default_int_handler)
# What loops beside a test say must not come into the output of a command that runs in this process meanwhile.
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--cluster-order`: no test on the cluster may depend on what ran before it."""
    parser.addoption(
        "--cluster-order",
        default="as-is",
        metavar="as-is|reverse|SEED",
        help="the order of the files with tests on the real cluster; within a file it stays",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files with tests on the cluster into the order that was asked for, after all others."""
    wanted = str(config.getoption("--cluster-order"))
    if wanted == "as-is":
        return
    if wanted != "reverse" and not wanted.isdecimal():
        raise pytest.UsageError(f"--cluster-order is as-is, reverse or a number to draw from, not {wanted!r}")
    on_cluster = [item for item in items if item.get_closest_marker("cluster")]
    files = list(dict.fromkeys(item.path for item in on_cluster))
    if wanted == "reverse":
        files.reverse()
    else:
        random.Random(int(wanted)).shuffle(files)
    places = {path: place for place, path in enumerate(files)}
    chosen = set(on_cluster)
    items[:] = [item for item in items if item not in chosen] + sorted(on_cluster, key=lambda item: places[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the other processes of a run wait for the first one: it compiles what all of them import, and keeps it.

    Compilation takes 13 seconds of a core; at the same time, each of them would compile everything.
    """
    in_run = os.environ.get("GLEANER_TEST_RUN")
    with Path(tempfile.gettempdir(), "collecting").open("w") if in_run else nullcontext() as lock:
        if lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


def pytest_collection_finish() -> None:
    """Collect garbage from here on, and leave out what lives as long as this process."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 50, 50)


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """SQL statements are compiled once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        share_compiled_statements(patch)
        yield


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One server for all tests of the session."""
    try:
        with running(durable=False) as server:
            engine = connect(server.create(TEMPLATE))
            migrate(engine)
            engine.dispose()
            yield server
    except PostgresMissing as error:
        pytest.fail(f'{error}; or leave these tests out with -m "not postgres"')


@pytest.fixture(scope="session")
def shared_postgres(postgres_server: Server) -> tuple[str, str]:
    """A database with all tables, for one test after the other: its URL and the version of its tables."""
    return postgres_server.create(SHARED, template=TEMPLATE), postgres_server.version(SHARED)


@pytest.fixture
def postgres_url(postgres_server: Server, shared_postgres: tuple[str, str]) -> Iterator[str]:
    """A database with all tables and no rows on a real PostgreSQL server. Mark a test that uses it `postgres`."""
    url, version = shared_postgres
    yield url
    postgres_server.empty(SHARED, template=TEMPLATE, version=version)


@pytest.fixture
def empty_postgres_url(postgres_server: Server) -> Iterator[str]:
    """A database without any table."""
    name = f"test_{uuid.uuid4().hex}"
    yield postgres_server.create(name)
    postgres_server.drop(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A fresh SQLite database with all tables."""
    return new_sqlite(tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def queue_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The queue's engine, once on each database."""
    engine = connect(request.getfixturevalue(f"{request.param}_url"))
    yield engine
    engine.dispose()


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakedSlurm:
    """Faked Slurm programs on the PATH."""
    faked = FakedSlurm(tmp_path / "bin")
    faked.put_on(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return faked
