"""One misbehaving server for the tests of this folder."""

from collections.abc import Iterator

import pytest
from tests.transfer.bad_server import BadServer, bad_server


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadServer]:
    with bad_server(tmp_path_factory.mktemp("server")) as made:
        monkeypatch.setenv("SSL_CERT_FILE", str(made.certificate))
        yield made
