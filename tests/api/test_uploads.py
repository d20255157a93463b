"""The one door for images and inputs: an upload that broke off goes on, and unfinished ones are limited."""

import time

import pytest
from tests.api.api_harness import ApiHarness, detail
from tests.api.uploads import put_part, uploads_left
from tests.made_images import digest, hexed
from tests.made_inputs import MadeInput, packed

from gleaner.control.daemon.storage_gc import remove_garbage
from gleaner.control.models.uploads import KEEP_UPLOADS_S, PART_BYTES

pytestmark = pytest.mark.slow
ONE = MadeInput(packed(b"event" * 1000))
WHOLE = len(ONE.archive)


def test_an_upload_that_broke_off_goes_on_and_what_comes_twice_or_too_early_does_no_harm(harness: ApiHarness) -> None:
    def there(part: bytes, at: int = 0, size_bytes: int = WHOLE) -> int:
        answer = put_part(harness.user, "inputs", ONE.content, part, size_bytes, at)
        assert answer.status_code == 200, answer.text
        size: int = answer.json()["size_bytes"]
        return size

    assert there(b"") == 0
    assert uploads_left(harness) == []  # a question leaves nothing
    assert there(ONE.archive[:700]) == 700
    assert there(ONE.archive[900:], 900) == 700
    assert there(ONE.archive[:300]) == 700
    assert "not all of" in detail(harness.user.post("/v1/inputs", ONE.put()), 409)
    assert there(ONE.archive[700:], there(b"")) == WHOLE
    assert there(b"") == WHOLE
    assert there(b"", size_bytes=WHOLE - 1) == 0  # it was another upload
    assert there(ONE.archive) == WHOLE
    assert harness.user.post("/v1/inputs", ONE.put()).status_code == 201
    assert uploads_left(harness) == []
    assert there(b"") == 0


@pytest.mark.parametrize(
    ("content", "part", "at"),
    [(ONE.content, b"x" * 2, WHOLE - 1), (ONE.content, bytes(PART_BYTES + 1), 0), ("../x", b"x", 0)],
)
def test_what_is_no_part_is_refused(harness: ApiHarness, content: str, part: bytes, at: int) -> None:
    answer = put_part(harness.user, "inputs", content, part, WHOLE, at)
    assert answer.status_code in {404, 413, 422}
    assert uploads_left(harness) == []


def test_what_nobody_goes_on_with_is_removed_after_a_week(harness: ApiHarness) -> None:
    now_s = time.time()  # as the files' times are the file system's
    for kind in ("images", "inputs"):
        put_part(harness.user, kind, digest(kind.encode()), b"x", 2)
    remove_garbage(harness.state, now_s + KEEP_UPLOADS_S - 60, by_age=True)
    assert uploads_left(harness) == sorted(hexed(kind) for kind in (b"images", b"inputs"))
    remove_garbage(harness.state, now_s + KEEP_UPLOADS_S + 60, by_age=True)
    assert uploads_left(harness) == []
