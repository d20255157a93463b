"""`glean run` on the real cluster: an ordinary user's Slurm job is saved at a signal, and goes on on another node."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from demo import cluster, reference
from demo.entitlements import USERS_FOLDER
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

NAME = "user-job-test"
EVENTS = 1600
SMALL = (f"--job-name={NAME}", "--ntasks=1", "--cpus-per-task=1", "--mem=600", "--time=10", "--partition=regular")
ENDLESS = ("--samples", "1000000000000", "--seed", "1", "--out", ".", *cluster_harness.IDLING)
"""CRIU saves no open connection unless it is told to."""
AT_THE_DOOR = """
import json, os, signal, sys
from gleaner.agent.runtime.helper_client import HelperClient, HelperRefusal
from gleaner.agent.runtime.interface import RuntimeFault
theirs, number, process = sys.argv[1:]
helper = HelperClient("/run/gleaner-helper.sock")
found = {"list": sorted(helper.ask("list").fields["containers"])}
for do, fields in {
    "admit": {"slurm_job": number}, "about": {"name": theirs}, "logs": {"name": theirs}, "checkpoint": {"name": theirs},
    "pause": {"name": theirs}, "remove": {"name": theirs}, "signal": {"name": theirs, "signal": "KILL"},
}.items():
    try:
        helper.ask(do, **fields)
        found[do] = "done"
    except HelperRefusal as error:
        found[do] = error.kind
for what, act in {
    "kill": lambda: os.kill(int(process), signal.SIGKILL),
    "folder": lambda: os.listdir(f"/var/lib/gleaner-users/{theirs}"),
    "root": lambda: os.listdir(f"/proc/{process}/root"),
    "bundle": lambda: os.listdir("/var/lib/gleaner-root/containers"),
    "key": lambda: open("/etc/gleaner/user-jobs.key"),
    "saved": lambda: os.listdir("/srv/users/alice/.gleaner"),
}.items():
    try:
        act()
        found[what] = "done"
    except PermissionError:
        found[what] = "denied"
print(json.dumps(found))
"""


@pytest.fixture(autouse=True, scope="module")
def _homes(cluster_is_up: None) -> Iterator[None]:
    """A folder of each user's that all machines have; their jobs and what they left are removed afterwards."""
    for user in ("alice", "bob"):
        cluster.run("node1", "install", "-d", "-m", "0700", "-o", user, f"{USERS_FOLDER}/{user}")
    yield
    cluster.run("node1", "rm", "-rf", f"{USERS_FOLDER}/alice", f"{USERS_FOLDER}/bob")


@pytest.fixture(autouse=True)
def _no_other_jobs() -> Iterator[None]:
    """Cancel what a test has submitted, also when the test fails."""
    yield
    cancel(*left())


def left() -> list[str]:
    """The jobs of these tests that Slurm has not ended."""
    return cluster.run("head", "squeue", "--noheader", f"--name={NAME}", "--format=%A").split()


def cancel(*jobs: str) -> None:
    """End these jobs, and wait until they have. One that requeues itself just then is cancelled once more."""

    def have_ended() -> bool:
        here = set(jobs) & set(left())
        if here:
            cluster.run("head", "scancel", *here)
        return not here

    cluster.until("the jobs to end", have_ended, timeout_s=40)


def submit(*options: str, script: str, user: str = "alice") -> str:
    """A batch script in the user's shared folder; what it prints is kept over all its starts."""
    home = f"{USERS_FOLDER}/{user}"
    words = (f"--chdir={home}", f"--output={home}/%j.out", "--open-mode=append", "--comment=gleaner:checkpointable")
    return cluster.run(
        "head", "env", f"HOME={home}", "sbatch", "--parsable", *SMALL, *words, *options,
        user=user, stdin=f"#!/bin/sh\n{script}\n",
    ).strip().split(";")[0]  # fmt: skip


def printed(job: str, user: str = "alice") -> list[str]:
    """Return the lines that a job has printed so far."""
    return cluster.run("node1", "sh", "-c", f"cat {USERS_FOLDER}/{user}/{job}.out 2>/dev/null || true").splitlines()


def wait_for_lines(job: str, count: int) -> None:
    cluster.until(f"{count} lines of job {job}", lambda: len(printed(job)) >= count, timeout_s=60, every_s=0.5)


def is_over(job: str) -> bool:
    return cluster.slurm_job(job)["job_state"] in (["COMPLETED"], ["FAILED"], ["TIMEOUT"])


def test_signalled_in_mid_run_it_ends_on_another_node_as_if_nothing_had_been() -> None:
    wanted = reference.Wanted(1, EVENTS)
    with ThreadPoolExecutor(1) as beside:
        computed = beside.submit(reference.compute, wanted, reference.folder(reference.image_id()) / "user-job")
        job = left_in_mid_run(" ".join(wanted.arguments))
        run = computed.result()
    assert len(printed(job)) < len(run.log)
    # Slurm itself would wait for two minutes (the life of a credential), and has node3 in the job's wishes.
    words = ("ReqNodeList=", "ExcNodeList=node3", "StartTime=now")
    cluster.run("head", "scontrol", "update", f"JobId={job}", *words, user="alice")
    cluster.until("the job to end", lambda: is_over(job), timeout_s=120)
    ended = cluster.slurm_job(job)
    assert (ended["job_state"], ended["restart_cnt"]) == (["COMPLETED"], 1)
    assert ended["nodes"] in ("node1", "node2")
    assert "continues from the last save" in "\n".join(printed(job))
    of_the_job = [line for line in printed(job) if line.startswith(("start", "event"))]
    assert of_the_job == [line for line in run.log if line.startswith(("start", "event"))]
    place = f"{USERS_FOLDER}/alice/result"
    assert sorted(cluster.run("node1", "ls", place).split()) == sorted(run.files)
    for name, content in run.files.items():
        assert cluster.run("node1", "cat", f"{place}/{name}").encode() == content
    kept = cluster.run("node1", "find", f"{USERS_FOLDER}/alice/.gleaner", "-path", f"*/jobs/{job}*")
    assert kept == "", "nothing is kept"


def left_in_mid_run(arguments: str) -> str:
    """A job that was signalled on node3 and waits to be started again."""
    job = submit("--nodelist=node3", script=f"exec glean run --results result {reference.IMAGE} {arguments}")
    wait_for_lines(job, 100)
    cluster.run("head", "scancel", "--signal=USR1", job, user="alice")
    cluster.until("the job to be requeued", lambda: cluster.slurm_job(job)["job_state"] == ["PENDING"], timeout_s=30)
    assert any("saved in" in line and "requeued" in line for line in printed(job))
    return job


def test_bobs_job_cannot_touch_alices_container() -> None:
    alices = submit("--nodelist=node3", script=f"exec glean run {cluster_harness.PI} {' '.join(ENDLESS)}")
    name = f"own-4301-{alices}"
    look = ("pgrep", "-u", "alice", "-f", "^python3 /opt/pi/pi.py")
    # The first line that is printed may be a warning, before there is a container.
    process = cluster.until("alice's program", lambda: cluster.run("node3", *look).strip(), timeout_s=60)
    script = f"exec /opt/gleaner/bin/python - {name} {alices} {process} <<'EOF'\n{AT_THE_DOOR}\nEOF"
    bobs = submit("--nodelist=node3", script=script, user="bob")
    cluster.until("bob's job to end", lambda: is_over(bobs), timeout_s=60)
    found = json.loads(printed(bobs, "bob")[-1])
    assert found.pop("list") == []
    assert found.pop("admit") == "fault"
    assert {found.pop(do) for do in ("about", "logs", "checkpoint", "pause", "remove", "signal")} == {"gone"}
    assert set(found.values()) == {"denied"}, found
    before = len(printed(alices))
    cluster.until("alice's job to go on", lambda: len(printed(alices)) >= before, timeout_s=20)
    status = cluster.run("node3", "cat", f"/proc/{process}/status")
    assert "Uid:\t4301\t4301\t4301\t4301" in status
    assert "CapEff:\t0000000000000000" in status
    cluster.run("head", "scancel", alices, user="alice")
    cluster.until("alice's container to be gone", lambda: name not in helpers_containers(), timeout_s=30)
    assert cluster.run("node3", "ls", "/var/lib/gleaner-users") == ""


def helpers_containers() -> str:
    return cluster.run("node3", "ls", "/var/lib/gleaner-root/containers")
