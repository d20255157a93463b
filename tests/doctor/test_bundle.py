"""No secret leaves the site with a bundle, wherever it was planted."""

import json
import tarfile
from pathlib import Path

import pytest
from tests.doctor.machine import Machine
from tests.privileged.root import only_root

from gleaner.control.doctor import bundle
from gleaner.control.doctor.finding import CheckState, Finding

SECRETS = (
    "hunter2", "horse", "s secret", "ss@w0rd", "wJalrXUtnFEMI", "AKIAIOSFODNN7EXAMPLE", "YWxpY2U6", "abc%2Fdef",
    "3q2+7w", "MDAxY2xv", "Zm9vYmFy", "MIGHAgEAMB", "AwQDAACL", "0123456789abcdef",
)  # fmt: skip
PLANTED = (
    "password = correct horse battery staple",
    'password: "abc" # old: hunter2',
    "psql: conninfo host=db user=gleaner password='it s secret'",
    "url = postgresql://gleaner:p/ss@w0rd@db/q",
    'url = "postgresql+psycopg://gleaner:hunter2@db/gleaner?password=hunter2"',
    "fetch failed: https://store/x?sig=abc%2Fdef%2Bghi12345 and https://y?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F2026",
    "aws: AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "curl -u alice:hunter2 https://host/", "--password hunter2", "PGPASSWORD hunter2", "sending pass hunter2",
    '{"auths": {"registry.site": {"auth": "YWxpY2U6aHVudGVyMg=="}}}',
    "Cookie: gleaner_session=Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmF6Zm9vYmFyYmE",
    "SlurmDB StoragePass=hunter2", "http://proxy-user:hunter2@proxy:3128", "token\n  hunter2xyz",
    "AccountingStoragePass = hunter2", "munge.key: 3q2+7w==", 'environment = { DB_PASS = "hunter2", X = "1" }',
    "DB_PASS: hunter2", "dbpwd=hunter2", "Set-Cookie: sid=hunter2", "macaroon=MDAxY2xvY2F0aW9u",
    "identified by 'hunter2'", "Authorization: Bearer hunter2", "MUNGE:AwQDAACLbiAD/8Kp+Q==:",
    "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n", "key = " + "0123456789abcdef" * 4,
    "backend = hunter2", "length_s = hunter2", "PreemptMode = hunter2", "State=hunter2", "SLURM_VERSION = hunter2",
)  # fmt: skip


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_secret_is_not_packed(text: str) -> None:
    packed = bundle.without_secrets(f"length_s = 90\n{text}\nKillWait = 30 sec\n")
    assert not [secret for secret in SECRETS if secret in packed]
    assert packed == "length_s = 90\nKillWait = 30 sec\n"


def test_what_a_report_needs_stays() -> None:
    toml = '[rounds]\nlength_s = 90\nsynchronised = true # odd\n[cluster]\nbackend = "slurm"\n[queue]\nlease_s = 1e9\n'
    assert bundle.without_secrets(toml) == "length_s = 90\nsynchronised = true\nbackend = slurm\n"
    assert bundle.without_secrets('{"agent_uid": 4200, "runc": "/x"}') == "agent_uid = 4200\n"
    record = "PartitionName=a PriorityTier=10 PreemptMode=REQUEUE State=UP MaxTime=1-00:00:00 Nodes=hunter2"
    assert bundle.without_secrets(record).splitlines() == [
        "PriorityTier = 10", "PreemptMode = REQUEUE", "State = UP", "MaxTime = 1-00:00:00",
    ]  # fmt: skip


@only_root
def test_a_bundle_holds_no_secret_and_is_its_owners_alone(control: Machine, tmp_path: Path) -> None:
    """In settings, findings and Slurm's lines: each secret is planted in each."""
    everything = "\n".join(PLANTED)
    look = control.look()
    for words in ("config", "partition"):
        control.file(f"{words}", f"{everything}\nKillWait = 30 sec\n")
    control.file("bin/scontrol", f"#!/bin/sh\nfor last; do :; done; cat {control.root}/$last\n", 0o755)
    control.file("etc/gleaner/gleaner.toml", everything)
    found = Finding("planted", CheckState.FAULT, f"a program fails: {everything}", everything)
    path = tmp_path / "bundle.tar.gz"
    bundle.pack(path, look, (found,))
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {entry.name.removeprefix("glean-doctor/"): archive.extractfile(entry) for entry in archive}
        contents = {name: file.read().decode() for name, file in texts.items() if file is not None}
    assert contents["config.txt"] == "KillWait = 30 sec\n"
    assert {"findings.json", "gleaner.toml.txt", "partition.txt"} <= set(contents)
    for name, text in contents.items():
        assert not [secret for secret in SECRETS if secret in text], name
    about = json.loads(contents["findings.json"])
    assert (about["role"], about["findings"][0]["seen"]) == ("control", "a program fails")
    with pytest.raises(FileExistsError):
        bundle.pack(path, look, (found,))
