"""The list of allowed URLs, and the tricks to get round it."""

import pytest

from gleaner.agent.common.allowed_urls import address_refusal, location, refusal

LIST = (
    "https://data.example.org/pub/",
    "https://*.cern.example/",
    "https://host:8443",
    "file:///data/public",
    "s3://open-data/",
    "s3://s3.example.org/atlas/",
)


@pytest.mark.parametrize(
    "url",
    [
        "https://data.example.org/pub/a",
        "HTTPS://Data.Example.ORG:443/pub/a?version=1",
        "https://data.example.org/pub/%61/b",
        "https://eos.cern.example/any/where",
        "https://host:8443/x",
        "file:///data/public/run/1",
        "s3://open-data/run/1",
        "s3://s3.amazonaws.com/open-data/run/1",
        "s3://s3.example.org/atlas/run/1",
    ],
)
def test_what_is_below_an_entry_is_allowed(url: str) -> None:
    assert refusal(url, LIST) == ""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://data.example.org/private/a", "not below a URL that this site allows"),
        ("https://data.example.org/public", "not below"),
        ("https://data.example.org.evil.example/pub/a", "not below"),
        ("https://data.example.org:444/pub/a", "not below"),
        ("https://cern.example/a", "not below"),
        ("https://evilcern.example/a", "not below"),
        ("https://*.cern.example/a", "a host has no *"),
        ("file:///data/publications/a", "not below"),
        ("s3://atlas/run/1", "not below"),
        ("https://s3.example.org/atlas/run/1", "not below"),
        ("s3://key:secret@s3.example.org/atlas/a", "leave it out"),
        ("http://data.example.org/pub/a", "must begin with https://"),
        ("data.example.org/pub/a", "must begin with https://"),
        ("https://data.example.org/pub/../private/a", "must not lead upward"),
        ("https://data.example.org/pub/%2e%2E/private/a", "must not lead upward"),
        ("https://data.example.org/pub/a%2F..%2F..%2Fb", "must not lead upward"),
        ("https://data.example.org/pub\\@evil.example/a", "plain letters"),
        ("https://data.example.org/pub/\na", "plain letters"),
        ("https://me:secret@data.example.org/pub/a", "leave it out"),
        ("https://evil.example@data.example.org/pub/a", "leave it out"),
        ("https://data.example.org#@evil.example/pub/a", "no # in it"),
        ("https://[::1/pub/a", "Invalid IPv6 URL"),
        ("https:///pub/a", "must be like https://host/name"),
        ("https://data.example.org/pub/" + "a" * 2000, "at most 2000"),
        ("file://host/data/public/a", "three slashes"),
    ],
)
def test_everything_else_is_one_line(url: str, said: str) -> None:
    line = refusal(url, LIST)
    assert said in line
    assert "\n" not in line
    assert len(line) < 500


def test_an_empty_list_says_what_an_admin_may_do() -> None:
    line = refusal("https://data.example.org/pub/a?key=secret", ())
    assert line == (
        "https://data.example.org/pub/a?… may not be fetched, as this site allows no URLs:"
        " an admin may add it to urls in [inputs]"
    )


def test_an_entry_is_read_like_a_url() -> None:
    with pytest.raises(ValueError, match="must begin with"):
        location("gopher://data")


@pytest.mark.parametrize(
    ("address", "whose"),
    [
        ("127.0.0.1", "of the node itself"),
        ("::1", "of the node itself"),
        ("0.0.0.0", "of the node itself"),
        ("::ffff:127.0.0.1", "of the node itself"),
        ("169.254.169.254", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("224.0.0.1", "of many hosts"),
        ("10.0.0.7", "control's"),
        ("nonsense", "nobody can read"),
    ],
)
def test_addresses_to_which_an_agent_does_not_connect(address: str, whose: str) -> None:
    assert whose in address_refusal("data", address, named=["192.0.2.1"], of_control=["10.0.0.7"])


def test_other_addresses_and_those_that_the_list_names_are_connected_to() -> None:
    for address in ("10.0.0.8", "192.0.2.1", "2001:db8::1"):
        assert address_refusal("data", address, named=(), of_control=["10.0.0.7"]) == ""
    for address in ("10.0.0.7", "169.254.1.1"):
        assert address_refusal("data", address, named=[address], of_control=["10.0.0.7"]) == ""
