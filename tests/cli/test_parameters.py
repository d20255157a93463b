"""The parameters of a campaign: grids, rows of files, what stands in braces, and what is refused, in one line each."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.cli.cli_harness import CliHarness

from gleaner.agent.job_spec import JobSpec
from gleaner.control.campaigns import campaign_file
from gleaner.control.campaigns.parameter_files import in_folder, read_rows
from gleaner.control.input_errors import InputError
from gleaner.control.models.jobs import Submission

GRID = """\
image: gleaner/pythia
command: [--mass, "{mass}", --width, "{mass:.1f}", --tune, "{tune}", --seed, "{seed:05d}", "{{x}}"]
environment: {RUN: "run-{index}"}
outputs: {keep: ["{tune}-{mass}.root"]}
parameters: {mass: [100, 2e2], tune: monash, seed: 1-3}
"""


def read(text: str, folder: Path = Path()) -> Submission:
    return campaign_file.submission(read_rows(campaign_file.parse(text, "runs.yaml"), in_folder(folder)))


def complaint(text: str, folder: Path = Path()) -> str:
    with pytest.raises(InputError) as refused:
        read(text, folder)
    assert "\n" not in str(refused.value)
    return str(refused.value).replace(f"{folder}/", "") if folder.name else str(refused.value)


def test_a_grid_is_a_job_for_each_combination_and_texts_are_taken_as_written() -> None:
    wanted = read(GRID)
    runs = list(wanted.runs())
    assert [(run["mass"], run["seed"]) for _, run in runs if run] == list(itertools.product(["100", "2e2"], "123"))
    assert [index for index, _ in runs] == [1, 2, 3, 4, 5, 6]
    index, last = runs[-1]
    job = wanted.job.resolved(job=9, campaign=1, index=index, parameters=last)
    assert job.command == ("--mass", "2e2", "--width", "200.0", "--tune", "monash", "--seed", "00003", "{x}")
    assert (job.environment, job.keep) == ({"RUN": "run-6"}, ("monash-2e2.root",))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.csv", '\ufeffmass, tune\r\n100,"a, ""b"" \'c"\r\n\r\n007,{x}\r\n'),
        ("runs.jsonl", '{"mass": 100, "tune": "a, \\"b\\" \'c"}\n\n{"tune": "{x}", "mass": "007"}\n'),
    ],
)
def test_rows_of_a_file_are_jobs_and_quotes_are_a_part_of_the_value(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    wanted = read(f"image: a\ncommand: ['{{mass}}', '{{tune}}']\nparameters: {name}", tmp_path)
    assert [run for _, run in wanted.runs()] == [{"mass": "100", "tune": 'a, "b" \'c'}, {"mass": "007", "tune": "{x}"}]
    commands = [wanted.job.resolved(job=1, campaign=1, index=i, parameters=run).command for i, run in wanted.runs()]
    assert commands == [("100", 'a, "b" \'c'), ("007", "{x}")]


def test_each_line_of_a_file_is_a_job(tmp_path: Path) -> None:
    (tmp_path / "files.txt").write_text("a b.root\n\nc.root\r\n")
    wanted = read("image: a\ncommand: ['{line}']\nlines: files.txt", tmp_path)
    assert [*wanted.runs()] == [(1, {"line": "a b.root"}), (2, {"line": "c.root"})]


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("{a: 1-1000, b: 1-1000}", "line 2: parameters: 1,000 × 1,000 = 1,000,000 jobs, and a campaign has"),
        ("{a: 1-1000000}", "line 2: parameters a hold at most 100,000 runs, found 1,000,000"),
        ("{index: 1-5}", "line 2: parameters: index is no name for a parameter: {index} has a meaning of its own"),
        ('{a: ["x\\ny"]}', "line 2: parameters a must have no line ends or other control characters"),
        ("{a: 1}\nindices: 1-5", "line 2: parameters: parameters and indices are both there"),
        ("{a: 1}\ninputs: [{url: 'https://h/{a}', to: x}]", "line 3: inputs: x has a brace in its URL, and all jobs"),
        ("no.csv", "line 2: no.csv: No such file or directory"),
    ],
)
def test_parameters_that_will_not_do_name_their_line(tmp_path: Path, parameters: str, said: str) -> None:
    assert complaint(f"image: a\nparameters: {parameters}", tmp_path).startswith(f"runs.yaml, {said}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{x!r}", "has {x!r}: only names of parameters stand in braces"),
        ("{x.__class__}", "has {x.__class__}: only names of parameters"),
        ("{x", "has a single brace: write {{ or }} for a brace, or {name} for a parameter"),
        ("{x:{x}}", "has {x:{x}}: the format must be like 05d, .1f or >8"),
        ("{y}", "has {y}, and there is no such parameter: known are index, word, x; write {{ for a brace"),
        ("{word:05d}", "'monash' cannot be written as 05d"),
        ("{x:999d}" * 9, "has more than 4096 characters with the values of a job"),
    ],
)
@pytest.mark.parametrize("key", ["command: [%s]", "environment: {A: %s}", "outputs: {keep: [%s]}"])
def test_what_stands_in_braces_is_a_name_with_a_format_for_each_value(key: str, text: str, said: str) -> None:
    if len(text) > 50 and "keep" in key:
        said = "which is no plain name for a file or folder"  # it is filled up with spaces
    values = "{x: [1, 2], word: monash}" if "9" in text else "{x: [1, 1.5], word: monash}"
    refused = complaint(f"image: a\nparameters: {values}\n" + key % json.dumps(text))
    assert refused.startswith(f"runs.yaml, line 3: {key.partition(':')[0]}: ")
    assert said in refused


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("{mass}", "needs {index} or {job}"),
        ("{tune}/{index}", "has '../x', a value of tune, which is no plain name for a file or folder"),
        ("{dots:.2s}/{index}", "has '..', a value of dots, which is no plain name"),
        ("a{{b/{index}", "has a brace, which no path can have"),
        ("{run}/{index}", "known are campaign, dots, index, job, mass, tune"),
    ],
)
def test_a_value_leads_no_target_astray(to: str, said: str) -> None:
    text = f"image: a\nparameters: {{tune: [a, ../x], mass: [1], dots: '..x'}}\noutputs: {{to: 'file:///data/{to}/'}}"
    assert said in complaint(text)


def test_a_file_has_rules_and_the_number_after_a_percent_sign_is_one() -> None:
    wanted = read("image: a\nindices: 1-5000%200\ntry_first: 3\nmax_failures: 5%")
    assert (len(wanted.indices or ()), wanted.max_running, wanted.try_first) == (5000, 200, 3)
    assert (wanted.may_fail(5000), wanted.may_fail(19), read(GRID).may_fail(6)) == (250, 0, None)
    assert read("image: a\nindices: 1-5\nmax_failures: 7").may_fail(5) == 7


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("indices: 1-5%", "line 2: indices must have a number after %, as in 1-5000%200, found '1-5%'"),
        ("indices: 1-5%0", "line 2: max_running must be at least 1, found 0"),
        ("try_first: 1", "line 2: try_first: only a campaign has it: give indices or parameters"),
    ],
)
def test_rules_that_will_not_do_name_their_line(rules: str, said: str) -> None:
    assert complaint(f"image: a\n{rules}").startswith(f"runs.yaml, {said}")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "m,n\n1,2\n3\n", "a.csv, line 3: 1 values, and the first line names 2 columns"),
        ("a.csv", 'm,n\n1,"2\n3"\n', "a.csv, line 3: n has a line end or another control character in its value"),
        ("a.csv", 'm,n\n1,"2"x\n', "a.csv, line 2: not valid CSV: ',' expected after '\"'"),
        ("a.csv", "m,n\n", "a.csv has no row, and so no job"),
        ("a.csv", "m\n" + "1\n" * 100_001, "a.csv, line 100002: more than 100,000 rows"),
        ("a.csv", "1" * (6 * 2**20 + 1), "a.csv is larger than 6 MiB"),
        ("a.csv", b"m\n\xff\n", "a.csv: not UTF-8 text"),
        ("a.jsonl", '{"m": 1}\n{"n": 1}\n', "a.jsonl, line 2: n is not in the first row, which names m"),
        ("a.jsonl", '{"m": 1, "n": 2}\n{"n": 1}\n', "a.jsonl, line 2: m is missing"),
        ("a.jsonl", '{"m": 1, "m": 2}\n', "a.jsonl, line 1: m is there twice"),
        ("a.jsonl", '{"m": [1]}\n', "a.jsonl, line 1: m must be a number, a text, true or false"),
    ],
)
def test_a_file_that_will_not_do_names_its_line(tmp_path: Path, name: str, text: str | bytes, said: str) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert complaint(f"image: a\nparameters: {name}", tmp_path).startswith(said)


def test_a_file_of_another_machine_is_read_by_the_command_line_only() -> None:
    with pytest.raises(InputError, match="in a file of your own machine: use `glean submit`"):
        campaign_file.submission(campaign_file.parse("image: a\nlines: f.txt", "the campaign"))


@pytest.mark.slow
def test_a_dry_run_shows_the_first_jobs_and_what_would_be_refused_and_submits_nothing(harness: CliHarness) -> None:
    (harness.folder / "walk.py").touch()
    (harness.folder / "grid.yaml").write_text(GRID + "inputs: [walk.py]\n")
    shown = harness.run("submit", "grid.yaml", "--dry-run")
    assert (shown[0], "has not pushed an image" in shown[2]) == (0, True)
    assert "--mass 100 --width 100.0 --tune monash --seed 00001 '{x}'" in shown[1]
    assert shown[1].endswith("6 jobs in all; nothing was submitted\n")
    code, out, err = harness.run("submit", "grid.yaml", "--dry-run", "--needs-at-least", "2h", "--json")
    assert code == 2
    assert "would be refused: " in err
    assert "no agent here has 2 h for a job" in err
    said = json.loads(out)
    assert (said["total"], [job["index"] for job in said["first"]]) == (6, [1, 2, 3])
    assert said["first"][2]["parameters"] == {"mass": "100", "tune": "monash", "seed": "3"}
    assert json.loads(harness.good("list", "--json"))["total"] == 0


@pytest.mark.slow
def test_jobs_of_a_grid_are_shown_with_their_values_and_run_with_them(harness: CliHarness) -> None:
    (harness.folder / "grid.yaml").write_text(GRID + "max_running: 2\n")
    made = json.loads(harness.good("submit", "grid.yaml", "--json"))
    assert len(made["jobs"]) == 6
    shown = harness.good("show", str(made["jobs"][3]))
    assert "mass 2e2, tune monash, seed 1" in shown
    assert "--mass 2e2 --width 200.0 --tune monash --seed 00001 '{x}'" in shown
    rows = json.loads(harness.good("list", "--campaign", str(made["campaign"]), "--json"))["jobs"]
    assert rows[5]["parameters"] == {"mass": "2e2", "tune": "monash", "seed": "3"}
    assert "it waits for its turn: of its campaign at most 2 jobs run at once" in harness.good("why", "3")
    assert [job.spec.command[-2] for job in harness.node.claim()] == ["00001", "00002"]


PIECES = st.sampled_from(["{x}", "{x}", "{x:.>2.0s}", "{x:03d}", "{index}", "{{", "}}", "..", "/", "*", "a", "b" * 200])
VALUES = st.sampled_from(["", "1", "..", "a/b", "**", "{", "a" * 200, "7.5", "é"])


@given(
    text=st.lists(PIECES, min_size=1, max_size=3).map("".join),
    place=st.sampled_from(["command", "keep", "target"]),
    values=st.lists(VALUES, min_size=1, max_size=2),
)
@settings(max_examples=300)
def test_an_agent_accepts_each_job_of_an_accepted_campaign(text: str, place: str, values: list[str]) -> None:
    """Otherwise an agent would refuse all jobs that it is given together with this one, again and again."""
    keep, to = (text if place == "keep" else "a"), f"file:///data/{{job}}/{text if place == 'target' else 'a'}"
    job = {"name": "a", "image": "a", "command": [text if place == "command" else "a"]}
    try:
        accepted = Submission.model_validate(
            {"job": {**job, "outputs": {"keep": [keep], "to": to}}, "parameters": {"values": {"x": values}}}
        )
    except ValidationError:
        return
    for index, parameters in accepted.runs():
        filled = accepted.job.resolved(job=7, campaign=2**31, index=index, parameters=parameters)
        assert JobSpec.model_validate(filled.model_dump()) == filled


def test_parameters_that_would_fill_the_database_are_refused_at_once() -> None:
    values = "\n".join(f"  a{number}: [{'x' * 1000}]" for number in range(90))
    assert "100,000 jobs with up to" in complaint(f"image: a\nparameters:\n{values}\n  b: 1-100000")
    many = complaint('image: a\ncommand: ["{b:d}{b:1d}{b:2d}{b:3d}{b:4d}"]\nparameters: {b: 1-100000}')
    assert "has one format too many for 100,000 values" in many
