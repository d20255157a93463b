"""The Standard Workload Format, read and written; and what is said of files that are not traces."""

import gzip
import lzma
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation import shipped
from tests.simulation.swf_files import write_swf
from tests.simulation.traces import trace

from gleaner.control.policy.job_class import JobClass
from gleaner.control.simulation.errors import BadScenario, BadTrace
from gleaner.control.simulation.model import Workload, refuse_strangers
from gleaner.control.simulation.workloads.swf import read_swf
from gleaner.control.simulation.workloads.trace_file import lines_of
from gleaner.control.simulation.workloads.traces import read

HEADER = """\
; Version: 2.2
; Computer: Example SP2
; MaxNodes: 100
; MaxProcs: 400 (4 each)
; UnixStartTime: 843487000
; Note: a log of
; Note: two lines
;
"""
JOBS = """\
1 10 5 60 4 -1 512 8 120 1024 1 7 3 -1 -1 -1 -1 -1
2 20.5 0 7 2 -1 2048 -1 300 -1 0 -1 -1 -1 -1 -1 -1 -1
"""


def writing(folder: Path, text: str, name: str = "log.swf") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_job_is_what_its_line_says(tmp_path: Path) -> None:
    found = read(writing(tmp_path, HEADER + JOBS))
    jobs = found.workload
    assert (jobs.name, jobs.job.tolist(), jobs.submit_s.tolist()) == ("log.swf", [1, 2], [10, 20.5])
    assert (jobs.run_s.tolist(), jobs.limit_s.tolist(), found.wait_s.tolist()) == ([60, 7], [120, 300], [5, 0])
    assert jobs.job_class.tolist() == [JobClass.NON_PREEMPTIBLE] * 2


def test_what_was_asked_for_counts_and_what_was_given_stands_in_for_it(tmp_path: Path) -> None:
    jobs = read(writing(tmp_path, HEADER + JOBS)).workload
    assert jobs.processors.tolist() == [8, 2]
    assert jobs.memory_mib.tolist() == [8, 4]


def test_users_and_groups_are_called_by_their_numbers(tmp_path: Path) -> None:
    jobs = read(writing(tmp_path, HEADER + JOBS)).workload
    assert [jobs.users[code] for code in jobs.user] == ["7", "unknown"]
    assert [jobs.groups[code] for code in jobs.group] == ["3", "unknown"]


def test_the_header_says_how_large_the_machine_is(tmp_path: Path) -> None:
    found = read(writing(tmp_path, HEADER + JOBS))
    assert found.processors == 400
    unknown = HEADER.replace("400 (4 each)", "-1")
    assert read(writing(tmp_path, unknown + JOBS)).processors == 100
    assert read(writing(tmp_path, JOBS)).processors is None


@pytest.mark.parametrize("size", ["\xb2", "many", "9" * 5000, "0", "-1", "4x"])
def test_a_header_that_is_no_number_says_nothing(tmp_path: Path, size: str) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(f"; MaxProcs: {size}\n{JOBS}".encode("latin-1"))
    assert read(path).processors is None


def test_a_log_may_come_through_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        found = pool.submit(read, pipe)
        pipe.write_bytes(gzip.compress((HEADER + JOBS).encode()))
        assert len(found.result(timeout=30).workload) == 2


def test_empty_lines_comments_between_jobs_and_line_ends_of_other_systems_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    first, second = JOBS.splitlines()
    path.write_bytes(f"\r\n{first}\r\n\r\n; in between\r\n  ; and not at the edge\r\n\t{second}  \r\n".encode())
    assert read(path).workload.job.tolist() == [1, 2]


def test_a_header_in_another_alphabet_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(b"; Installation: Universit\xe4t\n" + JOBS.encode())
    assert len(read(path).workload) == 2


def test_a_compressed_log_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(gzip.compress((HEADER + JOBS).encode()))
    assert len(read(path).workload) == 2


GOOD = "1 10 5 60 4 -1 512 8 120 1024 1 7 3 -1 -1 -1 -1 -1"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (GOOD.replace(" 60 ", " 6o "), ", field 4 (run time): expected a number, found '6o'"),
        (GOOD.replace(" 60 ", " 6\u0663 "), ", field 4 (run time): expected a number, found '6\u0663'"),
        (GOOD.replace(" 60 ", " nan "), ", field 4 (run time): expected a number, found 'nan'"),
        (GOOD.replace(" 60 ", " 6_0 "), ", field 4 (run time): expected a number, found '6_0'"),
        (GOOD.replace(" 4 ", " 4.5 "), ", field 5 (allocated processors): expected a whole number, found '4.5'"),
        (
            GOOD.replace(" 8 ", " 1e300 "),
            ", field 8 (requested processors): expected a number of at most 15 digits, found '1e300'",
        ),
        (
            GOOD.replace(" 10 ", " 1e300 "),
            ", field 2 (submit time): expected a number of at most 15 digits, found '1e300'",
        ),
        (GOOD + "x", ", field 18 (think time): expected a number, found '-1x'"),
        (GOOD[: GOOD.index(" 512")], ": it ends after field 6 (average CPU time); expected 18 fields"),
        (GOOD + " -1", ": 19 fields; expected 18"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_in_one(tmp_path: Path, line: str, what: str) -> None:
    path = writing(tmp_path, f"{HEADER}{JOBS}{line}\n{GOOD}\n")
    with pytest.raises(BadTrace) as refused:
        read(path)
    assert str(refused.value) == f"{path}, line 11{what}"


def test_a_log_whose_lines_are_all_short_is_refused_at_the_first(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"line 1: it ends after field 3 \(wait time\); expected 18 fields$"):
        read(writing(tmp_path, "1 2 3\n4 5 6\n"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (HEADER.encode(), "it holds no jobs"),
        (
            b"Dear colleague, here is the log.\n",
            "expected Standard Workload Format or the output of sacct --parsable2; it starts with "
            "'Dear colleague, here is the log.'; ask sacct as docs/simulate/workloads.md does",
        ),
        (b"a|b\n1|2\n", "line 1: the header has no column JobIDRaw, Submit"),
        (gzip.compress(JOBS.encode(), mtime=0)[:-20], "the gzip file is broken or cut short"),
        (gzip.compress(JOBS.encode(), mtime=0)[:30] + bytes(40), "the gzip file is broken or cut short"),
        (b"\x00|\xff\x12\n", "expected Standard Workload Format or the output of sacct --parsable2; it starts with"),
        (b"\x1f\x8b", "the gzip file is broken or cut short"),
        (JOBS.encode("utf-16"), "it is text in UTF-16; only text in UTF-8 can be read, plain or compressed by gzip"),
        (lzma.compress(JOBS.encode()), "it is an xz archive"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("log.swf")
    path.write_bytes(content)
    with pytest.raises(BadTrace) as refused:
        read(path)
    assert str(refused.value).startswith(str(path))
    assert what in str(refused.value)
    assert "\n" not in str(refused.value)


LONG = "x" * 5000


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (f"{GOOD}\n{LONG}\n", "log.swf, line 2, field 1 (job number): expected a number, found 'xxx"),
        (f"JobIDRaw|Submit|Start|{LONG}", "log.swf, line 1: the header has no column ElapsedRaw, TimelimitRaw"),
        ("\0" * 5000, "log.swf: expected Standard Workload Format or the output of sacct"),
    ],
)
def test_an_error_about_a_log_has_at_most_200_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadTrace) as refused:
        read(writing(Path(), content))
    assert str(refused.value).startswith(what)
    assert len(str(refused.value)) <= 200


def test_a_long_name_of_a_user_is_shown_in_part() -> None:
    with pytest.raises(BadScenario, match=r"^user 'bob' has no job in log; there are: x+ \.\.\. x+$") as refused:
        refuse_strangers("user", ["bob"], (LONG,), "log")
    assert len(str(refused.value)) == 200


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"nowhere\.swf: there is no such file$"):
        read(tmp_path / "nowhere.swf")
    with pytest.raises(BadTrace, match="cannot be read"):
        read(tmp_path)


fragments = st.sampled_from(
    [
        "1",
        "-1",
        "2.5",
        "x",
        "1e9",
        "nan",
        ";",
        "|",
        "\n",
        " ",
        "\0",
        "\xa0",
        "\u3000",
        "\x1c",
        "\u0663",
        GOOD,
        "\n" + GOOD,
    ]
).map(str.encode)


@settings(deadline=None)  # the first call may compile
@given(
    data=st.lists(fragments | st.binary(max_size=8), max_size=40).map(b" ".join),
    before=st.sampled_from([b"", GOOD.encode() + b"\n", GOOD.encode()[:-2]]),
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, before: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "log.swf"
    path.write_bytes(before + data)
    try:
        read(path)
    except BadTrace as refused:
        assert "\n" not in str(refused)
        assert len(str(refused)) <= 200


seconds = st.integers(0, 10**9) | st.floats(0, 1e9)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    jobs = draw(st.integers(1, 30))

    def column(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=jobs, max_size=jobs))

    run_s = np.array(column(seconds), np.float64)
    return Workload(
        name="log.swf",
        job=np.arange(1, jobs + 1),
        submit_s=np.sort(np.array(column(seconds), np.float64)),
        run_s=run_s,
        limit_s=run_s + np.array(column(seconds), np.float64) + 1,
        processors=np.array(column(st.integers(1, 10**6)), np.int64),
        memory_mib=np.array(column(st.integers(0, 10**6)), np.float64),
        user=np.array(column(st.integers(0, 2)), np.int32),
        group=np.array(column(st.integers(0, 1)), np.int32),
        job_class=np.zeros(jobs, np.int8),
        users=("1", "12", "unknown"),
        groups=("0", "5"),
    )


@settings(deadline=None)  # the first call may compile
@given(made=workloads(), is_compressed=st.booleans())
def test_what_is_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, made: Workload, is_compressed: bool
) -> None:
    path = tmp_path_factory.mktemp("swf") / ("log.swf.gz" if is_compressed else "log.swf")
    wait_s = np.where(made.user == 0, np.nan, made.run_s)
    write_swf(path, made, header={"MaxProcs": 10**6}, wait_s=wait_s)
    found = read(path)
    for name in ("job", "submit_s", "run_s", "limit_s", "processors"):
        assert getattr(found.workload, name).tolist() == getattr(made, name).tolist()
    assert found.workload.memory_mib == pytest.approx(made.memory_mib)
    assert np.array_equal(found.wait_s, wait_s, equal_nan=True)
    assert [found.workload.users[code] for code in found.workload.user] == [made.users[code] for code in made.user]
    assert [found.workload.groups[code] for code in found.workload.group] == [made.groups[code] for code in made.group]
    assert found.processors == 10**6


def test_one_workload_is_written_as_the_same_bytes_each_time(tmp_path: Path) -> None:
    made = read(shipped.PATH).workload
    for name in ("one.swf.gz", "two.swf.gz"):
        write_swf(tmp_path / name, made, header=shipped.HEADER)
    assert (tmp_path / "one.swf.gz").read_bytes() == (tmp_path / "two.swf.gz").read_bytes()


def test_a_user_whose_name_is_a_raised_digit_gets_a_number_as_others_do(tmp_path: Path) -> None:
    made = replace(read(shipped.PATH).workload, users=("\N{SUPERSCRIPT TWO}",), user=np.zeros(2000, np.int32))
    write_swf(tmp_path / "log.swf", made, header=shipped.HEADER)
    assert read(tmp_path / "log.swf").workload.users == ("1",)


def test_the_projects_own_trace_is_whole() -> None:
    found = read(shipped.PATH)
    assert (len(found.workload), found.processors, found.cleaning.rules) == (2000, shipped.PROCESSORS, ())
    assert found.workload.processors.max() <= shipped.PROCESSORS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processors", "jobs", "users"),
    [
        ("KTH-SP2.pyssEASY.swf.gz", 100, 28_481, 214),
        ("SDSC-SP2.pyssEASY.swf.gz", 128, 54_006, 428),
        ("Theta-2022.swf.gz", 4360, 23_911, 1),
        ("RICC-2010-2.swf.gz", 8192, 447_786, 176),
    ],
)
def test_real_logs_are_read_whole(name: str, processors: int, jobs: int, users: int) -> None:
    found = read(trace(name))
    assert (found.processors, len(found.workload), len(found.workload.users)) == (processors, jobs, users)
    assert (np.diff(found.workload.submit_s) >= 0).all()
    assert (found.workload.run_s <= found.workload.limit_s).all()


def test_the_reference_logs_have_the_waits_that_their_files_say() -> None:
    # Column 3, read by other means: the sum and one job.
    path = trace("KTH-SP2.pyssEASY.swf.gz")
    text = gzip.decompress(path.read_bytes()).decode()
    rows = [line.split() for line in text.splitlines() if not line.startswith(";")]
    found = read(path)
    assert math.fsum(found.wait_s) == sum(int(row[2]) for row in rows)
    assert found.wait_s[found.workload.job.tolist().index(970)] == 36_538


def test_a_log_keeps_its_lines_in_order_until_it_is_cleaned() -> None:
    path = trace("SDSC-SP2.pyssEASY.swf.gz")
    records = read_swf(path, lines_of(path), size="requested")[0]
    assert records.jobs.job[:3].tolist() == [9, 8, 4]
