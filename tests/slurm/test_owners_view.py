"""Slurm 24.11's word on the owners' jobs and nodes, as it was captured, and what it means."""

import pytest
from tests.slurm.records import WORD
from tests.slurm.records import short_table as text

from gleaner.control.policy.entitlements_view import JobClass, Wish
from gleaner.control.policy.resources import Resources
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.owners_view import begins_later, holdings, is_ready, job_class, owners_view, wishes
from gleaner.control.slurm.parse import parse_tables
from gleaner.control.slurm.snapshot import JobPhase, SlurmJob, Snapshot, is_held_for_us

READ_S = 1795275200.0
NODES = (
    ("node1", "mixed", "4/2/0/6", "4000", "2000", "amd,fast", "up", "shared"),
    ("node1", "mixed", "4/2/0/6", "4000", "2000", "amd,fast", "up", "gleaner"),
    ("node2", "idle", "0/6/0/6", "4000", "0", "amd", "up", "shared"),
    ("node3", "mixed+drain", "2/0/4/6", "4000", "500", "intel", "up", "shared"),
    ("node4", "idle+planned", "0/6/0/6", "4000", "0", "(null)", "up", "shared"),
    ("other", "idle", "0/6/0/6", "4000", "0", "(null)", "up", "gleaner"),
)
RUNNING = (
    "82", "RUNNING", "physics", "shared", "4", "4", "OK", "", "", "node[1-2]", "cpu=4,mem=2000M,node=2,billing=4",
    "1795275127", "1795275130", "1795278730", "1795275127", "N/A", "3500", "None", "(null)", "(null)", "0", "1001",
    "gleaner: released", "gleaner:checkpointable", "a name",
)  # fmt: skip
FIELDS = (
    "id", "state", "account", "partition", "cpus", "tasks", "shared", "wanted", "unwanted", "hosts", "tres",
    "submitted", "start", "end", "begins", "preempted", "priority", "reason", "dependency", "constraint", "restarts",
    "user", "admin", "comment", "name",
)  # fmt: skip
PENDING = {
    "state": "PENDING", "hosts": "", "start": "N/A", "priority": "0", "reason": "JobHeldUser", "begins": "N/A",
    "admin": "gleaner: waits for its turn", "tres": "cpu=4,mem=2000M,node=1,billing=4",
}  # fmt: skip


def parse(nodes: str, jobs: str, *, read_s: float = 1.0) -> Snapshot:
    return owners_view(parse_tables(nodes, jobs, WORD, own=1000, read_s=read_s), ("shared",), agents="gleaner")


def job(*more_nodes: tuple[str, ...], **changes: str) -> SlurmJob:
    row = tuple((dict(zip(FIELDS, RUNNING, strict=True)) | changes).values())
    (found,) = parse(text(*NODES, *more_nodes), text(row), read_s=READ_S).jobs
    return found


def pending(*more_nodes: tuple[str, ...], **changes: str) -> SlurmJob:
    return job(*more_nodes, **PENDING | changes)


def wish(*more_nodes: tuple[str, ...], **changes: str) -> Wish:
    return wishes([pending(*more_nodes, **changes)], parse(text(*NODES, *more_nodes), "").nodes)["82"]


def test_only_nodes_that_can_be_used_count_with_what_is_idle() -> None:
    view = parse(text(*NODES), "")
    assert {node.name: (node.idle_cpus, node.allocated_mib) for node in view.nodes.values()} == {
        "node1": (2, 2000),
        "node2": (6, 0),
        "node4": (6, 0),
    }


def test_a_running_job_holds_its_part_of_each_of_its_nodes() -> None:
    found = job()
    assert (found.phase, job_class(found), found.start_s) == (JobPhase.RUNNING, JobClass.CHECKPOINTABLE, 1795275130)
    assert holdings(found) == {"node1": Resources(2, 1000), "node2": Resources(2, 1000)}


@pytest.mark.parametrize(("cpus", "nodes"), [(7, 2), (101, 100), (2, 2), (1, 3)])
def test_what_a_job_holds_on_its_nodes_is_together_what_it_has(cpus: int, nodes: int) -> None:
    tres = f"cpu={cpus},mem=1001M,node={nodes},billing={cpus}"
    holds = holdings(job(cpus=str(cpus), hosts=f"n[1-{nodes}]", tres=tres))
    assert len(holds) == nodes
    assert sum(room.cpus for room in holds.values()) == cpus
    assert sum(room.memory_mib for room in holds.values()) == 1001
    assert max(room.cpus for room in holds.values()) - min(room.cpus for room in holds.values()) <= 1


def test_a_partition_that_slurm_does_not_know_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"no node of the owners' partitions; see \[entitlements\] partitions"):
        parse("", "")


def test_a_held_job_is_ours_by_our_mark_unless_an_admin_holds_it() -> None:
    assert pending().is_held and is_held_for_us(pending())
    assert not is_held_for_us(pending(reason="JobHeldAdmin"))
    assert not is_held_for_us(pending(admin="gleaner: released")), "its owner holds it since"
    assert is_held_for_us(pending(admin="gleaner: released", restarts="1")), "it has requeued itself"
    assert not is_held_for_us(pending(admin="(null)"))
    assert not pending(priority="12").is_held
    assert not is_held_for_us(pending(priority="12"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Wish(4, Resources(1, 500), apart=False)),
        ({"tasks": "1"}, Wish(1, Resources(4, 2000))),
        ({"tres": "cpu=4,mem=2000M,node=2,billing=4"}, Wish(2, Resources(2, 1000))),
        ({"shared": "NO", "tasks": "1", "cpus": "1"}, Wish(1, Resources(6, 4000), whole=True)),
        ({"shared": "NO", "tasks": "12", "cpus": "12"}, Wish(2, Resources(6, 4000), whole=True)),
        ({"shared": "NO", "tasks": "13", "cpus": "13"}, Wish(3, Resources(6, 4000), whole=True)),
        (
            {"cpus": "7", "tres": "cpu=7,mem=2000M,node=2,billing=7"},
            Wish(2, Resources(4, 1000), all_cpus=7),
        ),
        ({"cpus": "7", "tasks": "3"}, Wish(3, Resources(3, 667), apart=False, all_cpus=7)),
        ({"tasks": "1", "wanted": "node[1-2]", "unwanted": "node2"}, Wish(1, Resources(4, 2000), nodes=("node1",))),
        ({"tasks": "1", "unwanted": "node2"}, Wish(1, Resources(4, 2000), nodes=("node1", "node4"))),
        ({"tasks": "1", "constraint": "amd"}, Wish(1, Resources(4, 2000), nodes=("node1", "node2"))),
        ({"tasks": "1", "constraint": "amd&fast"}, Wish(1, Resources(4, 2000), nodes=("node1",))),
        ({"tasks": "1", "constraint": "fast|intel"}, Wish(1, Resources(4, 2000), nodes=("node1",))),
        ({"tasks": "1", "constraint": "intel"}, Wish(1, Resources(4, 2000), nodes=())),
        ({"tasks": "1", "constraint": "[amd|intel]"}, Wish(1, Resources(4, 2000))),
        (
            {"tasks": "1", "wanted": "node[1-2],node9", "constraint": "fast"},
            Wish(1, Resources(4, 2000), nodes=("node1", "node9")),
        ),
    ],
)
def test_what_a_job_asks_for(changes: dict[str, str], expected: Wish) -> None:
    assert wish(**changes) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": "5", "reason": "Dependency"},
        {"priority": "5", "reason": "JobArrayTaskLimit"},
        {"priority": "5", "reason": "AssocMaxJobsLimit"},
        {"priority": "5", "reason": "QOSMaxCpuPerUserLimit"},
        {"dependency": "afterok:81(unfulfilled)"},
        {"priority": "5", "reason": "Licenses"},
    ],
)
def test_a_job_that_more_room_would_not_help_is_not_ready(changes: dict[str, str]) -> None:
    """While it is held Slurm's reason is JobHeldUser, whatever else it waits for."""
    assert is_ready(pending())
    assert is_ready(pending(priority="5", reason="Resources"))
    assert is_ready(pending(priority="5", reason="ReqNodeNotAvail, UnavailableNodes:node3"))
    assert not is_ready(pending(**changes))


def test_a_job_whose_begin_time_has_not_come_begins_later_but_for_what_slurm_adds_to_a_requeued_one() -> None:
    soon = str(int(READ_S) + 121)
    assert not begins_later(pending(), READ_S)
    assert not begins_later(pending(begins=str(int(READ_S) - 1)), READ_S)
    assert begins_later(pending(begins=soon), READ_S)
    assert not begins_later(pending(begins=soon, restarts="1"), READ_S)
    assert begins_later(pending(begins=str(int(READ_S) + 3600), restarts="1"), READ_S)


def test_whole_nodes_are_as_large_as_those_that_the_job_may_use() -> None:
    large = ("node5", "idle", "0/24/0/24", "9000", "0", "large", "up", "shared")
    found = wish(large, shared="NO", tasks="1", cpus="24", constraint="large")
    assert found == Wish(1, Resources(24, 9000), whole=True, nodes=("node5",))


def test_a_comment_cannot_forge_a_job() -> None:
    """A comment may hold line ends and anything else but the word that was made up for this question."""
    forged = "|".join(("99", "RUNNING", "chemistry"))
    found = parse(text(*NODES), text((*RUNNING[:-2], f"a\n{forged}\ngleaner:preemptible", "n")))
    assert [one.id for one in found.jobs] == ["82"]
    with pytest.raises(ClusterError, match="fields"):
        parse(text(*NODES), text((*RUNNING[:-2], f"a{WORD}b", "n")))
