"""Campaign files: what is taken, and that every complaint names its line."""

from pathlib import Path

import pytest

from gleaner.agent.common.quantities import memory_mib
from gleaner.agent.job_spec import JobSpec, OutputSpec, SelfSave
from gleaner.control.campaigns import campaign_file
from gleaner.control.campaigns.wrong_keys import INSTEAD
from gleaner.control.input_errors import InputError
from gleaner.control.models.jobs import Submission

GOOD = """\
# Twelve runs of one process.
name: zmumu
image: gleaner/pythia
command: [generate, --seed, "{index}", --events, 2000, --tune, 007, --weak, no]
environment: {OMP_NUM_THREADS: 1, DEBUG: off}
cpus: 2
memory_mib: 1024
priority: -5
retries: 0
indices: 0-11
group: atlas
hold: true
saves_itself: {signal: SIGUSR1, exit_code: 3}
retry_on: [137, 75, 75]
never_retry_on: 1
compute_limit: 1.5h
needs_at_least: 20m
silent_limit: 30m
disk: 20G
outputs: {keep: ["*.root", "run-{index}/**"]}
"""


def complaint(text: str) -> str:
    with pytest.raises(InputError) as refused:
        campaign_file.submission(campaign_file.parse(text, "runs.yaml"))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_campaign_file_says_what_to_run_and_texts_are_taken_as_written() -> None:
    assert campaign_file.submission(campaign_file.parse(GOOD, "runs.yaml")) == Submission(
        job=JobSpec(
            name="zmumu",
            image="gleaner/pythia",
            command=("generate", "--seed", "{index}", "--events", "2000", "--tune", "007", "--weak", "no"),
            environment={"OMP_NUM_THREADS": "1", "DEBUG": "off"},
            cpus=2,
            memory_mib=1024,
            priority=-5,
            retries=0,
            saves_itself=SelfSave(signal="SIGUSR1", exit_code=3),
            retry_on=(75, 137),
            never_retry_on=(1,),
            compute_limit_s=5400,
            needs_at_least_s=1200,
            silent_limit_s=1800,
            disk_mib=20_480,
            outputs=OutputSpec(keep=("*.root", "run-{index}/**")),
        ),
        indices=tuple(range(12)),
        group="atlas",
        hold=True,
    )


def test_what_was_submitted_is_shown_as_a_campaign_file_that_says_the_same() -> None:
    job = campaign_file.submission(campaign_file.parse(GOOD, "runs.yaml")).job
    for spec in (job, job.model_copy(update={"most_memory_mib": 4096}), JobSpec(name="a", image="b")):
        written = campaign_file.as_submitted(spec)
        assert campaign_file.submission(campaign_file.parse(written, "again.yaml")).job == spec


@pytest.mark.parametrize(
    "key",
    ["volumes", "time_limit", "gpu", "disk_mib", "after", "request_memory", "max_retries", "notify", "results_to"],
)
def test_a_key_that_people_know_from_elsewhere_is_refused_with_what_to_do(key: str) -> None:
    said = complaint(f"image: a\n{key}: 5")
    assert said == f"runs.yaml, line 2: unknown key {key!r}: {INSTEAD[key]}"
    assert "allowed here" not in said.lower()


def test_no_key_that_is_taken_is_listed_as_wrong_and_what_is_said_fits_in_a_line() -> None:
    assert not INSTEAD.keys() & campaign_file.KEYS
    assert [key for key, said in INSTEAD.items() if len(said) > 110 or not said.isprintable()] == []
    for key in ("time_limit", "walltime"):
        assert "compute_limit: 2h" in INSTEAD[key]
    assert INSTEAD["network"].startswith("a job has no network; ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image: a\nmemory_mib: 1..4G", "runs.yaml, line 2: memory_mib must be at least 16, found 1"),
        ("image: a\nmemory_mib: 4G..1G", "runs.yaml, line 2: memory_mib: the most memory is less than the least: 40"),
        ("image: a\nnodes: 4", "runs.yaml, line 2: nodes: a job runs on one node or less; wider jobs are only simul"),
        ("image: a b", "runs.yaml, line 1: image must be an image's name: letters"),
        ("image: a\ncommand: run it", "runs.yaml, line 2: command must be a list like [a, b], found a single value"),
        (
            "image: a\ncommand: [a, {index}]",
            "runs.yaml, line 2: an argument must be a single value, found a mapping; w",
        ),
        ("image: a\ncommand:\n- run\n- {it: 1}", "runs.yaml, line 4: an argument must be a single value, found a map"),
        ('image: a\ncommand: ["a\\0b"]', "runs.yaml, line 2: command must not hold NUL characters"),
        ("image: a\nenvironment:\n  A: 1\n  A: 2", "runs.yaml, line 4: environment has A twice"),
        ("image: a\nsaves_itself: yes", "runs.yaml, line 2: saves_itself must be keys with values like {signal: SIG"),
        ("image: a\ncompute_limit: 2 weeks", "runs.yaml, line 2: compute_limit must be like 90 (in seconds), 30m, 2h"),
        ("image: a\ncompute_limit_s: 5", "runs.yaml, line 2: unknown key 'compute_limit_s', did you mean 'compute_li"),
        ("image: a\noutputs:\n  kepe: []", "runs.yaml, line 3: outputs: unknown key 'kepe', did you mean 'keep'?"),
        ("image: a\noutputs: {keep: []}", "runs.yaml, line 2: outputs keep names no pattern; to keep ev"),
        (
            "image: a\noutputs:\n  keep:\n  - a\n  - ../b",
            "runs.yaml, line 5: outputs keep: '../b' must stay in the job",
        ),
        ("image: a\nindices: 0-999999999", "runs.yaml, line 2: indices hold at most 100,000 runs, found 1,000,000,000"),
        ("image: a\nindices: [1, 2, 1]", "runs.yaml, line 2: indices name 1 twice"),
        ("image: a\ncommand: *nothing", "runs.yaml, line 2: not valid YAML: found undefined alias"),
        ("image: !!python/object/apply:os.system [id]", "runs.yaml, line 1: image must be a single value"),
        ("image: \x1b[2J", "runs.yaml: not valid YAML"),
        ("? [image]\n: a", "runs.yaml, line 1: a key must be a single value, found a list"),
    ],
)
def test_what_is_wrong_in_a_campaign_file_is_named_with_its_line(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


@pytest.mark.parametrize("text", ["", "G", "4X", "4GG", "1e3", "0x10", "4 G 2", "٣G", "-4G", "1.2.3G", "9" * 30])
def test_memory_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be like 4096 .in MiB. or 4G, found "):
        memory_mib(text)


def test_aliases_that_multiply_are_not_followed_into_depth() -> None:
    bomb = "image: a\ncommand: &a [x, x]\nenvironment: &b {K: v}\nindices:\n" + "- *a\n" * 3
    assert complaint(bomb).startswith("runs.yaml, line 2: an index must be a single value")


@pytest.mark.parametrize("array", ["", ",", "a", "-1", "1-", "0-10%2", "3-1", "0-5:0", "1,1", "0-100000", "١"])
def test_an_array_that_is_none_is_refused(array: str) -> None:
    with pytest.raises(ValueError, match=r"must be like|holds no index|twice|at most"):
        campaign_file.indices(array)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge").write_bytes(b"#" * (campaign_file.MOST_BYTES + 1))
    whys = {"none.yaml": "no such file", "binary": "not UTF-8", "huge": "larger than 4 MiB", ".": "Is a dir"}
    for name, said in whys.items():
        with pytest.raises(InputError, match=said):
            campaign_file.read(tmp_path / name)
