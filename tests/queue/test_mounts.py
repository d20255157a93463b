"""A job that mounts folders of its node is given only to agents of nodes that have them."""

from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import ReturnReason
from gleaner.control.policy.why_waiting import JobNeeds, NodeOutlook, cannot_go_on
from gleaner.control.queue import compatibility, queries
from gleaner.control.states import State

A, B = "/cvmfs/a", "/cvmfs/b"


def claimed(harness: QueueHarness, agent: str) -> list[int]:
    return [work.job for work in harness.claim(agent)]


def lacking(harness: QueueHarness, job: int) -> dict[str, str]:
    found = harness.look(compatibility.obstacles, job)
    return dict(found.lacking) if found else {}


def test_only_a_node_with_all_the_folders_is_given_the_job(harness: QueueHarness) -> None:
    both, one, plain = harness.job(mounts=(B, A)), harness.job(mounts=(A,)), harness.job()
    assert claimed(harness, harness.agent("none")) == [plain]
    assert claimed(harness, harness.agent("one", mounts=(A,))) == [one]
    (work,) = harness.claim(harness.agent("more", mounts=("/x", A, B)))
    assert (work.job, work.spec.mounts) == (both, (A, B))
    assert harness.detail(both).spec.mounts == (A, B)
    assert harness.detail(plain).spec.mounts == ()


def test_what_a_node_has_is_what_its_latest_agent_has_found(harness: QueueHarness) -> None:
    job = harness.job(mounts=(A,))
    harness.agent("a", node="n1", mounts=(A,))
    harness.agent("b", node="n1", mounts=(B,))
    assert lacking(harness, job) == {"n1": f"the folder {A}"}
    assert claimed(harness, "a") == claimed(harness, "b") == []
    harness.agent("c", node="n1", mounts=(A,))
    assert lacking(harness, job) == {}
    assert claimed(harness, "c") == [job]


def test_where_all_nodes_lack_a_folder_the_job_says_which(harness: QueueHarness) -> None:
    job = harness.job(mounts=(A, B))
    harness.agent("a", node="n1", mounts=(A,))
    harness.agent("b", node="n2")
    found = lacking(harness, job)
    assert found == {"n1": f"the folder {B}", "n2": f"the folder {A} and the folder {B}"}
    nodes = [NodeOutlook(64, 65536, name=name) for name in ("n1", "n2")]
    assert cannot_go_on(JobNeeds(1, 512, lacking=found), nodes) == f"waits for a node with the folder {B}"
    (waiting,) = harness.look(queries.waiting)
    assert waiting.misfits == {"n1", "n2"}, "no agent is submitted to them for it"


def test_where_no_node_can_fetch_a_jobs_input_the_job_says_so(harness: QueueHarness) -> None:
    """An agent of the version before says nothing of what it can fetch."""
    harness.urls = ("https://host/",)
    job = harness.job(inputs=({"name": "a", "url": "https://host/a"},))
    harness.agent("a", node="n1")
    assert lacking(harness, job) == {"n1": "support for https:// inputs"}
    assert claimed(harness, "a") == []
    assert claimed(harness, harness.agent("b", node="n2", fetches=("https",))) == [job]


def test_a_node_that_has_lost_a_folder_gets_no_such_job_before_its_next_agent_and_the_job_loses_nothing(
    harness: QueueHarness,
) -> None:
    job, same, other = harness.job(mounts=(A, B)), harness.job(mounts=(A,)), harness.job(mounts=(B,))
    count = 5
    for number in range(count):
        agent = harness.agent(f"a{number}", node=f"n{number}", mounts=(A, B))
        (work,) = harness.claim(agent, most=1)
        assert work.job == job
        harness.record_return(job, work.attempt, ReturnReason.MOUNT_MISSING, f"{A}: there is no such folder")
    row = harness.row(job)
    assert (row.state, row.held, harness.detail(job).failures) == (State.NEW, False, 0)
    assert (
        lacking(harness, job)
        == lacking(harness, same)
        == dict.fromkeys(map("n{}".format, range(count)), f"the folder {A}")
    )
    harness.record_heartbeat("a0")
    assert claimed(harness, "a0") == [other]
    assert claimed(harness, harness.agent("b", node="n1", mounts=(A, B))) == [job, same]


def test_an_agent_looks_again_at_a_node_that_lacked_a_folder_an_hour_ago(harness: QueueHarness) -> None:
    """Else a folder that the site has added since then would never be found, where no other job waits."""
    harness.job(mounts=(A,))
    harness.agent("a", node="n1", mounts=(B,))
    assert harness.look(queries.waiting, since_s=harness.now_s - 1)[0].misfits == {"n1"}
    harness.now_s += 3600
    assert harness.look(queries.waiting, since_s=harness.now_s - 1)[0].misfits == frozenset()
    assert harness.look(queries.waiting)[0].misfits == {"n1"}
    harness.agent("b", node="n1", mounts=(B,))
    assert harness.look(queries.waiting, since_s=harness.now_s - 1)[0].misfits == {"n1"}
