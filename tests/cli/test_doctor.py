"""`glean doctor` by hand: against a control that runs, one that is away, and with tokens of all kinds."""

import gzip
import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.cli.cli_harness import CliHarness, Service
from tests.cli.test_services import SERVER, without

from gleaner.agent.checkpoints.storage_root import StorageNumber, storage_number
from gleaner.control.queue import secret_key
from gleaner.control.setup import bundle
from gleaner.control.setup.facts import NOT_INSTALLED
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
    assert named(found, "ok") >= {"settings", "clock against control", "control", "certificate", "token"}
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
    assert named(found, "fault") == ({"service account", "storage's owner"} if os.geteuid() == 0 else set())
    assert named(found, "ok") >= {"database", "storage", "storage's writes", "looks at Slurm", "steps of control"}
    assert found["SelectType"] == "not checked"


def test_a_node_knows_whether_it_sees_controls_folder(
    admin: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "agent.toml"
    settings.write_text(f'control_url = "{admin.environment["GLEANER_CLIENT__URL"]}"\nstorage = "{tmp_path}/storage"\n')
    admin.environment["GLEANER_AGENT_SETTINGS"] = str(settings)
    assert states(admin, "node", code=1)["storage is shared"] == "not checked"
    admin.state.storage_number = storage_number(tmp_path / "storage")
    assert states(admin, "node", code=1)["storage is shared"] == "ok"
    admin.state.storage_number = StorageNumber("another")
    assert states(admin, "node", code=1)["storage is shared"] == "fault"


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
        file = archive.extractfile("glean-doctor/settings/gleaner.toml")
        assert file is not None
        assert file.read().decode() == "# ***\n[rounds]\nlength_s = 90\n"
    assert "is there already" in harness.refused("doctor", "client", "--bundle", str(path), code=2)
    assert "No such file" in harness.refused("doctor", "client", "--bundle", str(tmp_path / "no" / "b"), code=1)


@pytest.mark.slow
def test_a_bundle_of_controls_machine_holds_no_secret_of_its_groups_and_none_of_its_own(
    admin: CliHarness, harness: CliHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_file = tmp_path / "secrets.json"  # settings with such an end are packed
    assert secret_key.make(tmp_path / "secrets.key")
    key_file.hardlink_to(tmp_path / "secrets.key")
    (harness.folder / "value").write_text("AKIAEXAMPLE:wJalrXUtnFEMI")
    harness.good("secret", "set", "ceph", "--for", "s3://host.example/a/", "--from-file", "value")
    token, key = (tmp_path / "admin-token").read_text().strip(), key_file.read_text().strip()
    url = "postgresql+psycopg://gleaner:pa55-w0rd@127.0.0.1:1/gleaner"
    del admin.environment["GLEANER_QUEUE__URL"]
    admin.environment |= {"GLEANER_QUEUE__SECRET_KEY_FILE": str(key_file)}
    (tmp_path / "gleaner.toml").write_text(
        f'[queue]\nurl = "{url}"\n[storage]\nfolder = "{tmp_path}/storage"\n# {token}\n'
    )
    (tmp_path / "log").mkdir()
    (tmp_path / "log/control.log").write_text(f"{url} failed\n{token}\n{key}\n")
    monkeypatch.setattr(bundle, "_LOGS", tmp_path / "log")
    code, _, err = admin.run("doctor", "control", *PATIENT, "--bundle", str(tmp_path / "bundle.tar.gz"))
    assert (code, err.count("\n")) == (1, 1)
    packed = gzip.decompress((tmp_path / "bundle.tar.gz").read_bytes())
    for name in (b"findings.json", b"gleaner.toml", b"control.log", b"key for secrets"):
        assert name in packed
    for secret in (token, key, "pa55-w0rd", "wJalrXUtnFEMI", "AKIAEXAMPLE"):
        assert secret.encode() not in packed


@pytest.mark.slow
def test_a_node_needs_the_agents_libraries_alone(harness: CliHarness) -> None:
    missing = tuple(set(SERVER) - set(OF_NODES))
    done = without(missing, harness, "doctor", "node", *PATIENT, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert NOT_INSTALLED not in done.stdout
    assert "itself failed" not in done.stdout
