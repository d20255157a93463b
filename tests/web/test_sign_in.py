"""Signing in: by a token or a code, for some hours, from our own pages alone, and never with a secret in an address."""

import getpass
import grp
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.api.api_harness import ApiHarness
from tests.web.web_harness import HERE, Browser, browser_of

from gleaner.control.queue import tokens, web_sessions
from gleaner.control.queue.database import transaction
from gleaner.control.queue.tokens import Identity
from gleaner.control.settings import AuditSettings, MungeRule, MungeSettings


def test_who_is_not_signed_in_is_led_to_the_form_and_back(harness: ApiHarness) -> None:
    browser = Browser(harness)
    asked = browser.get("/web/jobs?state=New&text=pi")
    assert asked.status == 303
    form = browser.good(asked.answer.headers["location"])
    (wanted, _of_the_code) = [a["value"] for tag, a in form.elements if a.get("name") == "next"]
    answer = browser.client.post(
        "/web/sign-in",
        data={"token": harness.user.headers["Authorization"].split()[1], "next": str(wanted)},
        headers=HERE,
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/web/jobs?state=New&text=pi")
    assert "alice (atlas)" in browser.good("/web/jobs?state=New&text=pi").text


def test_the_root_leads_to_the_page_and_the_api_stays_as_it_was(harness: ApiHarness) -> None:
    browser = browser_of(harness, harness.user)
    assert browser.get("/").answer.headers["location"] == "/web"
    assert browser.client.get("/health").json()["status"] == "ok"
    cookie = browser.client.cookies["gleaner_session"]
    assert browser.client.get("/v1/jobs").status_code == 401
    assert browser.client.get("/v1/jobs", headers={"Cookie": f"gleaner_session={cookie}"}).status_code == 401
    assert browser.client.get("/webcam").status_code == 401  # not one of the pages


def test_agents_and_readers_of_metrics_do_not_sign_in(harness: ApiHarness) -> None:
    for caller in (harness.agent(), harness.caller("metrics", "scraper", None)):
        assert Browser(harness).sign_in(caller).status_code == 401
        assert caller.post("/v1/web-codes").status_code == 403


@pytest.mark.parametrize("secret", ["", "wrong", "x" * 5000, "\N{SNOWMAN}", "a\x00b", "' OR 1=1 --"])
@pytest.mark.parametrize("kind", ["token", "code"])
def test_a_wrong_secret_gets_the_form_again(harness: ApiHarness, kind: str, secret: str) -> None:
    browser = Browser(harness)
    answer = browser.client.post("/web/sign-in", data={kind: secret}, headers=HERE)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert secret not in answer.text or len(secret) < 6


def test_the_cookie_is_for_pages_alone_and_for_no_script(harness: ApiHarness) -> None:
    said = Browser(harness).sign_in(harness.user).headers["set-cookie"].lower()
    assert {"httponly", "path=/web", "samesite=strict"} <= {part.strip() for part in said.split(";")}
    assert "secure" not in said
    browser = Browser(harness)
    browser.client.base_url = "https://testserver"
    said = browser.client.post(
        "/web/sign-in",
        data={"token": harness.user.headers["Authorization"].split()[1]},
        headers={"Origin": "https://testserver"},
    ).headers["set-cookie"]
    assert "secure" in {part.strip().lower() for part in said.split(";")}


def test_a_session_ends_by_itself_with_its_token_and_when_one_signs_out(harness: ApiHarness) -> None:
    browsers = [browser_of(harness, harness.user) for _ in range(2)]
    bob = harness.caller("user", "bob", "atlas")
    bobs = browser_of(harness, bob)
    cookie = browsers[0].client.cookies["gleaner_session"]
    left = browsers[0].send("/web/sign-out")
    assert "You are signed out." in browsers[0].good(left.answer.headers["location"]).text
    assert "gleaner_session" not in browsers[0].client.cookies
    stolen = browsers[0].client.get("/web", headers={"Cookie": f"gleaner_session={cookie}"})
    assert stolen.status_code == 303
    with transaction(harness.state.engine) as db:
        tokens.revoke(db, role="user", name="bob", now_s=harness.now_s)
    assert bobs.get("/web").status == 303
    harness.now_s += web_sessions.SESSION_S - 1
    browsers[1].good("/web")
    harness.now_s += 1
    assert browsers[1].get("/web").status == 303


def test_a_session_lasts_while_the_rules_of_munge_give_its_rights_and_is_listed_and_ended_like_a_token(
    harness: ApiHarness,
) -> None:
    me, unix_group = getpass.getuser(), grp.getgrgid(os.getgid()).gr_name

    def rules(*allow: MungeRule) -> None:
        munge = MungeSettings(allow=allow)
        harness.state.settings = harness.state.settings.model_copy(update={"munge": munge})

    def code() -> str:
        with transaction(harness.state.engine) as db:
            return web_sessions.issue_code(db, Identity("admin", me, None), now_s=harness.now_s)

    admins = MungeRule(unix_group=unix_group, role="admin")
    rules(admins)
    browser, other = Browser(harness), Browser(harness)
    for one in (browser, other):
        assert one.sign_in_with(code=code()).status_code == 303
    for others in ([], [MungeRule(unix_group=unix_group, group="atlas")], [MungeRule(user="eve", role="admin")]):
        rules(*others)
        assert browser.get("/web/drains").status == 303
    assert Browser(harness).sign_in_with(code=code()).status_code == 401
    rules(admins)
    browser.good("/web/drains")
    browser_of(harness, harness.user)
    listed = harness.admin.get("/v1/tokens").json()
    (alice,) = (one["id"] for one in listed if one["name"] == "alice" and not one["session_of"])
    assert [one["session_of"] for one in listed if one["name"] == "alice"] == ["", alice]
    assert [one["name"] for one in harness.user.get("/v1/tokens").json()] == ["alice", "alice"]
    for session in (one["id"] for one in listed if one["session_of"] == "munge"):
        assert harness.user.post(f"/v1/tokens/{session}/revoke").status_code == 404
        assert harness.admin.post(f"/v1/tokens/{session}/rotate").status_code == 404
        assert harness.admin.post(f"/v1/tokens/{session}/revoke").json()["revoked_s"] == harness.now_s
    assert browser.get("/web").status == other.get("/web").status == 303
    assert len(harness.admin.get("/v1/tokens").json()) == 3
    assert harness.user.post("/v1/tokens/own/revoke").status_code == 200
    assert [one["name"] for one in harness.admin.get("/v1/tokens").json()] == ["root"]


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/web", "//evil.example", "/web\\@evil.example", "javascript:alert(1)", "/web/../v1/jobs", ""],
)
def test_signing_in_never_leads_elsewhere(harness: ApiHarness, elsewhere: str) -> None:
    token = harness.user.headers["Authorization"].split()[1]
    answer = Browser(harness).client.post("/web/sign-in", data={"token": token, "next": elsewhere}, headers=HERE)
    assert answer.status_code == 303
    place = urlsplit(answer.headers["location"])
    assert (place.scheme, place.netloc) == ("", "")
    assert place.path.startswith("/web")


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"},
     {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": "none"}, {"Origin": "http://[broken"}],
)  # fmt: skip
def test_no_other_site_signs_anybody_in_or_acts(harness: ApiHarness, headers: dict[str, str]) -> None:
    token = harness.user.headers["Authorization"].split()[1]
    assert Browser(harness).client.post("/web/sign-in", data={"token": token}, headers=headers).status_code == 403
    job = harness.user.submit()
    browser = browser_of(harness, harness.user)
    fields = {"form_token": browser.form_token()}
    assert browser.client.post(f"/web/jobs/{job}/hold", data=fields, headers=headers).status_code == 403
    assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["held"] is False


@pytest.mark.parametrize("form_token", [None, "", "wrong", "\N{SNOWMAN}"])
def test_a_form_that_is_not_of_this_session_does_nothing(harness: ApiHarness, form_token: str | None) -> None:
    job = harness.user.submit()
    browser = browser_of(harness, harness.user)
    fields = {} if form_token is None else {"form_token": form_token}
    assert browser.client.post(f"/web/jobs/{job}/hold", data=fields).status_code == 403
    others = {"form_token": browser_of(harness, harness.user).form_token()}
    assert browser.client.post(f"/web/jobs/{job}/hold", data=others).status_code == 403
    assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["held"] is False


def test_signing_in_is_in_the_audit_log_and_the_token_is_not(harness: ApiHarness, tmp_path: Path) -> None:
    file = tmp_path / "audit.log"
    harness.state.settings = harness.state.settings.model_copy(update={"audit": AuditSettings(file=file)})
    browser = browser_of(harness, harness.user)
    assert browser.send("/web/jobs/1/hold").status == 404
    text = file.read_text()
    assert '"who":"alice"' in text
    assert '"call":"POST /web/sign-in"' in text
    assert '"call":"POST /web/jobs/1/hold"' in text
    assert harness.user.headers["Authorization"].split()[1] not in text
    assert browser.client.cookies["gleaner_session"] not in text


def test_every_answer_keeps_browsers_from_loading_anything_from_elsewhere(harness: ApiHarness) -> None:
    browser = browser_of(harness, harness.user)
    for path in ("/", "/web", "/web/jobs/99", "/web/nothing", "/web/sign-in", "/web/static/page.js"):
        headers = browser.get(path).answer.headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
        assert headers["cache-control"] == "no-store" or "/static/" in path
    assert "content-security-policy" not in browser.client.get("/health").headers
