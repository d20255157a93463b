"""The Slurm admin service and slurmctld's script on the real slurmctld: each request, each refusal, each way round
them.
"""

from collections.abc import Iterator

import pytest
from demo import cluster
from demo.entitlements import USERS_FOLDER
from tests import doc_pages
from tests.real_cluster import slurm_admin_harness as s

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", autouse=True)
def nobody_else(cluster_is_up: None) -> Iterator[None]:
    cluster.configure()
    s.tidy()
    yield
    s.tidy()


@pytest.fixture(autouse=True)
def alive() -> Iterator[None]:
    assert s.ask("alive", s.PARTITIONS) == "done"
    yield
    s.no_jobs()


def test_a_job_of_a_partition_with_entitlements_enters_held_and_says_why() -> None:
    job = s.submit(declared="preemptible")
    assert (s.priority(job), s.mark(job)) == (0, "gleaner: waits for its turn")
    assert s.ask("set_reason", job, "physics uses 12 of its 10 CPUs") == "done"
    shown = cluster.run("head", "squeue", "--noheader", f"--jobs={job}", "--Format=admin_comment:80", user="alice")
    assert shown.strip() == "gleaner: physics uses 12 of its 10 CPUs"


def test_a_job_of_any_other_partition_and_any_job_without_a_heartbeat_passes() -> None:
    assert s.priority(cluster.sbatch("--partition=regular", script="true")) > 0
    cluster.run("head", "rm", "/run/gleaner/alive")
    assert s.priority(s.submit(declared="no-class-at-all", script="true")) > 0
    for nonsense in ("soon", "1000", "99999999999"):
        cluster.run("head", "sh", "-c", f"echo {nonsense} >/run/gleaner/alive")
        assert s.priority(s.submit(script="true")) > 0, nonsense


def test_settings_that_cannot_be_read_let_every_job_pass() -> None:
    count = ("sh", "-c", "grep -c 'gleaner: a job passes untouched' /var/log/slurm/slurmctld.log || true")
    before = int(cluster.run("head", *count))
    try:
        for text in ("", "heartbeat\n", "partition\nheartbeat /run/gleaner/alive\n", "\x00\xff"):
            cluster.run("head", "sh", "-c", "cat > /etc/gleaner/slurm-admin.conf", stdin=text)
            assert s.priority(s.submit(script="true")) > 0, text
        said = int(cluster.run("head", *count)) - before
        assert said == 4, "newer Slurms refuse a job when the script fails"
    finally:
        s.enforce()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--comment=gleaner:mortal"], "there is no class gleaner:mortal"),
        (["--comment=gleaner:preemptible gleaner:checkpointable"], "the comment names two classes"),
        (["--partition=shared,regular"], "has entitlements and another of shared,regular has none"),
        (["--hold"], "wait for their turn without --hold"),
        (["--comment=gleaner:preemptible", "--no-requeue"], "contradicts --no-requeue"),
        (["--ntasks=1", ":", "--ntasks=1"], "takes no heterogeneous jobs"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_held_is_refused_in_one_line(options: list[str], why: str) -> None:
    assert why in s.refused("sbatch", "--partition=shared", "--output=/dev/null", "--chdir=/tmp", *options)


def test_a_class_that_the_partition_does_not_take_is_refused() -> None:
    shipped = (cluster.ROOT / "deploy" / "settings" / "slurm-admin.conf").read_text()
    s.enforce(shipped.replace("partition shared non-preemptible preemptible", "partition shared preemptible"))
    try:
        assert "takes no jobs of class non-preemptible" in s.refused("sbatch", "--partition=shared", "--chdir=/tmp")
        assert s.priority(s.submit(declared="preemptible")) == 0
    finally:
        s.enforce()


def test_an_interactive_job_waits_for_its_turn_and_cannot_be_requeued() -> None:
    assert "is for sbatch" in s.refused("srun", "--partition=shared", "--comment=gleaner:preemptible", "true")
    cluster.run("head", "sh", "-c", "srun --partition=shared --time=1 --job-name=now true >/tmp/now 2>&1 &", user="bob")
    words = ("squeue", "--noheader", "--name=now", "--format=%i")
    job = cluster.until("it to wait", lambda: cluster.run("head", *words).strip(), timeout_s=60, every_s=0.3)
    assert s.priority(job) == 0
    assert s.ask("release", job, top=False) == "done"
    s.wait_for_state(job, "COMPLETED")


def test_its_owner_cannot_get_round_the_hold() -> None:
    job = s.submit(declared="preemptible")
    for change in ("Priority=5", "AdminComment=mine", "Partition=regular"):
        assert "denied" in s.refused("scontrol", "update", f"JobId={job}", change)
    assert "Gleaner releases it" in s.refused("scontrol", "release", job)
    assert "Gleaner releases it" in s.refused("scontrol", "hold", job)
    assert (s.priority(job), s.mark(job)) == (0, "gleaner: waits for its turn")
    cluster.run("head", "scontrol", "update", f"JobId={job}", "TimeLimit=5", user="alice")
    moved = cluster.sbatch("--partition=regular", "--hold", script="true")
    assert "cannot be moved" in s.refused("scontrol", "update", f"JobId={moved}", "Partition=shared")
    cluster.run("head", "scontrol", "release", job)  # whoever runs the cluster may do anything


def test_the_class_of_a_job_is_fixed_once_it_has_started() -> None:
    job = s.submit(declared="checkpointable")
    assert "no class gleaner:mortal" in s.refused("scontrol", "update", f"JobId={job}", "Comment=gleaner:mortal")
    cluster.run("head", "scontrol", "update", f"JobId={job}", "Comment=mine gleaner:preemptible", user="alice")
    assert s.ask("release", job, top=True) == "done"
    s.wait_for_state(job, "RUNNING")
    assert "class of a job is fixed" in s.refused("scontrol", "update", f"JobId={job}", "Comment=mine")
    cluster.run("head", "scontrol", "update", f"JobId={job}", "Comment=gleaner:preemptible and more", user="alice")
    assert s.ask("requeue", job) == "done"
    s.wait_for_state(job, "PENDING")
    assert (s.priority(job), s.mark(job), cluster.slurm_job(job)["nice"]) == (0, "gleaner: waits for its turn", 0)
    assert "class of a job is fixed" in s.refused("scontrol", "update", f"JobId={job}", "Comment=mine")
    assert "Gleaner releases it" in s.refused("scontrol", "release", job)


@pytest.mark.parametrize(
    ("more", "was_allowed"),
    [
        *((size, True) for size in ("NumCPUs=6", "NumTasks=6", "NumNodes=2", "CPUsPerTask=6", "MinMemoryNode=3000")),
        *((judged, False) for judged in ("Account=chemistry", "QOS=normal", "Gres=gpu:1")),
    ],
)
def test_what_a_job_asks_for_and_was_judged_by_is_fixed_once_it_has_been_released(
    more: str, *, was_allowed: bool
) -> None:
    """It was released for its size and its account: a job with others would start above its owner's entitlement."""
    running = cluster.sbatch("--partition=regular", "--nodes=3", "--exclusive", script="sleep 300", user="carol")
    s.wait_for_state(running, "RUNNING")
    job = s.submit()
    if was_allowed:
        cluster.run("head", "scontrol", "update", f"JobId={job}", more, user="alice")
    assert s.ask("release", job, top=True) == "done"
    assert "fixed once it has been released" in s.refused("scontrol", "update", f"JobId={job}", more)
    cluster.run("head", "scontrol", "update", f"JobId={job}", "TimeLimit=5", user="alice")


def test_what_is_released_on_top_is_before_a_job_that_is_ahead_of_it() -> None:
    running = [cluster.sbatch("--partition=regular", "--nodes=3", "--exclusive", script="sleep 300", user="carol")]
    s.wait_for_state(running[0], "RUNNING")
    first, second = (s.submit("--nodes=3", "--exclusive", user=user) for user in ("bob", "alice"))
    assert s.ask("release", first, top=False) == "done"
    assert s.ask("release", second, top=True) == "done"
    assert s.priority(second) > 1_000_000_000 > s.priority(first)
    cluster.run("head", "scancel", *running)
    s.wait_for_state(second, "RUNNING")
    assert s.state(first) == "PENDING"
    assert s.ask("hold", first) == "done"
    assert (s.priority(first), s.mark(first)) == (0, "gleaner: waits for its turn")
    assert s.ask("hold", first) == f"ClusterRefused: job {first} was not released by us"
    assert s.ask("requeue", second).endswith("it is left alone once it runs")
    assert s.ask("release", second, top=True) == f"ClusterRefused: job {second} does not wait (RUNNING)"
    cluster.run("head", "scancel", first, second)
    s.wait_for_state(second, "CANCELLED")
    assert s.ask("requeue", second) == f"ClusterRefused: job {second} has ended (CANCELLED)"


def test_a_checkpointable_job_is_signalled_in_its_steps_and_waits_when_it_has_requeued_itself() -> None:
    step = "trap 'scontrol requeuehold $SLURM_JOB_ID; exit' USR1; while :; do sleep 1; done"
    job = s.submit(declared="checkpointable", script=f'srun --ntasks=1 sh -c "{step}"'.replace("$S", "\\$S"))
    assert s.ask("release", job, top=False) == "done"
    s.wait_for_state(job, "RUNNING")
    assert s.ask("requeue", job).endswith("it declares checkpointable")
    cluster.until(
        "its step", lambda: f"{job}.0" in cluster.run("head", "squeue", "--steps", "--noheader"), timeout_s=60
    )
    assert s.ask("signal", job) == "done"
    s.wait_for_state(job, "PENDING")
    assert s.priority(job) == 0
    assert "Gleaner releases it" in s.refused("scontrol", "release", job)
    assert s.ask("release", job, top=False) == "done"


@pytest.fixture
def alices_home() -> Iterator[str]:
    """A folder of hers that all machines have."""
    home = f"{USERS_FOLDER}/alice"
    cluster.run("node1", "install", "-d", "-m", "0700", "-o", "alice", home)
    yield home
    s.no_jobs()
    cluster.run("node1", "rm", "-rf", home)


def test_the_users_guides_script_that_saves_itself_goes_on_where_it_was(alices_home: str) -> None:
    script = doc_pages.blocks((doc_pages.ROOT / "docs" / "user" / "user-jobs.md").read_text(), "sh")[1]
    home = alices_home
    options = ("--partition=shared", f"--chdir={home}")
    job = cluster.sbatch(*options, script=script, output=f"{home}/%j.out")

    def begun() -> list[int]:
        printed = cluster.run("node1", "sh", "-c", f"cat {home}/{job}.out 2>/dev/null || true")
        return [int(line.split()[-1]) for line in printed.splitlines() if line.startswith("begins at ")]

    assert s.ask("release", job, top=False) == "done"
    cluster.until("it to begin", begun, timeout_s=30)
    cluster.run("head", "sleep", "3")
    assert s.ask("signal", job) == "done"
    s.wait_for_state(job, "PENDING")
    assert (s.priority(job), cluster.slurm_job(job)["restart_cnt"]) == (0, 1)
    assert s.ask("release", job, top=False) == "done"
    cluster.until("it to go on", lambda: len(begun()) == 2, timeout_s=60)
    first, second = begun()
    assert first == 0 < second
    cluster.run("head", "scancel", job)


def test_the_slurm_admin_listens_to_control_alone_and_comes_back_when_it_is_killed() -> None:
    assert s.ask("alive", s.PARTITIONS, user="alice").startswith("ClusterUnavailable")
    assert s.ask("alive", s.PARTITIONS, user="root").startswith("ClusterUnavailable")
    cluster.run("head", "pkill", "-KILL", "-u", "gleaner-slurm-admin", "-f", "bin/gleaner-slurm-admin")
    cluster.until("the Slurm admin service", lambda: s.ask("alive", s.PARTITIONS) == "done", timeout_s=20, every_s=0.5)
