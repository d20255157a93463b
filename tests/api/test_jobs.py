"""The users' requests on jobs, over HTTP."""

from dataclasses import replace

import pytest
from tests.api.api_harness import ApiHarness, detail
from tests.slurm.records import agent, node, seen

from gleaner.control.policy.returns import FIRST_EXCLUSION_S
from gleaner.control.queue import node_health
from gleaner.control.queue.database import transaction
from gleaner.control.settings import RoundSettings
from gleaner.control.slurm.snapshot import SlurmNode

SPEC = {"name": "pi", "image": "gleaner/pi"}


def _cluster(harness: ApiHarness, *nodes: SlurmNode) -> None:
    harness.state.cluster = seen(harness.now_s, *nodes)
    rounds = RoundSettings(length_s=3600, origin_s=harness.now_s)
    harness.change(rounds=rounds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"cpus": -1}, "job.cpus: input should be greater than or equal to 1"),
        ({"memory_mib": 10**12}, "job.memory_mib: input should be less than or equal to"),
        ({"retry_on": []}, "job.retry_on: tuple should have at least 1 item"),
        ({"name": "a\n"}, "job.name:"),
        ({"command": ["\ud800"]}, "job.command.0:"),
        ({"environment": {"A": "a\0b"}}, "job.environment.A:"),
        ({"memory": 512}, "job.memory: there is no such field"),
        ({"\ud800": 512}, "job: input should be a valid string"),
    ],
)
def test_bad_input_names_the_field_in_one_line_and_queues_nothing(
    harness: ApiHarness, wrong: dict[str, object], says: str
) -> None:
    assert says in detail(harness.user.post("/v1/jobs", {"job": SPEC | wrong}), 422)
    assert harness.user.get("/v1/jobs").json()["total"] == 0


@pytest.mark.parametrize("indices", [[], [1, 1], [-1], [2**31], ["x"]])
def test_indices_must_be_distinct_small_numbers(harness: ApiHarness, indices: list[object]) -> None:
    assert "indices" in detail(harness.user.post("/v1/jobs", {"job": SPEC, "indices": indices}), 422)


def test_a_job_larger_than_any_node_is_refused_with_both_sizes(harness: ApiHarness) -> None:
    _cluster(harness, node("n1", 4, 2048 + 64), node("n2", 2, 4096 + 64, "ALLOCATED"))
    line = detail(harness.user.post("/v1/jobs", {"job": SPEC | {"cpus": 4, "memory_mib": 4096}}), 422)
    assert line == "larger than any node: it needs 4 cores and 4096 MiB, the largest node has 4 cores and 2048 MiB"
    harness.user.submit(spec={"cpus": 2, "memory_mib": 4096})


def test_a_job_is_not_rounded_beyond_a_node_that_control_has_not_seen_yet(harness: ApiHarness) -> None:
    assert harness.state.cluster is None, "Slurm has not answered since control began to lead"
    job = harness.user.submit(spec={"memory_mib": 64_000})
    assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["memory_mib"] == 64_000


def test_a_job_is_not_rounded_beyond_what_agents_leave_of_a_node_for_jobs(harness: ApiHarness) -> None:
    _cluster(harness, node("n1", 8, 16_384))
    agent = harness.agent(memory_mib=15_500)
    job = harness.user.submit(spec={"memory_mib": 15_400})
    assert agent.ask("claim", {"cpus": 8, "memory_mib": 15_500, "most": 1}).json()["jobs"][0]["job"] == job
    assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["memory_mib"] == 15_500


@pytest.mark.parametrize("job", ["0", "-1", "x", "1.5", str(2**64), "9" * 5000])
def test_what_can_be_no_id_is_bad_input(harness: ApiHarness, job: str) -> None:
    assert detail(harness.user.get(f"/v1/jobs/{job}"), 422).startswith("job: ")


@pytest.mark.slow
def test_unknown_paths_methods_and_filters_are_problems_too(harness: ApiHarness) -> None:
    detail(harness.user.get("/v1/nowhere"), 404)
    detail(harness.user.get("/health/"), 404)
    detail(harness.user.post("/v1/status"), 405)
    assert "there is no such field" in detail(harness.user.get("/v1/jobs", stat="New"), 422)
    assert detail(harness.user.get("/v1/jobs", state="Done"), 422).startswith("state: ")
    detail(harness.user.get("/v1/jobs", limit=0), 422)


def test_a_limit_of_the_disk_above_that_of_all_nodes_is_refused_with_both(harness: ApiHarness) -> None:
    harness.user.submit(spec={"disk_mib": 30 * 1024})
    for disk_mib in (None, 1024, 20 * 1024):
        harness.agent(disk_mib=disk_mib)
    harness.user.submit(spec={"disk_mib": 20 * 1024})
    said = detail(harness.user.post("/v1/jobs", {"job": SPEC | {"disk_mib": 30 * 1024}}), 422)
    assert said == "disk: a job may write 20 GiB at most (disk_mib_per_job) on the nodes here, found 30 GiB"


def test_a_waiting_job_says_why(harness: ApiHarness) -> None:
    job = harness.user.submit()

    def says() -> str:
        line: str = harness.user.get(f"/v1/jobs/{job}").json()["waits_because"]
        return line

    assert says() == "the cluster is not read yet"
    _cluster(harness, node("n1", 4, 2048, "IDLE", "PLANNED"))
    with transaction(harness.state.engine) as db:
        node_health.record_fault(db, "n1", now_s=harness.now_s, faults_until_excluded=1)
    assert "are excluded for a while" in says()
    harness.user.submit(spec={"priority": 1})
    harness.agent(registered=False)
    assert says().startswith(
        "waiting for agents that were submitted, which Slurm has not started yet: 1"
        " (1 of 1 idle nodes are planned for other jobs); 1 job of its group goes before it"
    )
    harness.state.cluster = replace(harness.state.cluster or seen(0), closed={"gleaner": "down"})
    assert says().startswith("the partition gleaner is DOWN, so no agent starts: `scontrol update PartitionName=")
    harness.user.post(f"/v1/jobs/{job}/hold")
    assert says().startswith("held: by alice")


def test_nodes_show_who_uses_them_and_which_are_left_alone(harness: ApiHarness) -> None:
    assert harness.user.get("/v1/nodes").json()["read_s"] is None
    nodes = (node("n1", 4, 2048, "MIXED"), node("n2", 4, 2048), node("n3", 4, 2048, "MIXED"))
    harness.state.cluster = seen(harness.now_s, *nodes, jobs=(agent("agent-x", "n1"),))
    with transaction(harness.state.engine) as db:
        node_health.record_fault(db, "n2", now_s=harness.now_s, faults_until_excluded=1)
    status = harness.user.get("/v1/nodes").json()
    first, second, third = status["nodes"]
    assert (first["agent"], first["regular"], first["state"]) == ("agent-x", False, "MIXED")
    assert (third["agent"], third["regular"]) == (None, True)
    assert (second["failures"], second["excluded_until_s"]) == (1, harness.now_s + FIRST_EXCLUSION_S)
    assert not status["stale"]
    harness.now_s += FIRST_EXCLUSION_S + 1
    status = harness.user.get("/v1/nodes").json()
    assert status["stale"]
    assert status["nodes"][1]["excluded_until_s"] is None


@pytest.mark.slow
def test_a_distrusted_node_is_named_with_the_reason_until_an_admin_trusts_it(harness: ApiHarness) -> None:
    harness.state.cluster = seen(harness.now_s, node("n1", 8, 16384), node("n2", 8, 16384))
    with transaction(harness.state.engine) as db:
        node_health.record_fault(db, "n1", now_s=harness.now_s, faults_until_excluded=1)
    first, second = harness.user.get("/v1/nodes").json()["nodes"]
    assert ("failed here" in first["distrusted"], second["distrusted"]) == (True, "")
    metrics = harness.admin.get("/metrics").text
    assert "gleaner_nodes_distrusted 1.0" in metrics
    assert "gleaner_nodes_excluded 1.0" in metrics
    assert harness.user.post("/v1/nodes/n1/trust").status_code == 403
    assert harness.admin.post("/v1/nodes/n1/trust").json()["nodes"][0]["distrusted"] == ""
    assert "nothing is held against node n1" in detail(harness.admin.post("/v1/nodes/n1/trust"), 404)
