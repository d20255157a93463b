"""A user's `glean` and a control program for each test."""

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.cli.cli_harness import CliHarness, Service, admins_glean, serving, users_glean
from tests.databases import new_sqlite


@pytest.fixture
def service(tmp_path: Path) -> Generator[Service]:
    """Return a real control program on a port of this machine, with a real database."""
    with serving(tmp_path, new_sqlite(tmp_path)) as running:
        yield running


@pytest.fixture
def admin(service: Service, tmp_path: Path) -> CliHarness:
    """Return the admin's `glean`; the token is made as the first one of a site is."""
    return admins_glean(service, tmp_path)


@pytest.fixture
def harness(admin: CliHarness, tmp_path: Path) -> CliHarness:
    """Return the `glean` of a user of group `atlas`, with a token that the admin has made."""
    return users_glean(admin, tmp_path)
