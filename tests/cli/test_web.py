"""`glean web`: the address that it prints signs a browser in, once."""

import httpx
from tests.cli.cli_harness import CliHarness


def test_the_address_signs_a_browser_in_as_whoever_asked(harness: CliHarness) -> None:
    page, _, code = harness.good("web").strip().partition("#")
    assert page == f"{harness.environment['GLEANER_CLIENT__URL']}/web/sign-in"
    with httpx.Client(timeout=300, trust_env=False) as browser:
        assert 'name="code"' in browser.get(page).text
        answer = browser.post(page, data={"code": code})
        assert answer.status_code == 303
        assert "alice (atlas)" in browser.get(page.removesuffix("/sign-in")).text
        assert browser.post(page, data={"code": code}).status_code == 401


def test_without_a_browser_here_open_says_what_to_do(harness: CliHarness) -> None:
    harness.environment["BROWSER"] = "false"
    harness.environment["PATH"] = "/nowhere"
    assert "leave out --open" in harness.refused("web", "--open", code=1)
