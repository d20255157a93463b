"""`glean doctor` by hand: against a control that runs, one that is away, and with tokens of all kinds."""

import json

import pytest
from tests.cli.cli_harness import CliHarness, Service
from tests.cli.test_services import SERVER, without

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


def test_people_get_a_table_with_the_worst_first_and_a_count(harness: CliHarness, service: Service) -> None:
    service.stop()
    code, out, err = harness.run("doctor", "client", *PATIENT, "--bundle", "bundle.tar.gz")
    lines = out.splitlines()
    assert (code, (harness.folder / "bundle.tar.gz").is_file()) == (1, True)
    assert err.startswith("glean: bundle.tar.gz contains what a bug report needs")
    assert lines[0].split() == ["STATE", "CHECK", "SEEN", "TO", "DO"]
    assert lines[1].startswith("fault")
    assert "Connection refused" in lines[1]
    assert lines[-1].startswith("client: 1 fault, ")


@pytest.mark.slow
def test_a_node_needs_the_agents_libraries_alone(harness: CliHarness) -> None:
    missing = tuple(set(SERVER) - set(OF_NODES))
    done = without(missing, harness, "doctor", "node", *PATIENT, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert "is not installed here" not in done.stdout
    assert "itself failed" not in done.stdout
