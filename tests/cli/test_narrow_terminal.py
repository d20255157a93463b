"""Tables on a narrow terminal: columns are left out and named rather than cut into letters."""

import io
import re

import pytest
from tests.cli.made_answers import JOB

from gleaner.control.cli import render
from gleaner.control.cli.output import Answer
from gleaner.control.models.jobs import JobList, JobRow, Submitted


class Terminal(io.StringIO):
    """A terminal that keeps what is printed to the person in front of it."""

    def isatty(self) -> bool:
        return True


def job(number: int) -> JobRow:
    mine = {"id": number, "index": number, "campaign": 12, "name": "zmumu-production", "node": "node-0123"}
    return JobRow.model_validate(JOB | mine | {"group": "atlas-higgs", "state": "Running"})


def shown(
    value: object, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], str]:
    """The lines on a terminal of that width, and what is said on stderr."""
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", terminal)
    render.show(Answer(value))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    return [line.rstrip() for line in plain.splitlines()], capsys.readouterr().err


@pytest.mark.parametrize("columns", [60, 80, 89])
def test_a_list_of_jobs_keeps_its_words_whole_and_names_what_has_no_room(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, said = shown(JobList(jobs=(job(1), job(2)), total=2), columns, capsys, monkeypatch)
    assert len(lines) == 3, lines
    assert max(map(len, lines)) <= columns
    assert all(word in lines[0] for word in ("JOB", "NAME", "STATE", "NODE"))
    assert all(word in lines[1] for word in ("zmumu-production", "Running", "node-0123"))
    assert said.startswith(f"glean: left out for lack of space ({columns} columns): MIB, CPUS")
    assert said.endswith("; --json shows all\n")


def test_a_person_who_submits_is_shown_the_next_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, _ = shown(Submitted(campaign=4, jobs=(7, 8)), 80, capsys, monkeypatch)
    assert lines == [
        "campaign 4: jobs 7 to 8", "  glean campaign show 4", "  glean logs 7", "  glean results --campaign 4",
    ]  # fmt: skip
    lines, _ = shown(Submitted(campaign=None, jobs=(7,)), 80, capsys, monkeypatch)
    assert lines == ["job 7", "  glean show 7", "  glean why 7", "  glean results 7"]


def test_a_wide_terminal_and_a_pipe_show_all_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, said = shown(JobList(jobs=(job(1),), total=1), 160, capsys, monkeypatch)
    assert all(word in lines[0] for word in ("CAMPAIGN", "GROUP", "PRIORITY", "CPUS", "MIB", "SLICES", "SUBMITTED"))
    assert said == ""
