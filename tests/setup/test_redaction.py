"""No secret leaves the site with a bundle, wherever it was planted."""

import json
import os
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from tests.setup import healthy as h

from gleaner.control.settings import QueueSettings
from gleaner.control.setup import bundle
from gleaner.control.setup.doctor import findings
from gleaner.control.setup.facts import TextFile
from gleaner.control.setup.finding import CheckState, Finding
from gleaner.control.setup.redaction import without_secrets

PASSWORD = "hunt/er:2@home"
KEY = (
    "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49/AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2\n"
    "-----END PRIVATE KEY-----\n"
)
RANDOM = "q7hWz-3fQ9xJ_2LmN8vR4tYb6KcPd1SgEa0UoIw5XyZ"
PLANTED = {
    "a password in a URL": ('url = "postgresql+psycopg://gleaner:s3cr3t@db/gleaner"', "s3cr3t"),
    "one with signs in it": (f"connecting to postgresql://gleaner:{PASSWORD}@db/gleaner failed", PASSWORD),
    "one in the query": ("postgresql://db/gleaner?user=g&password=s3cr3t&x=1", "s3cr3t"),
    "a key of settings": ('s3_secret_key = "AKI/abc+def"', "AKI/abc+def"),
    "one in JSON": ('{"proxy_password": "abc", "debug": true}', '"abc"'),
    "one of an environment": ("PGPASSWORD=abc123 psql", "abc123"),
    "the second of a list": ('tokens = ["abc1", "def2"]', "def2"),
    "one that looks like a path": ('password = "/abc"', "/abc"),
    "one beside a known one": ("token = ***x7", "x7"),
    "one by a short name": ("pwd=abc1", "abc1"),
    "a header": ("Authorization: Bearer tiny-token", "tiny-token"),
    "another one": ("sent 'authorization': 'Basic dTpw' to head", "dTpw"),
    "one that is no bearer's": ("authorization: Negotiate YII/abc", "YII/abc"),
    "a bearer's, by another name": ("curl -H 'X-Auth: Bearer tiny-token' head", "tiny-token"),
    "a token by itself": (f"token {RANDOM} refused", RANDOM),
    "a key by itself": ("key: " + "0a" * 32, "0a" * 32),
    "a credential of munge": ("MUNGE:AwQDAACLbiAD/8Kp+Q==: was refused", "AwQDAACLbiAD"),
    "a private key": (KEY, "MIGHAgEAMBMGByqGSM49"),
    "the end of a private key": (KEY.partition("\n")[2], "evZzL1gdAFr88hb2"),
    "a private key without its end": (KEY.partition("-----END")[0], "evZzL1gdAFr88hb2"),
    "one on one line": ("-----BEGIN EC PRIVATE KEY-----\\nab/cd+ef/gh\\n-----END EC PRIVATE KEY-----", "ab/cd+ef/gh"),
    "a code that signs in": ("https://head:8642/web/sign-in#Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZg", "Zm9vYmFyYmF6"),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_secret_is_taken_out(what: str) -> None:
    text, secret = PLANTED[what]
    assert secret not in without_secrets(f"before\n{text}\nafter")


def test_what_a_report_needs_stays() -> None:
    text = (
        'ca_file = "/etc/gleaner/tls/ca.pem"\nkey = "/etc/gleaner/tls/key.pem"\n'
        'token_file = "~/.config/gleaner/token"\n'
        '"user_jobs_key": "/etc/gleaner/user-jobs.key",\nimage sha256:' + "a1" * 32 + " is missing\nlength_s = 90\n"
    )
    assert without_secrets(text) == text


def test_a_bundle_holds_no_secret_and_is_its_owners_alone(tmp_path: Path) -> None:
    """In settings, findings, Slurm's lines and logs: each secret is planted in each."""
    everything = "\n".join([h.TOKEN, f"with {PASSWORD}", *(text for text, _ in PLANTED.values())])
    on_one_line = everything.replace("\n", " ")
    facts = h.slurm("Slurmctld(primary)", f"Epilog = {on_one_line}")
    facts = h.file(facts, "/etc/gleaner/gleaner.toml", TextFile(everything))
    facts = h.file(facts, "/etc/key.pem", TextFile(KEY, mode=0o600))
    facts = replace(
        facts, settings=h.settings(queue=QueueSettings(url="postgresql+psycopg://g:hunt%2Fer%3A2%40home@db/g"))
    )
    found = (*findings(facts), Finding("planted", CheckState.FAULT, on_one_line, on_one_line))
    path = tmp_path / "bundle.tar.gz"
    bundle.pack(path, facts, found, {"control.log": everything})
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {entry.name.removeprefix("glean-doctor/"): archive.extractfile(entry) for entry in archive}
        contents = {name: file.read().decode() for name, file in texts.items() if file is not None}
    settings = {"settings/gleaner.toml", "settings/slurm-admin.conf"}
    assert set(contents) == {"findings.json", *settings, "slurm.txt", "logs/control.log"}
    for name, text in contents.items():
        for secret in (h.TOKEN, *(secret for _, secret in PLANTED.values())):
            assert secret not in text, name
    assert json.loads(contents["findings.json"])["role"] == "control"
    assert "AccountingStorageEnforce = associations" in contents["slurm.txt"]
    with pytest.raises(FileExistsError):
        bundle.pack(path, facts, found, {"control.log": everything})


def test_of_a_long_log_the_last_lines_are_packed(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(100_000)))
    lines = bundle.tail(tmp_path / "a.log").splitlines()
    assert (len(lines), lines[-1]) == (300, "line 99999")


def test_no_link_in_a_folder_of_logs_is_followed(tmp_path: Path) -> None:
    """The agents' account may write there, and root packs what it finds."""
    (tmp_path / "shadow").write_text("root's own")
    (tmp_path / "a.log").symlink_to("shadow")
    os.mkfifo(tmp_path / "b.log")
    with pytest.raises(OSError, match="symbolic links"):
        bundle.tail(tmp_path / "a.log")
    assert bundle.tail(tmp_path / "b.log") == "not a plain file\n"
