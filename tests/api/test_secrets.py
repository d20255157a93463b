"""Secrets of groups: who may set and remove them, and that no answer, no log and no table has a value."""

import json
import stat
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from httpx import Response
from sqlalchemy import select
from tests.api.api_harness import ApiHarness, Caller, detail

from gleaner.control.models.secrets import MOST_SECRETS, SecretPut
from gleaner.control.queue import secret_key
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.tables import SECRET
from gleaner.control.settings import AuditSettings

pytestmark = pytest.mark.slow
VALUE = "AKIAEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
CEPH = {"name": "ceph", "url": "s3://s3.example.org/atlas/", "value": VALUE}


@pytest.fixture
def key_file(harness: ApiHarness) -> Path:
    """Control's key."""
    path = harness.state.settings.queue.secret_key_file
    assert secret_key.make(path)
    return path


def put(caller: Caller, **more: object) -> Response:
    return caller.post("/v1/secrets", CEPH | more)


def remove(caller: Caller, name: str = "ceph", query: str = "") -> Response:
    answer: Response = caller.client.delete(f"/v1/secrets/{name}{query}", headers=caller.headers)
    return answer


@pytest.mark.usefixtures("key_file")
def test_a_secret_is_set_listed_replaced_and_removed_and_its_value_never_comes_back(
    harness: ApiHarness, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    harness = harness.reopened(audit=AuditSettings(file=audit))
    made = put(harness.user)
    row = {"name": "ceph", "group": "atlas", "url": CEPH["url"], "kind": "S3 keys"}
    assert (made.status_code, made.json()) == (201, row | {"set_s": harness.now_s, "setter": "alice"})
    harness.now_s += 5
    assert put(harness.user, url="s3://s3.example.org/", value="A:B").json()["set_s"] == harness.now_s
    (listed,) = harness.user.get("/v1/secrets").json()
    assert listed == row | {"url": "s3://s3.example.org/", "set_s": harness.now_s, "setter": "alice"}
    assert remove(harness.user).json() == listed
    assert harness.user.get("/v1/secrets").json() == []
    assert "no secret ceph" in detail(remove(harness.user), 404)
    harness.close()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["what"] for line in lines] == ["set_secret", "set_secret", "remove_secret", "remove_secret"]
    assert "group atlas, secret ceph for s3://s3.example.org/atlas/" in lines[0]["about"]
    assert VALUE.partition(":")[2] not in audit.read_text()


@pytest.mark.usefixtures("key_file")
def test_a_secret_is_changed_by_its_setter_a_manager_or_an_admin_only_and_seen_by_its_group_only(
    harness: ApiHarness,
) -> None:
    put(harness.user)
    bob, stranger = harness.caller("user", "bob", "atlas"), harness.caller("user", "carl", "cms")
    for refused in (put(bob), remove(bob)):
        assert "only alice, a manager of group atlas or an admin" in detail(refused, 403)
    assert len(bob.get("/v1/secrets").json()) == 1
    assert stranger.get("/v1/secrets").json() == []
    assert "agent's token" in detail(harness.agent().get("/v1/secrets"), 403)
    assert remove(harness.admin, query="?group=atlas").status_code == 200
    put(stranger)
    assert [row["group"] for row in harness.admin.get("/v1/secrets").json()] == ["cms"]


@pytest.mark.usefixtures("key_file")
def test_no_two_secrets_of_a_group_are_for_one_url_and_a_group_has_so_many_at_most(harness: ApiHarness) -> None:
    put(harness.user)
    assert "the secret ceph is for s3://S3.example.org:443/atlas" in detail(
        put(harness.user, name="other", url="s3://S3.example.org:443/atlas"), 409
    )
    for number in range(1, MOST_SECRETS):
        assert put(harness.user, name=f"s{number}", url=f"s3://s3.example.org/b{number}").status_code == 201
    assert "remove some" in detail(put(harness.user, name="more", url="s3://more/"), 409)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"value": "wJalrXUtnFEMI"}, "a secret for s3:// must be ACCESS_KEY:SECRET_KEY"),
        ({"value": "A:wJalrXUtnFEMI\n"}, "in one line of plain letters"),
        ({"value": "A:wJalrXUtnFEMI" + "x" * 9000}, "at most 8192"),
        ({"url": "file:///data", "value": "wJalrXUtnFEMI"}, "url: string should match"),
        ({"url": "https://me:wJalrXUtnFEMI@host/"}, "leave it out"),
        ({"extra": "wJalrXUtnFEMI"}, "extra: there is no such field"),
    ],
)
def test_a_wrong_secret_is_one_line_without_the_value(
    harness: ApiHarness, caplog: pytest.LogCaptureFixture, wrong: dict[str, object], said: str
) -> None:
    line = detail(put(harness.user, **wrong), 422)
    assert said in line
    assert "wJalr" not in line + caplog.text


def test_a_missing_or_wrong_key_is_one_line(harness: ApiHarness) -> None:
    path = harness.state.settings.queue.secret_key_file
    assert f"an admin makes {path} with `glean control prepare`" in detail(put(harness.user), 503)
    path.write_text("no key\n")
    path.chmod(0o600)
    assert "has no key for secrets" in detail(put(harness.user), 503)
    path.chmod(0o640)
    assert f"chmod 600 {path}" in detail(put(harness.user), 503)
    path.chmod(0o600)
    path.write_bytes(Fernet.generate_key())
    assert put(harness.user).status_code == 201
    assert harness.user.get("/v1/secrets").status_code == 200


def test_the_database_has_a_value_only_encrypted_and_the_key_is_the_accounts_alone(
    harness: ApiHarness, key_file: Path
) -> None:
    put(harness.user)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    with snapshot(harness.state.engine) as db:
        (row,) = db.execute(select(SECRET)).all()
    assert "wJalr" not in repr(row)
    key_file.write_bytes(Fernet.generate_key() + b"\n" + key_file.read_bytes())  # a new one before the old one
    assert secret_key.read(key_file).decrypt(row.sealed).decode() == VALUE


def test_the_model_shows_its_value_only_where_it_is_sent() -> None:
    given = SecretPut.model_validate(CEPH)
    for shown in (repr(given), str(given), given.model_dump_json(), repr(given.model_dump())):
        assert "wJalr" not in shown
    assert json.loads(given.with_value())["value"] == VALUE
    with pytest.raises(ValueError, match="a secret for s3") as wrong:
        SecretPut.model_validate(CEPH | {"value": "wJalr"})
    assert "wJalr" not in f"{wrong.value} {wrong.value!r}"
