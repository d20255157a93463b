"""Users of the cluster without a token, with munge's own programs and a private daemon."""

import getpass
import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.api.api_harness import ApiHarness, detail, served
from tests.api.munge_daemon import Daemon, munge_daemon

from gleaner.agent.job_spec import JobSpec
from gleaner.client import Client, ClientError
from gleaner.client.proof import MungeProof, TokenProof, find_proof
from gleaner.control.api.app import create_app
from gleaner.control.api.munge_login import THREADS, Once
from gleaner.control.settings import ClientSettings, MungeRule, MungeSettings
from gleaner.control.slurm import munge

pytestmark = pytest.mark.skipif(shutil.which("munged") is None, reason="munge is not installed")

ME = getpass.getuser()


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with munge_daemon() as running:
        yield running


def control(harness: ApiHarness, socket: Path, *rules: MungeRule, timeout_s: float = 20) -> ApiHarness:
    """The same control, with munge and these rules."""
    return harness.reopened(munge=MungeSettings(allow=rules, socket=socket, timeout_s=timeout_s))


@pytest.fixture
def cluster(harness: ApiHarness, daemon: Daemon) -> ApiHarness:
    return control(harness, daemon.socket, MungeRule(user=ME, group="atlas"))


def proof(daemon: Daemon, method: str = "GET", target: str = "/v1/status", body: bytes = b"") -> dict[str, str]:
    nonce, digest = munge.new_nonce(), hashlib.sha256(body).hexdigest()
    payload = munge.payload_of(method=method, target=target, body_digest=digest, nonce=nonce)
    credential = munge.encode(payload, socket=daemon.socket, timeout_s=20)
    return {"Authorization": f"Munge {credential}", "Gleaner-Proof": f"{nonce} {digest}"}


def put_unmunge(folder: Path, patch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of that name on the PATH."""
    (folder / "unmunge").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "unmunge").chmod(0o755)
    patch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_user_of_the_cluster_needs_no_token(
    cluster: ApiHarness, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLEANER_CLIENT__MUNGE_SOCKET", str(daemon.socket))
    with (
        served(create_app(cluster.state)) as client,
        Client(url=str(client.base_url), token_file=tmp_path / "none") as glean,
    ):
        job = glean.submit(JobSpec(name="pi", image="pi"), hold=True).jobs[0]
        assert glean.job(job).job.submitter == ME
        assert glean.job(job).job.group == "atlas"
        assert glean.release(job).held is False
        assert [row.id for row in glean.jobs(held=False, limit=5).jobs] == [job]
        assert glean.tokens(everything=False) == ()


def test_a_token_that_is_there_is_used_and_munge_only_where_it_runs(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    here: dict[str, Any] = {"munge_socket": daemon.socket}
    with_token = ClientSettings(token_file=tmp_path / "token", **here)
    assert isinstance(find_proof(with_token), TokenProof)
    assert isinstance(find_proof(with_token.model_copy(update={"proof": "munge"})), MungeProof)
    with pytest.raises(ClientError, match="is not there"):
        find_proof(ClientSettings(token_file=tmp_path / "none", munge_socket=tmp_path / "nowhere"))
    with pytest.raises(ClientError, match="is not there"):
        find_proof(ClientSettings(token_file=tmp_path / "none", proof="token", **here))


def test_a_credential_is_accepted_once_also_by_a_munged_that_has_forgotten_it(
    cluster: ApiHarness, daemon: Daemon
) -> None:
    headers = proof(daemon)
    assert cluster.client.get("/v1/status", headers=headers).status_code == 200
    assert "it was used already" in detail(cluster.client.get("/v1/status", headers=headers), 401)
    daemon.stop()
    daemon.start()
    assert "has already been used" in detail(cluster.client.get("/v1/status", headers=headers), 401)


def test_a_credential_is_good_for_its_own_request_only(cluster: ApiHarness, daemon: Daemon) -> None:
    job = cluster.admin.submit(group="atlas")
    body = b'{"priority": 5}'
    for method, path, content in [
        ("PATCH", f"/v1/jobs/{job}", b'{"priority": 6}'),
        ("PATCH", f"/v1/jobs/{job + 1}", body),
        ("PATCH", f"/v1/jobs/{job}?x=1", body),
        ("POST", f"/v1/jobs/{job}/cancel", body),
    ]:
        headers = proof(daemon, "PATCH", f"/v1/jobs/{job}", body)
        line = detail(cluster.client.request(method, path, content=content, headers=headers), 401)
        assert "was made for another " in line
    headers = proof(daemon, "PATCH", f"/v1/jobs/{job}", body)
    lied = headers | {"Gleaner-Proof": headers["Gleaner-Proof"][:33] + hashlib.sha256(b"{}").hexdigest()}
    assert "another request" in detail(cluster.client.patch(f"/v1/jobs/{job}", content=b"{}", headers=lied), 401)
    assert cluster.admin.get(f"/v1/jobs/{job}").json()["job"]["priority"] == 0


def test_what_is_no_credential_is_refused(cluster: ApiHarness, daemon: Daemon) -> None:
    good = proof(daemon)
    for bad in (
        good | {"Authorization": "Munge MUNGE:nonsense:"},
        good | {"Authorization": "Munge "},
        good | {"Authorization": "Munge --help"},
        good | {"Authorization": "Munge " + "A" * 5000},
        good | {"Gleaner-Proof": "00"},
        {"Authorization": good["Authorization"]},
    ):
        assert "munge" in detail(cluster.client.get("/v1/status", headers=bad), 401).lower()


def test_rules_say_who_a_unix_user_is(harness: ApiHarness, daemon: Daemon, tmp_path: Path) -> None:
    for rule, may_issue in ((MungeRule(user=ME, role="admin"), 201), (MungeRule(user=ME, group="cms"), 403)):
        there = control(harness, daemon.socket, rule)
        body = b'{"role": "metrics", "name": "x"}'
        headers = proof(daemon, "POST", "/v1/tokens", body) | {"Content-Type": "application/json"}
        assert there.client.post("/v1/tokens", content=body, headers=headers).status_code == may_issue
    nobody = control(harness, daemon.socket, MungeRule(user="somebody-else", group="cms"))
    line = detail(nobody.client.get("/v1/status", headers=proof(daemon)), 403)
    assert line == f"no rule of [[munge.allow]] admits Unix user {ME}: ask an admin"
    manager = control(harness, daemon.socket, MungeRule(user=ME, role="manager", group="atlas"))
    job = harness.user.submit()
    path = f"/v1/jobs/{job}/hold"
    assert manager.client.post(path, headers=proof(daemon, "POST", path)).status_code == 200


def test_where_no_rule_is_set_everybody_needs_a_token(harness: ApiHarness, daemon: Daemon) -> None:
    assert "accepts no munge credentials" in detail(harness.client.get("/v1/status", headers=proof(daemon)), 401)


def test_another_user_is_not_taken_for_me(cluster: ApiHarness, daemon: Daemon, tmp_path: Path) -> None:
    nonce, digest = munge.new_nonce(), hashlib.sha256(b"").hexdigest()
    payload = munge.payload_of(method="GET", target="/v1/status", body_digest=digest, nonce=nonce)
    words = ["munge", f"--socket={daemon.socket}", f"--string={payload}"]
    made = subprocess.run(words, user="nobody", capture_output=True, text=True, check=True).stdout.strip()
    headers = {"Authorization": f"Munge {made}", "Gleaner-Proof": f"{nonce} {digest}"}
    assert "admits Unix user nobody" in detail(cluster.client.get("/v1/status", headers=headers), 403)


PROGRAMS = {
    "exit 15": "it has expired: are the clocks",
    "exit 17": "it was used already",
    "exec sleep 60": "did not answer within 0.2 s",
    "echo 'STATUS: 0'": "which is not understood",
    "echo 'unmunge: Error: Failed to access socket (Did you start munged?)' >&2; exit 6": "Did you start munged?",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_munge_says_is_told_in_one_line(
    program: str, harness: ApiHarness, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = proof(daemon)
    put_unmunge(tmp_path, monkeypatch, program)
    slow = 0.2 if "sleep" in program else 20
    there = control(harness, daemon.socket, MungeRule(user=ME, group="atlas"), timeout_s=slow)
    refused = there.client.get("/v1/status", headers=headers)
    assert PROGRAMS[program] in detail(refused, 401 if program.startswith("exit") else 503)


def test_a_new_agent_is_heard_while_munge_hangs(
    harness: ApiHarness, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    begun.touch()
    headers = proof(daemon)
    put_unmunge(tmp_path, monkeypatch, f"echo >> {begun}\nwhile [ ! -e {go_on} ]; do sleep 0.1; done")
    there = control(harness, daemon.socket, MungeRule(user=ME, group="atlas"), timeout_s=60)
    with served(create_app(there.state)) as client, ThreadPoolExecutor(THREADS + 2) as pool:
        asked = [pool.submit(client.get, "/v1/status", headers=headers) for _ in range(THREADS + 2)]
        try:
            while len(begun.read_text()) < THREADS:
                time.sleep(0.01)
            agent = harness.agent(registered=False)
            heard = client.get("/v1/tokens", headers=agent.headers, timeout=30)
            assert heard.status_code == 403, "control knows who it is"
        finally:
            go_on.touch()
        assert {each.result().status_code for each in asked} == {503}


def test_a_credential_whose_maker_wanted_it_to_live_for_long_does_not(
    harness: ApiHarness, daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = proof(daemon)
    late = "/usr/bin/unmunge \"$@\" | sed 's/^DECODE_TIME: .*/DECODE_TIME: 99999999999/'"
    put_unmunge(tmp_path, monkeypatch, late)
    there = control(harness, daemon.socket, MungeRule(user=ME, group="atlas"))
    assert "is older than 60 s" in detail(there.client.get("/v1/status", headers=headers), 401)


def test_what_was_seen_is_forgotten_only_when_it_is_worth_nothing() -> None:
    once = Once(at_most=2)
    assert once.take("a", "alice", until_s=10, now_s=0)
    assert not once.take("a", "alice", until_s=10, now_s=0)
    assert once.take("b", "alice", until_s=20, now_s=0)
    with pytest.raises(Exception, match="too many munge credentials"):
        once.take("c", "alice", until_s=20, now_s=10)
    assert once.take("c", "bob", until_s=20, now_s=10), "what alice fills is hers"
    assert once.take("c", "alice", until_s=20, now_s=11)
    assert not once.take("b", "alice", until_s=20, now_s=11)


def test_the_payload_says_nothing_of_the_request_and_differs_with_each_part() -> None:
    parts = {"method": "GET", "target": "/a", "body_digest": "0", "nonce": "1"}
    said = {munge.payload_of(**(parts | {name: value + "x"})) for name, value in parts.items()}
    assert len(said | {munge.payload_of(**parts)}) == 5
