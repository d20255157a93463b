"""An image in a real registry, fetched by the real skopeo."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.cli_harness import CliHarness, free_port
from tests.cli.test_images import FOR, allow
from tests.made_images import MadeImage, tar

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(300)]


@pytest.fixture
def registry(tmp_path: Path, harness: CliHarness) -> Iterator[str]:
    """The address of a registry without TLS, which skopeo accepts."""
    address = f"127.0.0.1:{free_port()}"
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "registry")}},
        "http": {"addr": address},
    }
    (tmp_path / "registry.yml").write_text(json.dumps(settings))
    containers = tmp_path / "home" / ".config" / "containers"
    containers.mkdir(parents=True)
    (containers / "registries.conf").write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
    harness.environment |= {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    with subprocess.Popen(
        ["docker-registry", "serve", str(tmp_path / "registry.yml")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        try:
            _wait_for(address)
            yield address
        finally:
            server.kill()


def _wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    until_s = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), 10).close()
            return
        except OSError:
            assert time.monotonic() < until_s, "docker-registry does not listen"
            time.sleep(0.1)


def test_an_image_is_pushed_from_a_registry(harness: CliHarness, registry: str, tmp_path: Path) -> None:
    image = MadeImage()
    (tmp_path / "pi.tar").write_bytes(tar(image.files()))
    name = f"docker://{registry}/physics/pi:1"
    subprocess.run(
        [
            "skopeo",
            "copy",
            "--format=oci",
            "--dest-compress-format=zstd",
            f"docker-archive:{tmp_path / 'pi.tar'}",
            name,
        ],
        env=harness.environment,
        check=True,
        capture_output=True,
        timeout=120,
    )
    allow(harness, f"{registry}/physics/*")
    row = json.loads(harness.good("image", "push", "pi:1", name, "--json", *FOR))
    assert row["name"] == "pi:1"
    about = subprocess.run(
        ["skopeo", "inspect", "--raw", name], env=harness.environment, check=True, capture_output=True
    )
    manifest = json.loads(about.stdout)
    assert row["image_id"] == manifest["config"]["digest"]  # skopeo has written it anew, as OCI has it
    assert {layer["mediaType"].rpartition("+")[2] for layer in manifest["layers"]} == {"zstd"}
    said = harness.refused("image", "push", "pi:2", f"docker://{registry}/physics/none", *FOR, code=2)
    assert "skopeo does not fetch" in said
    assert "\n" not in said.strip()
