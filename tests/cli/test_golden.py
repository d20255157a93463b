"""Everything that `glean` prints without a cluster, byte for byte, beside the text in `golden/`.

A case is a transcript: each command, its output, its lines on stderr after `!`, and its exit code if that is not 0.
JSON that is laid out as usual stands on one line. To write the files anew, after a change that is meant, set
GLEANER_TESTS=golden, and read the difference.
"""

import io
import json
import os
import shlex
import tarfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from email.message import Message
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cli_harness import Reply, answering, become_user
from tests.cli.made_answers import AGENT, ATTEMPT, DETAIL, DRAIN, IMAGE, JOB, NODES, OWNERS, SPEC, STATUS, TOKEN
from tests.cli.test_decisions import ANSWER, GIVEN
from tests.cli.test_simulate import TRACE

from gleaner.control.cli import app

GOLDEN = Path(__file__).with_name("golden")
END: dict[str, Any] = {"state": "Complete", "outcome": "failed", "exit_code": 3, "ended_s": 1.6e9}
ALONE: dict[str, Any] = {"id": 1234, "campaign": None, "index": None, "node": None, "name": "Zµµ\x1b[2J", "held": True}
JOBS: dict[str, Any] = {"jobs": [JOB, JOB | ALONE, JOB | END | {"id": 8}], "total": 7}
FULL: dict[str, Any] = DETAIL | {
    "job": JOB | END, "image_id": "sha256:" + "a" * 64, "failed_because": "exit code 3", "counted_s": 59.0,
    "spec": SPEC | {
        "saves_itself": {"signal": "SIGUSR1", "exit_code": 85}, "retry_on": [75, 137], "never_retry_on": [2],
        "most_memory_mib": 4096, "disk_mib": 2048, "silent_limit_s": 1800,
    },
    "attempts": [ATTEMPT, ATTEMPT | {"attempt": 2, "ending": None, "from_attempt": None, "save_s": 2.25}],
}  # fmt: skip
BARE: dict[str, Any] = DETAIL | {
    "job": JOB | ALONE | {"held": False, "submitter": ""}, "unsaved_because": "cannot be saved: it has a queue",
    "last_failure": "memory limit 512 MiB reached; starts from the beginning with 1 GiB",
    "spec": SPEC | {"needs_at_least_s": None, "compute_limit_s": None, "environment": {}},
    "checkpoints": [], "output_bytes": None, "attempts": [], "events": [],
}  # fmt: skip
ROW: dict[str, Any] = STATUS | {
    "id": 1, "name": "zmumu", "group": "atlas", "submitter": "alice", "submitted_s": 1.5e9,
    "expected": {"ended": 3, "over_s": 21600, "jobs_per_h": 0.5, "earliest_s": 1.6e9, "latest_s": 1.61e9},
    "result_bytes": 3_456_789,
}  # fmt: skip
ENDED: dict[str, Any] = {"ended_s": 1.6e9, "kept_until_s": 1.7e9, "new": 0, "running": 0, "saved": 0}
SHOWN: dict[str, Any] = ROW | {
    "spec": SPEC, "first_job": {"index": "1", "mass": "100"}, "last_job": {"index": "6", "mass": "500"},
    "max_running": 2, "try_left": 1, "failures_left": -1, "lost_slices": 1,
    "causes": [{"cause": "exit code 3", "jobs": 1, "first_job": 7, "last_line": "no such file \x1b[2J"}],
    "use": {
        "group": "atlas", "user": "alice", "slices": 4, "harvested_core_h": 12.25, "saving_core_h": 0.5,
        "restoring_core_h": 0.25, "starting_core_h": 0.25, "lost_core_h": 1.0,
    },
}  # fmt: skip
START: dict[str, Any] = {
    "id": 3, "at_s": 1.5e9, "kind": "start", "policy": "fairshare", "acted": True, "subjects": ["job 7"],
    "given": GIVEN, "answer": ANSWER,
}  # fmt: skip
DRY = START | {"kind": "hold", "acted": False, "answer": ANSWER | {"start": [1, 2], "share": 0.25, "none": None}}
QUIET: dict[str, Any] = {
    "name": "n20", "agent": None, "failures": 0, "excluded_until_s": None, "distrusted": "", "drained": "",
    "regular": True, "wrong": ["its clock is wrong", "slurm.conf has no RealMemory for it"],
}  # fmt: skip
TWO_NODES = NODES | {"nodes": [*NODES["nodes"], NODES["nodes"][0] | QUIET, NODES["nodes"][0] | {"agent": None}]}
LEFT: dict[str, Any] = {"job": "12_3", "deed": "wait", "nodes": ["n1", "n2"], "until_s": None}
DRAINED = DRAIN | {
    "task": "drain", "phase": "empty", "said": "", "jobs": [DRAIN["jobs"][0] | {"at_first": 4, "gone_s": 1.55e9}],
}  # fmt: skip
WAITS = DRAINED | {"jobs": [*DRAINED["jobs"], DRAINED["jobs"][0] | LEFT | {"at_first": 1, "gone_s": None}]}
CAMPAIGN = "image: pi\nindices: 0-2\nmemory_mib: 4G\ncommand: [pi, '{index}']\n"
SWEEP = "--lengths 1m,2m --set agents.margin_s=5 --save 3 --restore 2 --seeds 2 --workers 1"


@dataclass(frozen=True)
class Case:
    """Commands, the answers of control by the request's method and path, and the files in the user's folder."""

    commands: tuple[str, ...]
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, str] = field(default_factory=dict[str, str])


def both(*commands: str) -> tuple[str, ...]:
    """Return each command, and the same with `--json`."""
    return tuple(each for command in commands for each in (command, f"{command} --json"))


def wrong(command: str, suffix: str, *texts: str) -> Case:
    """Return a case in which the command reads each of these files."""
    files = {f"{number}.{suffix}": text for number, text in enumerate(texts, start=1)}
    return Case(tuple(command.format(name) for name in files), files=files)


CASES = {
    "jobs": Case(
        (
            *both("list", "list --campaign 1", "status", "campaigns", "campaign show 1", "hold 7 1234", "release 7"),
            *both("cancel --campaign 1", "migrate 7", "priority 7 5", "priority --campaign 1 -5", "show 7"),
            *both("show 1234", "wait 7", "submit --image pi", "submit runs.yaml", "results 7", "results 7 --to there"),
            *both("rm 7"),
            "list --limit 0", "hold", "show 99", "priority 7 2000000", "migrate 7 --to /", "results", "rm --campaign 1",
        ),
        {
            "GET /v1/jobs": JOBS, "GET /v1/status": STATUS, "GET /v1/campaigns/1": STATUS | {"campaign": 1},
            "GET /v1/campaigns": {"campaigns": [ROW, ROW | ENDED], "total": 3}, "GET /v1/campaigns/1/detail": SHOWN,
            "DELETE /v1/jobs/7": JOB | END, "POST /v1/campaigns/1/cancel": STATUS | {"campaign": 1},
            "POST /v1/jobs/7/hold": JOB, "POST /v1/jobs/1234/hold": JOB | ALONE, "POST /v1/jobs/7/release": JOB,
            "POST /v1/jobs/7/migrate": JOB, "PATCH /v1/jobs/7": JOB | {"priority": 5}, "GET /v1/jobs/7": FULL,
            "GET /v1/jobs/1234": BARE,
            "PATCH /v1/campaigns/1": STATUS | {"campaign": 1}, "POST /v1/jobs": {"campaign": 4, "jobs": [5, 6, 7]},
            "GET /v1/jobs/7/result": JOB | END | {"job": 7, "digest": "sha256:1", "storage": "/nowhere"},
        },
        {"runs.yaml": CAMPAIGN},
    ),
    "cluster": Case(
        (
            *both("agents", "nodes", "nodes --forget n1", "drain n1 --dry-run", "resume n1", "owners"),
            "drain n1 n2", "drain n1 --spanning x",
        ),
        {
            "GET /v1/agents": [AGENT, AGENT | {"ended_s": 1.6e9, "phase": "ended", "jobs": [], "reason": "why not"}],
            "GET /v1/nodes": TWO_NODES, "POST /v1/nodes/n1/trust": TWO_NODES | {"nodes": [], "read_s": None},
            "POST /v1/nodes/drain": WAITS, "POST /v1/nodes/resume": DRAINED | {"task": "resume", "phase": "resumed"},
            "GET /v1/drains/1": WAITS, "GET /v1/owners": OWNERS,
        },
    ),
    "owners_off": Case(both("owners"), {"GET /v1/owners": OWNERS | {"mode": "off", "problem": ""}}),
    "owners_dry": Case(both("owners"), {"GET /v1/owners": OWNERS | {"mode": "dry-run", "waiting": []}}),
    "drain": Case(
        both("drain n1 --dry-run", "resume n1"),
        {"POST /v1/nodes/drain": DRAIN, "POST /v1/nodes/resume": DRAIN | {"task": "resume", "phase": "refused"}},
    ),
    "decisions": Case(
        (
            *both("why 7", "why slurm:4711", "explain 3", "explain 4"),
            *both("simulate replay 3", "simulate replay 4"), "why x", "simulate replay nowhere.json",
        ),
        {
            "GET /v1/jobs/7": FULL | {"job": JOB | {"state": "Running"}, "attempts": [ATTEMPT]},
            "GET /v1/decisions": [START], "GET /v1/decisions/3": START, "GET /v1/decisions/4": DRY,
        },
    ),
    "tokens_and_images": Case(
        (
            *both("token list", "token revoke 0123456789ab", "image list", "image show pi:1", "image rm pi:1"),
            "token create --role user --name b/b", "token revoke x", "image show /",
        ),
        {
            "GET /v1/tokens": [TOKEN, TOKEN | {"manager": True, "group": None, "expires_s": None}],
            "POST /v1/tokens/0123456789ab/revoke": TOKEN | {"revoked_s": 1.6e9},
            "GET /v1/images": [IMAGE, IMAGE | {"size_bytes": 3_456_789_012, "name": "root:6.30"}],
            "GET /v1/site-images": {"agents": 2, "images": [{"name": "lab:1", "nodes": 2}], "brings": ["site.org/*"]},
            "GET /v1/images/pi%3A1": IMAGE, "GET /v1/images/pi%3A1%3Alatest": IMAGE, "DELETE /v1/images/pi%3A1": IMAGE,
        },
    ),
    "simulate": Case(
        (
            "simulate run trace.swf --agents 40 --save 5 --restore 2", "simulate run trace.swf --json -",
            "simulate compare trace.swf --schedulers easy --agents 40s",
            "simulate compare trace.swf --schedulers easy --json -",
            f"simulate tune trace.swf {SWEEP}", f"simulate tune trace.swf {SWEEP} --json -",
            "simulate run trace.swf --save 5", "simulate run trace.swf --cores 4",
            "simulate run trace.swf --set window", "simulate run trace.swf --set scheduler.kind=best",
            "simulate compare trace.swf --schedulers best",
        ),
        files={"trace.swf": TRACE},
    ),
    "nothing_there": Case(
        both("list", "agents", "nodes", "owners", "token list", "image list"),
        {
            "GET /v1/jobs": {"jobs": [], "total": 0}, "GET /v1/agents": [], "GET /v1/tokens": [], "GET /v1/images": [],
            "GET /v1/site-images": {"agents": 0, "images": [], "brings": []},
            "GET /v1/nodes": NODES | {"nodes": [], "problem": ""}, "GET /v1/owners": OWNERS | {"owners": []},
        },
    ),
    "wrong_options": Case(
        (
            "submit --image pi --memory-mib 4Q --array 1,1 -- pi", "submit --image pi --array 5-2 -- pi",
            "submit --image pi --saves-itself 'SIG  a' -- pi", "submit --image pi --env 'a  b' -- pi",
            "submit --image pi --retry-on x -- pi", "submit --image pi --compute-limit 2x -- pi",
            "submit --image pi --gpus 1 -- pi", "submit --image pi --memory 4G -- pi",
            "submit --image pi --disc 1 -- pi",
            "submit --image pi --cpus 0 -- pi", "submit --image '' -- pi", "submit --image pi --nodes 2 -- pi",
            "submit -- pi", "submit", "simulate tune --wait-limit x",
            "simulate tune t.swf --lengths 1x", "simulate tune t.swf --save x", "simulate run t.swf --json none/a",
        ),
        files={"t.swf": TRACE},
    ),
    "config": Case(both("config")),
    "help": Case(
        tuple(f"{verb} --help" for verb in ("submit", "check", "simulate run", "simulate compare", "simulate tune"))
    ),
    "campaign_errors": wrong(
        "submit {}", "yaml",
        "image: a\ncpus: x\n", "image: a\ncpu: 1\n", "image: a\nimage: b\n", "image: a\n\nmemory_mib: 4Q\n",
        "image: [\n", "- a\n", "image: a\ncpus: 0\n", "image: a\nhold: maybe\n", "image: a\nenvironment: {1x: y}\n",
        "image: a\nindices: 5-2\n", "image: a\nsaves_itself: {signal: SIGX, what: 1}\n", "image: a\nretry_on: [x]\n",
        "name: a\n", "image: a\ngpus: 1\n", "image: a\ncompute_limit: 0s\n", "image: a\nsaves_itself: {signal: x}\n",
        "image: a\nretry_on: [3]\nnever_retry_on: [3]\n", "",
    ),
}  # fmt: skip


def output() -> bytes:
    """Return a job's output, as control sends it."""
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        for name, kind in (("a.txt", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.txt" if kind == tarfile.SYMTYPE else ""
            archive.addfile(member)
    return sent.getvalue()


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A server that gives these answers, and the settings of a user of it. All times are in UTC."""
    told: dict[str, Any] = {}

    def answer(request: str, _headers: Message) -> Reply:
        wanted = request.partition("?")[0]
        if wanted.endswith("/output"):
            return 200, output()
        return (200 if wanted in told else 404), json.dumps(told.get(wanted, {"detail": "no"})).encode()

    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "80")
    time.tzset()
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    with answering(answer) as url:
        become_user(monkeypatch, Path(".."), url)
        yield told
    monkeypatch.undo()
    time.tzset()


def shown(command: str) -> str:
    """Return what one command prints."""
    words = shlex.split(command)
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        if words[0] == "env":
            patch.setenv("GLEANER_SETTINGS", words[1])
            words = words[2:]
        code = app.run(words)
    said = out.getvalue().replace(os.environ["GLEANER_CLIENT__URL"], "http://CONTROL")
    try:
        value = json.loads(said)
    except ValueError:
        pass
    else:
        if json.dumps(value, indent=2, ensure_ascii=False) + "\n" == said:
            said = json.dumps(value, ensure_ascii=False) + "\n"
    remarks = "".join(f"! {line}\n" for line in err.getvalue().splitlines())
    return f"$ {command}\n{said}{remarks}" + (f"exit code {code}\n" if code else "")


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed_is_what_was_printed_before(name: str, answers: dict[str, Any]) -> None:
    case = CASES[name]
    answers |= case.answers
    for file, text in case.files.items():
        Path(file).write_text(text)
    found = "\n".join(map(shown, case.commands))
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GLEANER_TESTS") == "golden":
        path.write_text(found)
    assert found == path.read_text()


def test_outputs_are_stored_on_demand(answers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = (GOLDEN / "drain.txt").read_text()
    monkeypatch.setenv("GLEANER_TESTS", "golden")
    monkeypatch.setitem(globals(), "GOLDEN", tmp_path)
    test_what_is_printed_is_what_was_printed_before("drain", answers)
    assert (tmp_path / "drain.txt").read_text() == stored
