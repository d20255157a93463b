"""CRIU's stream protocol, as the agent hears it: a name is one plain name, and what is no request ends the stream."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.privileged.shim.criu_messages import StreamBroken, parse_request

NAMES = ["../x", "a/b", "/etc/passwd", ".", "..", ".hidden", "", "a\0b", "a b", "a\n", "ä", "x" * 201]


def request(name: str) -> bytes:
    raw = name.encode()
    return b"\x0a" + bytes([min(len(raw), 127)]) + raw


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_an_image_is_never_named_like_a_path(name: str) -> None:
    with pytest.raises(StreamBroken):
        parse_request(request(name))


@given(st.binary(max_size=40))
def test_whatever_is_asked_for_is_a_plain_name_or_refused(message: bytes) -> None:
    with contextlib.suppress(StreamBroken):
        name = parse_request(message)
        assert "/" not in name
        assert name.isprintable()
        assert not name.startswith(".")


@pytest.mark.parametrize("name", ["../descriptors.json", "/descriptors.json"])
def test_a_restore_cannot_ask_for_parts_that_are_no_images(name: str) -> None:
    with pytest.raises(StreamBroken):
        parse_request(request(name))
