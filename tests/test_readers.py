"""No reader of bytes from outside raises anything but its own errors: any bytes, and good ones that were changed."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.readers import READERS, Reader, as_json

ODD = (
    b"", b"\0", b"\xff", b"\xed\xa0\x80", b"-1", b"0", b"9" * 30, b"NaN", b"1e999", b"null", b"[]", b"{}", b'""', b"\n",
    b"|", "²".encode(), "٣".encode(), b"[", b"]", b'"\\ud800"', b'"\\u0000"', b"caf\xe9", b"2026-99-99T99:99:99",
)  # fmt: skip
"""Bytes that are put anywhere into a good example."""
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 10**19, 10**400, float("nan"), float("inf"), "", "x", "\ud800", "\0", "a" * 300, [], {},
    [[]], ["x"], [None], {"set": True}, {"set": True, "number": "x"}, {"number": 1}, "9" * 20, "²", "n[1-",
)  # fmt: skip
"""Values that take the place of any value in a good example of JSON."""
HOPELESS = (
    b"", b"\0" * 600, b"\xff" * 600, b"[" * 100_000, b'{"a":' * 50_000, b"[" * 100_000 + b"]" * 100_000, b"9" * 5000,
    b'{"jobs": ' + b"9" * 5000 + b"}", b"a = " + b"[" * 50_000, b"\x1f\x8b" + b"x" * 100, b"- " * 30_000,
    b"a" * 100_000,    json.dumps({"jobs": {}, "nodes": 7, "said": []}).encode(), b"\xfe\xff\0{\0}", b"(" * 100_000,
)  # fmt: skip
every_reader = pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)


def attempt(reader: Reader, content: bytes) -> None:
    """Let the reader have its way with these bytes, in a new folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="read"))
    try:
        reader.read(content, folder)
    except reader.own as error:
        str(error).encode("utf-8", "backslashreplace")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def put_at(container: Any, key: Any) -> Callable[[Any], None]:
    def put(value: Any) -> None:
        container[key] = value

    return put


def places(value: Any, put: Callable[[Any], None]) -> Iterator[Callable[[Any], None]]:
    """Yield, for each place in a value of JSON, a function that puts another value there."""
    yield put
    for key in range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ():
        yield from places(value[key], put_at(value, key))


def is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


@st.composite
def changed(draw: st.DrawFn, good: tuple[bytes, ...]) -> bytes:
    """A good example of which some bytes, or one value of its JSON, are other ones."""
    content = draw(st.sampled_from(good))
    if is_json(content) and draw(st.booleans()):
        whole = [json.loads(content)]
        put = draw(st.sampled_from(list(places(whole[0], put_at(whole, 0)))))
        put(draw(st.sampled_from(VALUES)))
        return as_json(whole[0])
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 20)))
        content = content[:start] + draw(st.sampled_from(ODD) | st.binary(max_size=8)) + content[end:]
    return content


@every_reader
def test_what_is_good_is_read(reader: Reader, tmp_path: Path) -> None:
    for number, content in enumerate(reader.good):
        folder = tmp_path / str(number)
        folder.mkdir()
        reader.read(content, folder)


@every_reader
def test_what_is_hopeless_is_an_error_of_the_readers_own(reader: Reader) -> None:
    for content in (*HOPELESS, *reader.bad):
        attempt(reader, content)


@every_reader
@given(data=st.data())
@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_no_bytes_raise_anything_else(reader: Reader, data: st.DataObject) -> None:
    anything = st.binary(max_size=300)
    attempt(reader, data.draw(anything | changed(reader.good) if reader.good else anything))
