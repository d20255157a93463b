"""Bytes from outside: no JSON raises anything but `ValueError`, and what is shown can be stored anywhere."""

import contextlib
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.effort import examples

from gleaner.agent.system.untrusted import json_of, storable, text_of

strings = st.text(st.characters(codec=None))
"""Texts of any characters, halves of surrogate pairs among them."""
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | strings,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(strings, inner, max_size=4),
    max_leaves=10,
)


@given(st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()), st.booleans())
@example(b"[" * 100_000, True)
@example(b'{"a": ' + b"9" * 5000 + b"}", True)
@example(b'{"a":' * 50_000, False)
@settings(max_examples=examples(200))
def test_no_bytes_raise_anything_else(content: bytes, is_shown: bool) -> None:
    with contextlib.suppress(ValueError):
        json.dumps(json_of(content, for_display=is_shown), allow_nan=False)


@given(values, st.booleans())
@settings(max_examples=examples(200))
def test_what_is_shown_can_be_stored_and_sent(value: object, is_ascii: bool) -> None:
    text = json.dumps({"a": value}, ensure_ascii=is_ascii).replace("\\\\u", "\\u")
    with contextlib.suppress(ValueError):
        stored = json.dumps(json_of(text, for_display=True), ensure_ascii=False)
        assert "\\u0000" not in stored.replace("\\\\", "")
        assert stored.encode().decode() == stored


@given(st.text())
def test_a_text_that_is_a_text_stays_as_it_is(text: str) -> None:
    assert json_of(json.dumps(text), for_display=True) == text.replace("\0", "\ufffd")
    assert json_of(json.dumps(text)) == text


@pytest.mark.parametrize("content", [b'"caf\xe9"', b'"a\nb"', b"\xff\xfe[\0]\0"])
def test_a_message_that_somebody_has_to_obey_is_taken_as_it_is_or_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        json_of(content)


@given(st.binary())
def test_every_text_can_be_written_again(content: bytes) -> None:
    found = text_of(content)
    assert "\0" not in found
    assert found.encode().decode() == found
    assert text_of(found.encode()) == found


@given(strings)
def test_every_text_that_is_stored_can_be_stored(text: str) -> None:
    found = storable(text)
    assert "\0" not in found
    assert found.encode().decode() == found == storable(found)
