"""No reader of bytes from outside raises anything but its own errors: any bytes, and good ones that were changed."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples
from tests.readers.changes import HOPELESS, changed
from tests.readers.reader import Reader
from tests.readers.table import READERS

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
