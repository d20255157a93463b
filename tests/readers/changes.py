"""Bytes that no reader expects: good ones that were changed, and hopeless ones."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st
from tests.readers.reader import as_json

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
