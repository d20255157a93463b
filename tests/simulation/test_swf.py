"""The Standard Workload Format, read and written; and what is said of files that are not traces."""

import gzip
import lzma
from pathlib import Path

import pytest

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.errors import BadTrace
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
    # What was asked for counts, and what was given stands in for it. Owners are called by their numbers.
    assert (jobs.processors.tolist(), jobs.memory_mib.tolist()) == ([8, 2], [8, 4])
    assert [jobs.users[code] for code in jobs.user] == ["7", "unknown"]
    assert [jobs.groups[code] for code in jobs.group] == ["3", "unknown"]


def test_the_header_says_how_large_the_machine_is(tmp_path: Path) -> None:
    found = read(writing(tmp_path, HEADER + JOBS))
    assert found.processors == 400
    unknown = HEADER.replace("400 (4 each)", "-1")
    assert read(writing(tmp_path, unknown + JOBS)).processors == 100
    assert read(writing(tmp_path, JOBS)).processors is None


def test_empty_lines_comments_between_jobs_and_line_ends_of_other_systems_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    first, second = JOBS.splitlines()
    path.write_bytes(f"\r\n{first}\r\n\r\n; in between\r\n  ; and not at the edge\r\n\t{second}  \r\n".encode())
    assert read(path).workload.job.tolist() == [1, 2]


def test_a_compressed_log_is_known_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_bytes(gzip.compress((HEADER + JOBS).encode()))
    assert len(read(path).workload) == 2


GOOD = "1 10 5 60 4 -1 512 8 120 1024 1 7 3 -1 -1 -1 -1 -1"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (GOOD.replace(" 60 ", " 6o "), ", field 4 (run time): expected a number, found '6o'"),
        (GOOD.replace(" 60 ", " nan "), ", field 4 (run time): expected a number, found 'nan'"),
        (GOOD.replace(" 60 ", " 6_0 "), ", field 4 (run time): expected a number, found '6_0'"),
        (GOOD.replace(" 4 ", " 4.5 "), ", field 5 (allocated processors): expected a whole number, found '4.5'"),
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


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"nowhere\.swf: there is no such file$"):
        read(tmp_path / "nowhere.swf")
    with pytest.raises(BadTrace, match="cannot be read"):
        read(tmp_path)
