"""The verbs against a real control program."""

import json
import time
from pathlib import Path

import pytest
from tests.cli.cli_harness import CliHarness

from gleaner.control.queue import logs
from gleaner.control.queue.database import transaction
from gleaner.control.slurm.snapshot import Snapshot

pytestmark = pytest.mark.slow

CAMPAIGN = """\
name: zmumu
image: gleaner/pythia
command: [generate, --seed, "{index}", --events, 2000]
environment: {SEED: "{index}"}
memory_mib: 256
indices: 0-2
"""


def campaign(harness: CliHarness, *options: str) -> int:
    (harness.folder / "zmumu.yaml").write_text(CAMPAIGN)
    return int(json.loads(harness.good("submit", "zmumu.yaml", "--json", *options))["campaign"])


def test_a_job_is_submitted_shown_and_listed(harness: CliHarness) -> None:
    options = (
        "--name pi1 --cpus 2 --priority -3 --env A=b=c --retries 0 --saves-itself SIGUSR1:3 --memory-mib 512..4G"
        " --retry-on 137,75 --never-retry-on 1 --compute-limit 2h --needs-at-least 18m --disk 2G --silent-limit 30m"
    )
    job = harness.submit(*options.split())
    detail = json.loads(harness.good("show", str(job), "--json"))
    row = {"id": job, "name": "pi1", "group": "atlas", "cpus": 2, "memory_mib": 512, "priority": -3, "state": "New"}
    assert detail["job"] | row == detail["job"]
    assert detail["spec"] == detail["spec"] | {
        "image": "gleaner/pi", "command": ["pi", "--samples", "10"], "environment": {"A": "b=c"}, "retries": 0,
        "saves_itself": {"signal": "SIGUSR1", "exit_code": 3}, "most_memory_mib": 4096, "retry_on": [75, 137],
        "never_retry_on": [1], "compute_limit_s": 7200, "needs_at_least_s": 1200, "disk_mib": 2048,
        "silent_limit_s": 1800,
    }  # fmt: skip
    shown = harness.good("show", str(job))
    assert detail["waits_because"]
    assert detail["waits_because"] in shown
    assert "pi1" in harness.good("list")


def test_a_campaign_file_becomes_a_run_an_index(harness: CliHarness) -> None:
    number = campaign(harness)
    listed = json.loads(harness.good("list", "--campaign", str(number), "--json"))
    assert [row["index"] for row in listed["jobs"]] == [0, 1, 2]
    last = json.loads(harness.good("show", str(listed["jobs"][2]["id"]), "--json"))
    assert last["spec"]["command"] == ["generate", "--seed", "2", "--events", "2000"]
    assert last["spec"]["environment"] == {"SEED": "2"}
    assert harness.good("submit", "zmumu.yaml", "--priority", "7").startswith(f"campaign {number + 1}: jobs ")
    assert json.loads(harness.good("list", "--campaign", str(number + 1), "--json"))["jobs"][0]["priority"] == 7


def test_an_array_option_makes_a_campaign_too(harness: CliHarness) -> None:
    out = harness.good("submit", "--image", "a", "--array", "1,5-7%2", "--hold", "--json", "--", "run", "{index}")
    said = json.loads(out)
    assert len(said["jobs"]) == 4
    shown = json.loads(harness.good("campaign", "show", str(said["campaign"]), "--json"))
    assert (shown["held"], shown["max_running"]) == (4, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--image", "a", "--cpus", "many", "--", "run"], "Invalid value for '--cpus'"),
        (
            ["--image", "a", "--needs-at-least", "2h", "--", "run"],
            "no agent here has 2 h for a job, the most is 53 min",
        ),
        (["--image", "a", "run", "--events", "3"], "No such option: --events"),
        (["--image", "a", "--seed", "3"], "No such option: --seed; options of the job's command go after --"),
        (["none.yaml"], "none.yaml: no such file"),
        (["--", "true " * 1000], "say what to submit: --image IMAGE is missing before -- 'true true"),
        (["--cpus", "2", "--", "sh", "-c", "a b"], "--image IMAGE is missing before -- sh -c 'a b'"),
    ],
)
def test_a_submission_that_will_not_do_is_refused_with_one_line(
    harness: CliHarness, arguments: list[str], said: str
) -> None:
    assert said in harness.refused("submit", *arguments, code=2)


def test_an_unknown_job_or_campaign_is_named_and_a_verb_takes_one_of_both(harness: CliHarness) -> None:
    for verb in ("show", "logs"):
        assert "4711" in harness.refused(verb, "4711", code=1)
    for verb in ("list", "wait", "results", "hold", "release", "cancel"):
        assert "4711" in harness.refused(verb, "--campaign", "4711", code=1)
    for verb in ("wait", "results", "hold", "release", "cancel"):
        assert "jobs, or --campaign C" in harness.refused(verb, code=2)
        assert "jobs, or --campaign C" in harness.refused(verb, "1", "--campaign", "1", code=2)


def test_hold_release_and_priority_change_the_job(harness: CliHarness) -> None:
    job = str(harness.submit())
    assert "New, held" in harness.good("hold", job)
    assert "held" in harness.good("show", job)
    assert json.loads(harness.good("release", job, "--json"))[0]["held"] is False
    assert json.loads(harness.good("priority", job, "-5", "--json"))[0]["priority"] == -5
    assert "between" in harness.refused("priority", job, "1000001", code=2)
    for wrong in (["5"], ["0", "5"], [job, "6", "5"], ["--campaign", "1", job, "5"]):
        assert "give JOB N, or --campaign C N" in harness.refused("priority", *wrong, code=2)


def test_a_job_that_has_ended_already_keeps_no_other_from_being_cancelled(harness: CliHarness) -> None:
    jobs = [str(harness.submit()) for _ in range(6)]
    (claimed,) = harness.node.claim(most=1)
    harness.node.complete(claimed)
    code, out, err = harness.run("cancel", *jobs, "--json")
    assert [row["outcome"] for row in json.loads(out)] == ["cancelled"] * 5
    assert (code, err) == (1, f"glean: job {jobs[0]}: cannot cancel, for it is Complete (succeeded)\n")
    code, out, err = harness.run("cancel", *jobs, "4711")
    assert code == 1, "an unknown job is a failure"
    assert "there is no job 4711" in err


def test_a_whole_campaign_is_held_released_and_cancelled(harness: CliHarness) -> None:
    number = str(campaign(harness))
    assert json.loads(harness.good("hold", "--campaign", number, "--json"))["held"] == 3
    assert json.loads(harness.good("release", "--campaign", number, "--json"))["held"] == 0
    harness.good("priority", "--campaign", number, "7")
    assert [row["priority"] for row in json.loads(harness.good("list", "--json"))["jobs"]] == [7] * 3
    assert json.loads(harness.good("cancel", "--campaign", number, "--json"))["cancelled"] == 3


def test_what_failed_runs_again_alone_or_with_its_campaign_and_other_memory(harness: CliHarness) -> None:
    number = str(campaign(harness))
    for wrong in ([], ["1", "--campaign", number], ["--campaign", number], ["1", "--failed"]):
        assert "say what to run again" in harness.refused("rerun", *wrong, code=2)
    assert "--memory-mib must be like" in harness.refused("rerun", "1", "--memory-mib", "much", code=2)
    harness.good("cancel", "--campaign", number)
    assert harness.refused("rerun", "--campaign", number, "--failed", code=1).startswith("campaign 1 has no failed job")
    code, out, err = harness.run("rerun", "--campaign", number, "--only", "1-2", "--memory-mib", "1G")
    assert (code, out) == (0, "campaign 1: jobs 2 to 3\n")
    assert err == "glean: they run again; `glean wait --campaign 1` waits until they have ended\n"
    (row,) = json.loads(harness.good("rerun", "1", "--image", "other", "--json"))
    assert (row["state"], row["memory_mib"], row["campaign"]) == ("New", 256, 1)
    assert json.loads(harness.good("show", "2", "--json"))["job"]["memory_mib"] == 1024


def test_list_filters_and_says_how_many_there_are(harness: CliHarness) -> None:
    number = str(campaign(harness))
    job = harness.submit("--hold")
    assert json.loads(harness.good("list", "--held", "--json"))["jobs"][0]["id"] == job
    assert json.loads(harness.good("list", "--not-held", "--json"))["total"] == 3
    assert "2 of 4 jobs" in harness.good("list", "--limit", "2")
    listed = json.loads(harness.good("list", "--campaign", number, "--after", str(job - 2), "--json"))
    assert [row["id"] for row in listed["jobs"]] == [job - 1]
    assert "--limit must be at most 1000" in harness.refused("list", "--limit", "5000", code=2)
    assert "--group must begin with" in harness.refused("list", "--group", "a/b", code=2)
    assert "'--state'" in harness.refused("list", "--state", "done", code=2)


def test_what_a_workload_writes_goes_through_unchanged_to_a_pipe(harness: CliHarness) -> None:
    job = harness.submit()
    (claimed,) = harness.node.claim()
    harness.node.write(claimed, 0, "start", "\x1b[1mbold\x1b[0m", "[red]not markup[/red]", "")
    assert harness.good("logs", str(job)) == "start\n\x1b[1mbold\x1b[0m\n[red]not markup[/red]\n\n"


@pytest.mark.parametrize("everything", [(), ("--all",)])
def test_a_log_whose_beginning_is_gone_says_how_many_lines_that_were(
    harness: CliHarness, everything: tuple[str, ...]
) -> None:
    job = harness.submit()
    (claimed,) = harness.node.claim()
    harness.node.write(claimed, 0, *(f"event {n}" for n in range(2500)))
    with transaction(harness.state.engine) as db:
        logs.remove_oldest(db, job, sum(len(f"event {n}") + logs.LINE_BYTES for n in range(1300)))
    code, out, err = harness.run("logs", str(job), *everything)
    assert (code, out.splitlines()) == (0, [f"event {n}" for n in range(1300, 2500)])
    assert err == "glean: 1300 earlier lines are no longer kept\n"


def test_results_of_a_campaign_go_into_a_folder_a_run_once(harness: CliHarness) -> None:
    number = campaign(harness)
    first, second = harness.node.claim(most=2)
    harness.node.complete(first, files={"hist.txt": b"one", "sub/more.txt": b"1", "big.root": b""})
    harness.node.complete(second, files={"hist.txt": b"two"})
    top = harness.folder / "out" / f"campaign-{number}"
    (top / "zmumu-1" / "mine").mkdir(parents=True)
    wanted = ("results", "--campaign", str(number), "--to", "out", "--only", "**/*.txt")
    code, out, err = harness.run(*wanted, "--json")
    assert (code, [row["files"] for row in json.loads(out)]) == (1, [2])
    assert f"job {second.job}: out/campaign-{number}/zmumu-1 contains other files" in err
    assert "(zmumu-2) has no output: it is New" in err
    harness.node.complete(*harness.node.claim(), files={})
    (top / "zmumu-1" / "mine").rmdir()
    told = harness.good(*wanted)
    assert told.endswith("\n\n1 result already there, not fetched again\n")
    assert "without a file: 1 (" in told
    found = {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("[!.]*") if p.is_file()}
    assert found == {"zmumu-0/hist.txt": b"one", "zmumu-0/sub/more.txt": b"1", "zmumu-1/hist.txt": b"two"}
    assert harness.good(*wanted) == "3 results already there, not fetched again\n"


def test_a_token_file_is_its_owners_alone_and_never_overwritten(admin: CliHarness) -> None:
    arguments = ["token", "create", "--role", "user", "--name", "bob", "--group", "cms", "--to", "bob"]
    assert admin.good(*arguments) == "written to bob\n"
    path = admin.folder / "bob"
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    before = path.read_text()
    assert admin.refused(*arguments, code=2) == "bob already exists; a token is never overwritten"
    assert path.read_text() == before


def test_a_stop_is_in_the_queue_and_a_job_says_that_it_waits(harness: CliHarness, admin: CliHarness) -> None:
    harness.state.cluster = Snapshot(time.time())
    harness.good("submit", "--image", "a", "--", "run")
    assert "no control program leads" in admin.good("control", "stop")
    assert "all agents are stopped since " in harness.good("show", "1")
    assert admin.good("control", "start") == "agents may start again\n"
    assert admin.good("control", "start") == "nothing was stopped\n"
    assert "all agents are stopped" not in harness.good("show", "1")


def test_an_admin_lists_ends_and_replaces_tokens(harness: CliHarness, admin: CliHarness, tmp_path: Path) -> None:
    made = ["token", "create", "--role", "user", "--name", "bob", "--group", "cms"]
    secret = admin.good(*made, "--manager", "--days", "30").strip()
    rows = json.loads(admin.good("token", "list", "--json"))
    (bob,) = [row for row in rows if row["name"] == "bob"]
    assert (bob["manager"], bob["expires_s"] - bob["issued_s"]) == (True, 30 * 24 * 3600)
    table = admin.good("token", "list")
    assert bob["id"] in table
    assert "manager" in table
    assert secret not in table
    fresh = admin.good("token", "rotate", bob["id"]).strip()
    assert fresh != secret
    assert "was revoked" in admin.refused("token", "rotate", bob["id"], code=1)
    (now,) = [row for row in json.loads(admin.good("token", "list", "--json")) if row["name"] == "bob"]
    assert now["id"] in admin.good("token", "revoke", now["id"])
    assert "bob" not in admin.good("token", "list")
    assert admin.good("token", "list", "--all").count("bob") == 2
    assert "is not a token's id" in admin.refused("token", "revoke", "bob", code=2)
    assert "there is no token" in admin.refused("token", "revoke", "0" * 12, code=1)
    own = harness.good("token", "list")
    assert "alice" in own
    assert "root" not in own
    harness.good("token", "rotate", "--to", str(tmp_path / "fresh"))
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o600


def test_what_failed_is_found_and_removed(harness: CliHarness) -> None:
    for name in ("one", "two"):
        harness.good("submit", "--image", "pi", "--name", name, "--retries", "0", "--array", "1-2")
    for number, work in enumerate(harness.node.claim()):
        harness.node.complete(work, exit_code=number % 2)
    wanted = ("list", "--failed", "--mine", "--name", "TWO", "--newest", "--json")
    (row,) = json.loads(harness.good(*wanted))["jobs"]
    assert (row["name"], row["exit_code"]) == ("two", 1)
    assert [row["id"] for row in json.loads(harness.good("campaigns", "--mine", "--json"))["campaigns"]] == [2, 1]
    assert "exit code 1" in harness.good("campaign", "show", "2")
    assert "two" in harness.good("rm", str(row["id"]))
    harness.good("rm", "--campaign", "1", "--yes")
    assert "node hours in " in harness.good("report")
    assert json.loads(harness.good(*wanted))["total"] == 0
    assert [row["name"] for row in json.loads(harness.good("campaigns", "--json"))["campaigns"]] == ["two"]
