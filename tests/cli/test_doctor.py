"""`glean doctor` by hand: against a control that runs, one that is away, and with tokens of all kinds."""

import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.cli.cli_harness import CliHarness, Service
from tests.cli.test_services import SERVER, without

from gleaner.control.slurm.snapshot import Snapshot

PATIENT = ("--patience", "120")
OF_NODES = ("docker", "zstandard")
"""Libraries that nodes have, and users have not."""


def states(harness: CliHarness, *arguments: str, code: int) -> dict[str, str]:
    """Return the state of each thing by its name."""
    found, out, err = harness.run("doctor", *arguments, *PATIENT, "--json")
    assert (found, err) == (code, ""), (out, err)
    findings = json.loads(out)["findings"]
    assert all(finding["seen"] and "itself failed" not in finding["seen"] for finding in findings)
    return {finding["name"]: finding["state"] for finding in findings}


def named(found: dict[str, str], state: str) -> set[str]:
    return {name for name, each in found.items() if each == state}


def test_a_client_in_order_has_no_fault_and_one_without_control_has(harness: CliHarness, service: Service) -> None:
    found = states(harness, "client", code=0)
    assert named(found, "ok") >= {"settings", "control", "certificate", "token"}
    service.stop()
    assert named(states(harness, "client", code=1), "fault") == {"control"}


def test_a_token_that_is_wrong_or_not_its_owners_alone_is_a_fault(harness: CliHarness) -> None:
    token = Path(harness.environment["GLEANER_CLIENT__TOKEN_FILE"])
    token.chmod(0o644)
    assert named(states(harness, "client", code=1), "fault") == {"token"}
    token.chmod(0o600)
    token.write_text("nobody-has-this")
    assert named(states(harness, "client", code=1), "fault") == {"token"}


def test_control_and_its_folder_in_order_have_no_fault(admin: CliHarness, tmp_path: Path) -> None:
    admin.environment["GLEANER_STORAGE__FOLDER"] = str(tmp_path / "storage")
    admin.state.cluster = Snapshot(read_s=admin.state.clock())
    found = states(admin, "control", code=int(os.geteuid() == 0))
    # Whoever runs the tests as root has a folder of root's.
    assert named(found, "fault") == ({"service account"} if os.geteuid() == 0 else set())
    assert named(found, "ok") >= {"database", "storage", "steps of control"}
    assert found["slurm.conf"] == "not checked"


def test_people_get_a_table_with_the_worst_first_and_a_count(harness: CliHarness, service: Service) -> None:
    service.stop()
    code, out, err = harness.run("doctor", "client", *PATIENT)
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert lines[0].split() == ["STATE", "CHECK", "SEEN", "TO", "DO"]
    assert lines[1].startswith("fault")
    assert "Connection refused" in lines[1]
    assert lines[-1].startswith("client: 1 fault, ")


def test_a_settings_file_that_cannot_be_read_is_a_finding_and_not_the_end(harness: CliHarness) -> None:
    settings = Path(harness.environment["GLEANER_SETTINGS"])
    settings.write_text("[rounds]\nlenght_s = 5\n")
    found, out, _ = harness.run("doctor", "control", *PATIENT, "--json")
    first = json.loads(out)["findings"][0]
    assert (found, first["name"], first["state"]) == (1, "settings", "fault")
    assert f"{settings}, line 2: [rounds] unknown key 'lenght_s'" in first["seen"]
    _, out, _ = harness.run("doctor", "control", *PATIENT)
    assert out.count("lenght_s") == 2  # the fault, and one line for all checks that wait for it


def test_a_bundle_is_written_once_and_without_the_token(harness: CliHarness, tmp_path: Path) -> None:
    settings = Path(harness.environment["GLEANER_SETTINGS"])
    token = Path(harness.environment["GLEANER_CLIENT__TOKEN_FILE"]).read_text().strip()
    settings.write_text(f"# {token}\n[rounds]\nlength_s = 90\n")
    path = tmp_path / "bundle.tar.gz"
    code, _, err = harness.run("doctor", "client", *PATIENT, "--bundle", str(path))
    assert (code, err.count("\n")) == (0, 1)
    assert "look into it before you send it" in err
    with tarfile.open(path) as archive:
        file = archive.extractfile("glean-doctor/gleaner.toml.txt")
        assert file is not None
        assert file.read().decode() == "length_s = 90\n"
    assert "File exists" in harness.refused("doctor", "client", "--bundle", str(path), code=1)
    assert "No such file" in harness.refused("doctor", "client", "--bundle", str(tmp_path / "no" / "b"), code=1)


@pytest.mark.slow
def test_a_node_needs_the_agents_libraries_alone(harness: CliHarness) -> None:
    missing = tuple(set(SERVER) - set(OF_NODES))
    done = without(missing, harness, "doctor", "node", *PATIENT, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert "is not installed here" not in done.stdout
    assert "itself failed" not in done.stdout
