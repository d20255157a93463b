"""Slurm's accounting, read as sacct writes it."""

from pathlib import Path

import pytest
from tests.simulation.traces import SACCT_COLUMNS

from gleaner.control.simulation.errors import BadTrace, cut
from gleaner.control.simulation.workloads.cleaning import Conventions
from gleaner.control.simulation.workloads.traces import Trace, read

HEADER = SACCT_COLUMNS
GOOD = {
    "JobIDRaw": "101",
    "Submit": "2026-01-31T10:00:00",
    "Eligible": "2026-01-31T10:00:00",
    "Start": "2026-01-31T10:00:30",
    "ElapsedRaw": "600",
    "TimelimitRaw": "30",
    "AllocCPUS": "64",
    "NNodes": "2",
    "ReqMem": "8000M",
    "User": "alice",
    "Account": "physics",
    "State": "COMPLETED",
}
"""One line that nothing is wrong with."""


def text(*jobs: dict[str, str], columns: str = HEADER) -> str:
    names = columns.split(",")
    return (
        "\n".join("|".join(row) for row in (names, *([{**GOOD, **job}[name] for name in names] for job in jobs))) + "\n"
    )


def reading(folder: Path, *jobs: dict[str, str], columns: str = HEADER) -> Trace:
    path = folder / "jobs.txt"
    path.write_text(text(*jobs, columns=columns), encoding="utf-8")
    return read(path)


def test_a_job_is_what_its_line_says(tmp_path: Path) -> None:
    found = reading(tmp_path, {})
    jobs = found.workload
    assert (jobs.job[0], jobs.submit_s[0], jobs.run_s[0], jobs.limit_s[0]) == (101, 36_000, 600, 1800)
    assert (jobs.processors[0], jobs.memory_mib[0], jobs.users, jobs.groups) == (64, 8000, ("alice",), ("physics",))
    assert found.wait_s.tolist() == [30]
    assert found.cleaning.rules == ()


def test_columns_may_stand_in_any_order_beside_others_and_end_in_a_bar(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    names = [*reversed(HEADER.split(",")), "Partition"]
    row = [{**GOOD, "Partition": "batch"}[name] for name in names]
    path.write_text("|".join(names) + "|\n" + "|".join(row) + "|\n")
    assert read(path).workload.job.tolist() == [101]


def test_only_a_few_columns_are_needed(tmp_path: Path) -> None:
    found = reading(tmp_path, {}, columns="JobIDRaw,Submit,Start,ElapsedRaw,TimelimitRaw,AllocCPUS,State").workload
    assert (found.processors[0], found.memory_mib[0], found.users, found.groups) == (64, 0, ("all",), ("all",))


def test_the_columns_that_are_not_raw_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    job = {**GOOD, "ElapsedRaw": "1-00:01:30", "TimelimitRaw": "2-12:00:00"}
    path.write_text(text(job).replace("ElapsedRaw", "Elapsed").replace("TimelimitRaw", "Timelimit"))
    found = read(path).workload
    assert (found.run_s.tolist(), found.limit_s.tolist()) == ([86_490], [216_000])


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"State": "CANCELLED by 1000", "Start": "None", "ElapsedRaw": "0"}, "left out: cancelled before it started"),
        (
            {"State": "PENDING", "Start": "Unknown", "ElapsedRaw": "0"},
            "left out: still waiting when the log was written",
        ),
        ({"State": "FAILED", "Start": "None", "ElapsedRaw": "0"}, "left out: it never started"),
        ({"State": "RUNNING"}, "left out: still running when the log was written"),
        ({"AllocCPUS": "0"}, "left out: no number of processors"),
        ({"Submit": "Unknown"}, "left out: no time of submission"),
        ({"JobIDRaw": "102.batch"}, "left out: a step of a job"),
        ({"JobIDRaw": "101"}, "left out: an earlier run of a job that was requeued"),
    ],
)
def test_what_cannot_be_simulated_is_left_out_and_counted(tmp_path: Path, changed: dict[str, str], rule: str) -> None:
    found = reading(tmp_path, {"JobIDRaw": "102", **changed}, {})
    assert found.workload.job.tolist() == [101]
    assert found.cleaning.rules == ((rule, 1),)
    assert found.cleaning.read == 2


@pytest.mark.parametrize(
    "state",
    ["FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "CANCELLED by 1000", "SPECIAL_EXIT"],
)
def test_a_job_that_ran_counts_however_it_ended(tmp_path: Path, state: str) -> None:
    assert reading(tmp_path, {"State": state}).cleaning.rules == ()


@pytest.mark.parametrize("column", ["Submit", "Eligible", "Start", "ElapsedRaw", "TimelimitRaw"])
def test_a_time_that_slurm_calls_invalid_costs_its_job_alone(tmp_path: Path, column: str) -> None:
    invalid = {column: "INVALID"}
    found = reading(tmp_path, {"JobIDRaw": "102.batch", **invalid}, {"JobIDRaw": "102", **invalid}, {"User": "INVALID"})
    assert found.workload.users == ("INVALID",)
    assert found.cleaning.rules == (("left out: a step of a job", 1), ("left out: a time that Slurm calls INVALID", 1))


REQUEUED = "left out: an earlier run of a job that was requeued"
# Slurm gives a job that it queues again a new time of submission: the end of the run before, and what its end took.
AGAIN = {"Submit": "2026-01-31T10:10:35", "Eligible": "2026-01-31T10:10:35", "Start": "2026-01-31T10:11:00"}


@pytest.mark.parametrize("state", ["REQUEUED", "PREEMPTED", "NODE_FAIL"])
def test_a_requeued_job_has_its_number_and_a_later_submission(tmp_path: Path, state: str) -> None:
    for runs in ([{"State": state}, AGAIN], [AGAIN, {"State": state}]):
        found = reading(tmp_path, *runs)
        assert found.workload.submit_s.tolist() == [36_635]
        assert found.cleaning.rules == ((REQUEUED, 1),)


@pytest.mark.parametrize(
    "first",
    [
        {"State": "COMPLETED"},
        {"State": "NODE_FAIL", "User": "bob"},
        {"State": "PREEMPTED", "Submit": "2026-01-30T10:00:00", "Start": "2026-01-30T10:00:30"},
    ],
    ids=["the first was not requeued", "of two users", "a day lies between them"],
)
def test_two_jobs_may_have_one_number(tmp_path: Path, first: dict[str, str]) -> None:
    found = reading(tmp_path, {**first, "Eligible": "Unknown"}, AGAIN)
    assert found.workload.job.tolist() == [101, 101]
    assert found.cleaning.rules == ()


def test_a_job_that_had_to_be_eligible_first_counts_from_then_on(tmp_path: Path) -> None:
    found = reading(tmp_path, {"Eligible": "2026-01-31T10:00:20"})
    assert (found.workload.submit_s.tolist(), found.wait_s.tolist()) == ([36_020], [10])
    assert found.cleaning.rules == (
        ("changed: submitted only when it could start at all (a dependency, a begin time)", 1),
    )


def test_no_limit_is_a_year_and_a_partitions_limit_the_longest_that_anyone_named(tmp_path: Path) -> None:
    limits = ("UNLIMITED", "30", "Partition_Limit", "2880")
    found = reading(tmp_path, *({"JobIDRaw": str(job), "TimelimitRaw": text} for job, text in enumerate(limits)))
    assert found.workload.limit_s.tolist() == [365 * 86_400, 1800, 172_800, 172_800]
    assert found.cleaning.rules == (
        ("changed: its limit was its partition's; the longest of the log stands for it", 1),
    )


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ("8000M", 8000),
        ("2G", 2048),
        ("1.50T", 1.5 * 1024**2),
        ("2Gc", 64 * 2048),
        ("16Gn", 2 * 16_384),
        ("0", 0),
        ("", 0),
    ],
)
def test_memory_is_of_the_whole_job_whatever_it_was_asked_for(tmp_path: Path, memory: str, mib: float) -> None:
    assert reading(tmp_path, {"ReqMem": memory}).workload.memory_mib.tolist() == [mib]


def test_names_are_read_as_utf_8_and_where_they_are_not_as_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    lines = (text({"JobIDRaw": "1", "User": "müller"}), text({"JobIDRaw": "2", "User": "andré", "Account": "物理"}))
    path.write_bytes(lines[0].encode("latin-1") + lines[1].encode())
    found = read(path).workload
    assert ([found.users[code] for code in found.user], found.groups) == (["müller", "andré"], ("physics", "物理"))


@pytest.mark.parametrize(
    ("column", "wrong", "expected"),
    [
        ("JobIDRaw", "101_7", "a job's number"),
        ("Submit", "2026-13-31T10:00:00", "a time such as 2026-01-31T12:00:00"),
        ("Start", "2026-01-31T10:00:00Z", "a time such as 2026-01-31T12:00:00"),
        ("JobIDRaw", "9" * 30, "a job's number"),
        ("ElapsedRaw", "10m", "seconds, or days-hours:minutes:seconds"),
        ("TimelimitRaw", "unlimited", "minutes, UNLIMITED or Partition_Limit"),
        ("AllocCPUS", "sixty", "a number of processors"),
        ("ReqMem", "8000X", "a size such as 4000M, 16Gn or 2Gc"),
        ("State", "completed", "a state of Slurm such as COMPLETED"),
    ],
)
def test_a_misspelt_value_is_named_with_its_line_and_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, wrong: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadTrace) as refused:
        reading(Path(), {}, {"JobIDRaw": "101.batch"}, {column: wrong})
    assert str(refused.value) == cut(f"jobs.txt, line 4, column {column}: expected {expected}, found {wrong!r}")


def test_files_of_several_months_may_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text("\n" + text({}, {"JobIDRaw": "102"}) + text({"JobIDRaw": "102"}, {"JobIDRaw": "103"}))
    found = read(path)
    assert found.workload.job.tolist() == [101, 102, 103]
    assert found.cleaning.rules == (("left out: an earlier run of a job that was requeued", 1),)


def test_of_two_numbers_of_processors_the_allocated_counts_unless_the_other_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    columns = f"{HEADER},ReqCPUS"
    path.write_text(text({"ReqCPUS": "60"}, {"JobIDRaw": "102", "AllocCPUS": "0", "ReqCPUS": "8"}, columns=columns))
    found = read(path)
    assert found.workload.processors.tolist() == [64, 8]
    assert found.cleaning.rules == (("kept: as many processors as it was given, though it asked for others", 1),)
    found = read(path, conventions=Conventions(size="requested"))
    assert found.workload.processors.tolist() == [60, 8]
    assert found.cleaning.rules == (("kept: as many processors as it asked for, though it was given others", 1),)


@pytest.mark.parametrize("cut", [1, 4, 30])  # the line end alone, a part of the state, several columns
def test_a_last_line_that_is_cut_short_is_left_out_and_counted(tmp_path: Path, cut: int) -> None:
    """`COMPLETED` cut to `COMPLE` is no state, and nobody knows which state it was; the line end tells."""
    path = tmp_path / "jobs.txt"
    path.write_text(text({}, {"JobIDRaw": "102"})[:-cut])
    found = read(path)
    assert found.workload.job.tolist() == [101]
    assert found.cleaning.rules == (("left out: the last line has no line end, so it may be cut short", 1),)


def test_a_job_that_ended_in_the_hour_that_comes_twice_counts(tmp_path: Path) -> None:
    job = {"Start": "2026-10-25T02:50:00", "End": "2026-10-25T02:10:00", "ElapsedRaw": "1200"}
    found = reading(tmp_path, job, columns=f"{HEADER},End")
    assert found.workload.run_s.tolist() == [1200]
    assert found.cleaning.rules == (("changed: it ended in the hour that comes twice; ask sacct with TZ=UTC", 1),)


def test_a_job_that_was_resized_counts_once_with_its_last_size(tmp_path: Path) -> None:
    found = reading(tmp_path, {"State": "RESIZING"}, {"AllocCPUS": "8", "ElapsedRaw": "700"})
    assert (found.workload.processors.tolist(), found.workload.run_s.tolist()) == ([8], [700])
    assert found.cleaning.rules == (("left out: an earlier line of a job that was resized", 1),)


def test_a_file_of_two_clusters_is_refused_in_one_line(tmp_path: Path) -> None:
    clusters = ({"Cluster": "one"}, {"Cluster": "two"})
    with pytest.raises(BadTrace, match=r"several clusters \(one and two\): ask sacct for --clusters=ONE"):
        reading(tmp_path, *clusters, columns=f"{HEADER},Cluster")
    assert len(reading(tmp_path, *clusters[:1], columns=f"{HEADER},Cluster").workload) == 1


ASK = "ask sacct as docs/simulate/workloads.md does"


@pytest.mark.parametrize(
    ("columns", "name", "line", "found"),
    [
        (f"JobName,{HEADER}", "a|b", 3, 14),
        (f"JobName,{HEADER}", "a\nb", 3, 1),
        (f"{HEADER},JobName", "a\nb", 4, 1),
    ],
)
def test_a_name_that_breaks_its_line_is_named_with_what_to_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str, name: str, line: int, found: int
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadTrace) as refused:
        reading(Path(), {"JobName": "one"}, {"JobName": name}, {"JobName": "one"}, columns=columns)
    wrong = f"line {line}: expected 13 columns as in the header, found {found}"
    assert str(refused.value) == f"jobs.txt, {wrong}; a name may hold '|' or a line end: {ASK}"


def test_a_log_without_its_header_says_what_to_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("jobs.txt")
    path.write_text(text({}).partition("\n")[2])
    with pytest.raises(BadTrace) as refused:
        read(path)
    wrong = "line 1: the header with the columns' names is missing"
    assert str(refused.value) == f"jobs.txt, {wrong}: {ASK}, without --noheader"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "^", ":::", " ", "\x1f"])
def test_another_delimiter_says_what_to_ask_for(tmp_path: Path, delimiter: str) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(text({}).replace("|", delimiter))
    with pytest.raises(BadTrace) as refused:
        read(path)
    assert str(refused.value) == f"{path}: its columns are not separated by '|': {ASK}, without --delimiter"


def test_a_file_without_a_needed_column_says_which_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"line 1: the header has no column Start, AllocCPUS; ask sacct as docs"):
        reading(tmp_path, {}, columns="JobIDRaw,Submit,ElapsedRaw,TimelimitRaw,State")


def test_a_header_alone_is_a_trace_without_jobs(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"it holds no jobs$"):
        reading(tmp_path)
