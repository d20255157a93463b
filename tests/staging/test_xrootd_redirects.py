"""The places to which a server of XRootD leads, and the tricks in them."""

import pytest

from gleaner.agent.common.allowed_urls import refusal
from gleaner.agent.staging.child_process import MayNot
from gleaner.agent.staging.fetch_xrootd import library_settings, library_url, redirect_target

SAID = "[ERROR] Unhandled redirect: "


@pytest.mark.parametrize(
    ("told", "target"),
    [
        ("root://data:1095/", "root://data:1095//pub/a%20b"),
        ("root://data:1095//other/c?cap.sym=x%2B/y=&cap.msg=z&", "root://data:1095//other/c?cap.sym=x%2B/y=&cap.msg=z"),
        ("root://data:1095/?xrd.gsiusrpxy=/etc/x&xrdcl.unzip=b&a=1", "root://data:1095//pub/a%20b?a=1"),
        ("root://[2001:db8::1]:1094/", "root://[2001:db8::1]:1094//pub/a%20b"),
        ("root://[::ffff:192.0.2.1]:1094/", "root://192.0.2.1:1094//pub/a%20b"),
        ("roots://data:1095/", "roots://data:1095//pub/a%20b"),
    ],
)
def test_a_redirect_is_read_as_the_library_says_it(told: str, target: str) -> None:
    assert redirect_target("root://host//pub/a%20b", SAID + told) == target


def test_what_came_over_tls_goes_on_over_tls() -> None:
    assert redirect_target("roots://host//a", f"{SAID}root://data:1095/") == "roots://data:1095//a"


@pytest.mark.parametrize(
    "told", ["https://data/pub/a", "file://localhost/etc/hostname", "root://data", "nonsense", "http://[::1]/", ""]
)
def test_a_redirect_to_what_is_not_allowed_or_is_no_place_is_one_line(told: str) -> None:
    try:
        target = redirect_target("root://host//pub/a", SAID + told)
    except MayNot as error:
        line = str(error)
    else:
        line = refusal(target, ("root://host//pub/", "https://data/", "file:///etc/"))
    assert line
    assert "\n" not in line


@pytest.mark.parametrize("told", ["root://host/pub/../private/a", "root://host//pub/%2e%2e/a", "root://me@host/pub/a"])
def test_a_redirect_does_not_lead_out_of_what_is_allowed(told: str) -> None:
    """A server's path has no escapes: `%2e%2e` is a folder with this very name."""
    target = redirect_target("root://host//pub/a", SAID + told)
    if reason := refusal(target, ("root://host//pub/",)):
        assert "upward" in reason or "leave it out" in reason
    else:
        assert library_url(target) == "root://host:1094//pub/%2e%2e/a"


def test_the_path_that_was_checked_is_the_one_that_is_asked_for() -> None:
    assert library_url("root://Host:1095/pub//%C3%BC") == "root://host:1095//pub/ü"
    for url in ("root://host//a%3Fxrd.wantprot=gsi", "root://host//a%0Ab"):
        with pytest.raises(MayNot, match="has a letter that no file there has"):
            library_url(url)


def test_a_token_is_all_that_a_server_may_ask_for_if_there_is_one() -> None:
    with_token, without = library_settings(0.2, "t0ken"), library_settings(60, "")
    assert (with_token["XrdSecPROTOCOL"], with_token["BEARER_TOKEN"]) == ("ztn", "t0ken")
    assert (without["XrdSecPROTOCOL"], "BEARER_TOKEN" in without) == ("unix,host", False)
    assert (with_token["XRD_REQUESTTIMEOUT"], without["XRD_STREAMTIMEOUT"]) == ("1", "60")
