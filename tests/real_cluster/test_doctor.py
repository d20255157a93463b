"""`glean doctor` on the real cluster: nothing is wrong there, and what was planted is named."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from demo import cluster

pytestmark = [pytest.mark.cluster, pytest.mark.extended]

NODE = "node1"
SHIM = "/usr/local/lib/gleaner/gleaner/agent/privileged/shim/main.py"
RUNC_CONF = "/etc/criu/runc.conf"
HELPER = "'sbin/[g]leaner-helper'"
"""It does not match the command line of whoever looks for it."""
PLANTED = (
    ("tiers", "head", "scontrol update PartitionName=regular PriorityTier=1",
     "scontrol update PartitionName=regular PriorityTier=10"),
    ("partition", "head", "scontrol update PartitionName=gleaner GraceTime=0",
     "scontrol update PartitionName=gleaner GraceTime=60"),
    ("certificate", "head", "chmod 644 /etc/gleaner/tls/key.pem", "chmod 600 /etc/gleaner/tls/key.pem"),
    ("service account", "head", "chmod 777 /srv/gleaner", "chmod 700 /srv/gleaner"),
    ("CRIU", NODE, f"mv {RUNC_CONF} {RUNC_CONF}.away", f"mv {RUNC_CONF}.away {RUNC_CONF}"),
    ("privileged programs", NODE, f"cp -p {SHIM} {SHIM}.away; echo '# planted' >> {SHIM}", f"mv {SHIM}.away {SHIM}"),
    ("agent program", NODE, "chmod 644 /usr/local/bin/glean-agent", "chmod 755 /usr/local/bin/glean-agent"),
    ("Epilog", NODE, "chmod 644 /usr/local/libexec/gleaner/epilog.sh",
     "chmod 755 /usr/local/libexec/gleaner/epilog.sh"),
    ("work folder", NODE, "chown root /var/lib/gleaner/work", "chown gleaner /var/lib/gleaner/work"),
    ("node helper", NODE, f"pkill -STOP -f {HELPER}", f"pkill -CONT -f {HELPER}"),
)  # fmt: skip
"""Each fault: the check that must name it, its machine, and how it is planted and taken away."""


def doctor(machine: str, role: str) -> dict[str, dict[str, str]]:
    """Return the findings by name."""
    began_s = time.monotonic()
    printed = cluster.run(machine, "sh", "-c", f"glean doctor {role} --json || true")
    print(f"glean doctor {role} on {machine}: {time.monotonic() - began_s:.1f} s")
    return {finding["name"]: finding for finding in json.loads(printed)["findings"]}


def faults(findings: dict[str, dict[str, str]]) -> set[str]:
    return {f"{name}: {finding['seen']}" for name, finding in findings.items() if finding["state"] == "fault"}


@contextmanager
def planted() -> Iterator[None]:
    """Ten faults at once, and all of them gone again."""
    try:
        for _, machine, plant, _ in PLANTED:
            cluster.run(machine, "sh", "-c", plant)
        yield
    finally:
        for _, machine, _, take_away in PLANTED:
            cluster.run(machine, "sh", "-c", f"{take_away} || true")


@pytest.mark.usefixtures("quiet")
def test_a_cluster_in_order_has_no_fault_and_ten_planted_ones_are_named() -> None:
    assert faults(doctor("head", "control")) == set()
    assert faults(doctor(NODE, "")) == set()  # it finds out by itself what it is
    assert faults(doctor("head", "client")) == set()
    with planted():
        found = {"head": doctor("head", "control"), NODE: doctor(NODE, "node")}
    named = {name for name, machine, *_ in PLANTED if found[machine][name]["state"] == "fault"}
    assert {name for name, *_ in PLANTED} - named == set()
    cluster.run("head", "scontrol", "reconfigure")
    assert faults(doctor("head", "control")) | faults(doctor(NODE, "node")) == set()
