"""The fast reader of numbers reads them as Python does, or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gleaner.control.simulation.workloads.trace_file import plain_rows

plain = st.integers(-(10**15) + 1, 10**15 - 1).map(str) | st.from_regex(r"-?[0-9]{1,8}\.[0-9]{1,7}", fullmatch=True)
blank = st.sampled_from([" ", "  ", "\t"])
end = st.sampled_from(["\n", "\r\n", " \n", "\n\n"])


@pytest.mark.slow
@settings(deadline=None)  # the first call may compile
@given(st.lists(st.tuples(plain, blank, plain, blank, plain, end), max_size=10))
def test_plain_numbers_are_read_to_the_last_bit(lines: list[tuple[str, ...]]) -> None:
    text = "".join(map("".join, lines))
    rows = plain_rows(text, 2 * len(lines), 3)
    assert rows is not None
    assert rows.tolist() == [[float(line[0]), float(line[2]), float(line[4])] for line in lines]


def test_a_last_line_without_an_end_counts() -> None:
    rows = plain_rows("1 2\n3 4", 2, 2)
    assert rows is not None
    assert rows.tolist() == [[1, 2], [3, 4]]


@settings(deadline=None)  # the first call may compile
@given(st.text("0123456789 .-+exnif\n\t\0é_", max_size=30))
def test_what_it_reads_is_what_python_reads(text: str) -> None:
    rows = plain_rows(text, text.count("\n") + 1, 2)
    if rows is not None:
        assert rows.tolist() == [[float(word) for word in line.split()] for line in text.split("\n") if line.strip()]


@pytest.mark.parametrize(
    "line",
    [
        "1",
        "1 2 3",
        "1 x",
        "1 2.",
        "- 1",
        "1 .5",
        "1 --3",
        "1 1e3",
        "1 1234567890123456",
        "1 2-",
        "1 2.3.4",
        "1 +2",
        "1 \0",
    ],
)
def test_what_is_not_plain_is_not_read(line: str) -> None:
    assert plain_rows(f"1 2\n{line}\n", 2, 2) is None


PLAIN = """
import sys
from pathlib import Path
from gleaner.control.simulation.workloads.trace_file import lines_of
from gleaner.control.simulation.workloads.swf import read_swf

path = Path(sys.argv[1])
records = read_swf(path, lines_of(path), size="requested").records
columns = (records.job, records.submit_s, records.run_s, records.limit_s, records.processors, records.memory_mib)
print([column.tolist() for column in columns])
"""


@pytest.mark.slow
def test_the_reader_gives_the_same_numbers_compiled_and_plain(tmp_path: Path) -> None:
    jobs = range(1, 60)
    lines = [
        f"{job} {job * 4999}.25 -1 {job * 131} {job} -1 -1 {job} {job * 86_399} 70000 1 7 3 -1 -1 -1 -1 -1"
        for job in jobs
    ]
    log = tmp_path / "log.swf"
    log.write_text("\n".join([*lines, lines[0].replace(" 131 ", " 999999999999999 ")]) + "\n")
    said = {
        subprocess.run(
            [sys.executable, "-W", "error", "-c", PLAIN, log],
            env={**os.environ, "NUMBA_DISABLE_JIT": without_compiler},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for without_compiler in ("0", "1")
    }
    assert len(said) == 1
    assert ", 5097541.0, " in said.pop()  # the last but one limit, 59 * 86,399
