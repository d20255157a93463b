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
    [
        "volumes", "time_limit", "gpus", "disk_mib", "after", "labels", "constraint", "network",
        "gpu", "mem", "memory", "request_memory", "max_retries", "workdir", "notify",
        "results_to", "indices_from", "output_files",
    ],
)  # fmt: skip
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


def test_a_file_without_indices_is_one_job_named_after_its_image() -> None:
    submission = campaign_file.submission(campaign_file.parse("image: gleaner/pi:2", "runs.yaml"))
    assert (submission.indices, submission.job.name) == (None, "pi")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image: a\n\nmemroy_mib: 5", "runs.yaml, line 3: unknown key 'memroy_mib', did you mean 'memory_mib'?"),
        ("image: a\ncpus: 1\ncpus: 2", "runs.yaml, line 3: cpus is given twice"),
        ("image: a\ncpus: -3", "runs.yaml, line 2: cpus must be at least 1, found -3"),
        ("image: a\ncpus: 99999999", "runs.yaml, line 2: cpus must be at most 4096"),
        ("image: a\ncpus: 99999999999999999999999", "runs.yaml, line 2: cpus must be a whole number"),
        ("image: a\ncpus: yes", "runs.yaml, line 2: cpus must be a whole number, found 'yes'"),
        ("image: a\nmemory_mib: 512X", "runs.yaml, line 2: memory_mib must be like 4096 (in MiB) or 4G, found '512X'"),
        ("image: a\nmemory_mib: 512..", "runs.yaml, line 2: memory_mib must be like 4096 (in MiB) or 4G, found ''"),
        ("image: a\nmemory_mib: 1..4G", "runs.yaml, line 2: memory_mib must be at least 16, found 1"),
        ("image: a\nmemory_mib: 4G..1G", "runs.yaml, line 2: memory_mib: the most memory is less than the least: 40"),
        ("image: a\nmemory_mib: 1", "runs.yaml, line 2: memory_mib must be at least 16, found 1"),
        ("image: a\nnodes: 4", "runs.yaml, line 2: nodes: a job runs on one node or less; wider jobs are only simul"),
        ("image: a\nhold: maybe", "runs.yaml, line 2: hold must be true or false, found 'maybe'"),
        ("image: a\nname: a b", "runs.yaml, line 2: name must begin with a letter or digit"),
        ("image: a b", "runs.yaml, line 1: image must be an image's name: letters"),
        ("image:", "runs.yaml, line 1: image must have at least 1 character"),
        ("image: [a]", "runs.yaml, line 1: image must be a single value, found a list"),
        ("image: a\ncommand: run it", "runs.yaml, line 2: command must be a list like [a, b], found a single value"),
        (
            "image: a\ncommand: [a, {index}]",
            "runs.yaml, line 2: an argument must be a single value, found a mapping; w",
        ),
        ("image: a\ncommand:\n- run\n- {it: 1}", "runs.yaml, line 4: an argument must be a single value, found a map"),
        ('image: a\ncommand: ["a\\0b"]', "runs.yaml, line 2: command must not hold NUL characters"),
        ("image: a\nenvironment: [A]", "runs.yaml, line 2: environment must be keys with values like {K: V}"),
        ("image: a\nenvironment:\n  A-B: 1", "runs.yaml, line 2: environment must be a variable's name"),
        ("image: a\nenvironment:\n  A: 1\n  A: 2", "runs.yaml, line 4: environment has A twice"),
        ("image: a\nsaves_itself: yes", "runs.yaml, line 2: saves_itself must be keys with values like {signal: SIG"),
        ("image: a\nsaves_itself: {signal: SIGKILL}", "runs.yaml, line 2: saves_itself signal must be 'SIGTERM' or "),
        ("image: a\nsaves_itself: {exit_code: 0}", "runs.yaml, line 2: saves_itself exit_code must be at least 1,"),
        ("image: a\ncompute_limit: 2 weeks", "runs.yaml, line 2: compute_limit must be like 90 (in seconds), 30m, 2h"),
        ("image: a\ncompute_limit: 0", "runs.yaml, line 2: compute_limit must be at least 1, found 0"),
        ("image: a\ncompute_limit: 9999d", "runs.yaml, line 2: compute_limit must be at most 315360000, found"),
        ("image: a\ncompute_limit: [1h]", "runs.yaml, line 2: compute_limit must be a single value, found a list"),
        ("image: a\ndisk: 0", "runs.yaml, line 2: disk must be at least 1, found 0"),
        ("image: a\nsilent_limit: 5", "runs.yaml, line 2: silent_limit must be at least 10, found 5"),
        ("image: a\nneeds_at_least: 0m", "runs.yaml, line 2: needs_at_least must be at least 1, found 0"),
        ("image: a\ncompute_limit_s: 5", "runs.yaml, line 2: unknown key 'compute_limit_s', did you mean 'compute_li"),
        ("image: a\nretry_on: []", "runs.yaml, line 2: retry_on names no exit code; leave the key out, or name some"),
        ("image: a\nretry_on: [0]", "runs.yaml, line 2: retry_on must be at least 1, found 0"),
        ("image: a\nnever_retry_on: 256", "runs.yaml, line 2: never_retry_on must be at most 255, found 256"),
        ("image: a\nretry_on:\n- 1\n- x", "runs.yaml, line 4: an exit code must be a whole number, found 'x'"),
        ("image: a\nretry_on: {1: 2}", "runs.yaml, line 2: retry_on must be a list like [a, b], found a mapping"),
        ("image: a\nretry_on: 2\nnever_retry_on: 2", "runs.yaml, line 3: never_retry_on: exit code 2 is in retry_on"),
        ("image: a\nsaves_itself:\n  exit_code: x", "runs.yaml, line 3: saves_itself exit_code must be a whole number"),
        ("image: a\nsaves_itself:\n  sginal: x", "runs.yaml, line 3: saves_itself: unknown key 'sginal', did you mean"),
        ("image: a\nsaves_itself: {signal: a, signal: b}", "runs.yaml, line 2: saves_itself has signal twice"),
        ("image: a\noutputs: '*.root'", "runs.yaml, line 2: outputs must be keys with values like {keep: ["),
        ("image: a\noutputs:\n  kepe: []", "runs.yaml, line 3: outputs: unknown key 'kepe', did you mean 'keep'?"),
        ("image: a\noutputs: {}", "runs.yaml, line 2: outputs must say what to keep, or"),
        ("image: a\noutputs: {keep: []}", "runs.yaml, line 2: outputs keep names no pattern; to keep ev"),
        ("image: a\noutputs: {keep: a}", "runs.yaml, line 2: outputs keep must be a list like [a, b], found a single"),
        (
            "image: a\noutputs:\n  keep:\n  - a\n  - ../b",
            "runs.yaml, line 5: outputs keep: '../b' must stay in the job",
        ),
        ("image: a\nindices: 12 runs", "runs.yaml, line 2: indices must be like 0-11 or 1,3,10-20:5, found '12 runs'"),
        ("image: a\nindices: 5-1", "runs.yaml, line 2: indices 5-1 holds no index"),
        ("image: a\nindices: 0-999999999", "runs.yaml, line 2: indices hold at most 100,000 runs, found 1,000,000,000"),
        ("image: a\nindices: [1, 2, 1]", "runs.yaml, line 2: indices name 1 twice"),
        ("image: a\nindices: []", "runs.yaml, line 2: indices"),
        ("name: a", "image is missing in runs.yaml; it names the container image to run"),
        ("", "runs.yaml: must hold keys with values"),
        ("- image: a", "runs.yaml: must hold keys with values"),
        ("image: a\n  cpus: 1", "runs.yaml, line 2: not valid YAML"),
        ("image: a\n\tcpus: 1", "runs.yaml, line 2: not valid YAML"),
        ("image: a\ncommand: *nothing", "runs.yaml, line 2: not valid YAML: found undefined alias"),
        ("image: !!python/object/apply:os.system [id]", "runs.yaml, line 1: image must be a single value"),
        ("image: \x1b[2J", "runs.yaml: not valid YAML"),
        ("? [image]\n: a", "runs.yaml, line 1: a key must be a single value, found a list"),
    ],
)
def test_what_is_wrong_in_a_campaign_file_is_named_with_its_line(text: str, said: str) -> None:
    assert complaint(text).startswith(said)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("512", 512),
        ("4g", 4096),
        ("4Gi", 4096),
        ("4 GB", 4096),
        ("1.5G", 1536),
        ("1T", 2**20),
        ("2048K", 2),
        ("-3", -3),
    ],
)
def test_memory_is_a_number_of_mib_or_has_a_unit(text: str, mib: int) -> None:
    assert memory_mib(text) == mib
    assert campaign_file.parse(f"image: a\nmemory_mib: {text}\n", "runs.yaml")["memory_mib"].value == mib


def test_memory_may_be_a_range() -> None:
    job = campaign_file.submission(campaign_file.parse("image: a\nmemory_mib: 512..4G", "runs.yaml")).job
    assert (job.memory_mib, job.most_memory_mib) == (512, 4096)


@pytest.mark.parametrize("text", ["", "G", "4X", "4GG", "1e3", "0x10", "4 G 2", "٣G", "-4G", "1.2.3G", "9" * 30])
def test_memory_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be like 4096 .in MiB. or 4G, found "):
        memory_mib(text)


def test_aliases_that_multiply_are_not_followed_into_depth() -> None:
    bomb = "image: a\ncommand: &a [x, x]\nenvironment: &b {K: v}\nindices:\n" + "- *a\n" * 3
    assert complaint(bomb).startswith("runs.yaml, line 2: an index must be a single value")


@pytest.mark.parametrize(
    ("array", "indices"),
    [("0", (0,)), ("0-3", (0, 1, 2, 3)), ("1,3,10-20:5", (1, 3, 10, 15, 20)), ("5,1", (5, 1)), (" 1 , 2 ", (1, 2))],
)
def test_an_array_is_written_as_slurm_writes_it(array: str, indices: tuple[int, ...]) -> None:
    assert campaign_file.indices(array) == indices


@pytest.mark.parametrize("array", ["", ",", "a", "-1", "1-", "0-10%2", "3-1", "0-5:0", "1,1", "0-100000", "١"])
def test_an_array_that_is_none_is_refused(array: str) -> None:
    with pytest.raises(ValueError, match=r"must be like|holds no index|twice|at most"):
        campaign_file.indices(array)


@pytest.mark.parametrize("text", ["", "TERM", "SIGTERM:", "SIGTERM:x", "SIGTERM 85", "85", "sigterm"])
def test_an_option_that_says_not_how_a_program_saves_itself_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be like SIGTERM or SIGUSR1:85"):
        campaign_file.self_save(text)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge").write_bytes(b"#" * (campaign_file.MOST_BYTES + 1))
    for name, said in [
        ("none.yaml", "no such file"),
        ("binary", "not UTF-8"),
        ("huge", "larger than 4 MiB"),
        (".", "Is a dir"),
    ]:
        with pytest.raises(InputError, match=said):
            campaign_file.read(tmp_path / name)
