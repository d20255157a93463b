"""Why a job waits, in one line: the first thing that is in its way."""

from dataclasses import replace
from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.control.policy.fair_share import ShareRules, Shares
from gleaner.control.policy.why_waiting import (
    MOST_BEFORE,
    JobNeeds,
    NodeOutlook,
    Surroundings,
    fits_somewhere,
    waits_because,
)

SMALL = JobNeeds(cpus=1, memory_mib=512)
IDLE = NodeOutlook(cpus=4, memory_mib=2048, is_free=True)
BUSY = NodeOutlook(cpus=4, memory_mib=2048)
CALM = Surroundings(
    now_s=0,
    nodes=(IDLE, BUSY),
    problem="",
    agents_live=0,
    agents_pending=0,
    agents_at_most=10,
    boundary_s=3600,
    shortest_slice_s=600,
)


LOSSES = "lost 3 times in a row, on n1, n2, n3"
TIED = replace(SMALL, saved_on="n9", lacking={"n1": "CPU feature amx"})
LATE = replace(CALM, now_s=3100, zone=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("needs", "around", "said"),
    [
        pytest.param(replace(SMALL, held=True, hold_reason=LOSSES), CALM, f"held: {LOSSES}", id="held"),
        pytest.param(SMALL, replace(CALM, nodes=None), "the cluster is not read yet", id="before the first look"),
        pytest.param(SMALL, replace(CALM, nodes=None, problem="slurmctld is away"), "slurmctld is away", id="away"),
        pytest.param(SMALL, replace(CALM, nodes=(BUSY,)), "no node is idle", id="no idle node"),
        pytest.param(SMALL, replace(CALM, nodes=(BUSY,), agents_live=1), "all agents are busy", id="busy agents"),
        pytest.param(
            JobNeeds(2, 512),
            replace(CALM, nodes=(replace(IDLE, cpus=1), BUSY)),
            "no idle node is large enough",
            id="small nodes",
        ),
        pytest.param(
            SMALL,
            replace(CALM, nodes=(replace(BUSY, is_excluded=True), BUSY)),
            "are excluded for a while",
            id="excluded nodes",
        ),
        pytest.param(SMALL, LATE, "agents start again at 03:00", id="late in the round, in the zone of the site"),
        pytest.param(
            TIED,
            replace(LATE, nodes=(replace(IDLE, name="n1"), replace(BUSY, name="n9"))),
            "CPU feature amx",
            id="what the next round does not change comes first",
        ),
        pytest.param(SMALL, replace(CALM, agents_live=2, agents_at_most=2), "cap of 2 agents", id="the cap"),
        pytest.param(SMALL, replace(CALM, agents_pending=3), "not started yet: 3", id="pending agents"),
    ],
)
def test_the_first_obstacle_is_named(needs: JobNeeds, around: Surroundings, said: str) -> None:
    assert said in waits_because(needs, around)


def test_nodes_without_their_memory_in_slurm_conf_are_named_with_what_to_do() -> None:
    unset, small = NodeOutlook(cpus=4, memory_mib=1, name="n1"), NodeOutlook(cpus=2, memory_mib=4096, name="n2")
    line = waits_because(JobNeeds(cpus=4, memory_mib=512), replace(CALM, nodes=(unset, small)))
    assert line == "no node has 512 MiB for it by what Slurm says: an admin sets RealMemory for n1 in slurm.conf"
    line = waits_because(JobNeeds(cpus=8, memory_mib=512), replace(CALM, nodes=(unset, small)))
    assert line.startswith("larger than any node: it needs 8 cores")


def test_a_saved_job_says_what_a_node_must_have_on_which_it_can_go_on() -> None:
    tied = replace(SMALL, saved_on="n9", lacking={"n1": "CPU feature amx", "n2": "CRIU >= 4.2 and CPU feature amx"})
    named = (replace(IDLE, name="n1"), replace(BUSY, name="n2"))
    assert waits_because(tied, replace(CALM, nodes=named)) == "waits for a node with CPU feature amx (saved on n9)"
    other = (*named, replace(BUSY, name="n3"))
    assert waits_because(tied, replace(CALM, nodes=other)).startswith("no idle node can restore it: waits for a node")
    too_small = (*named, replace(IDLE, cpus=0, name="n3"))
    assert waits_because(tied, replace(CALM, nodes=too_small)) == "waits for a node with CPU feature amx (saved on n9)"
    assert "no agent is running" in waits_because(tied, replace(CALM, nodes=(*named, replace(IDLE, name="n3"))))


def test_a_saved_job_that_all_nodes_have_refused_names_them() -> None:
    tied = replace(SMALL, saved_on="n9", lacking={"n1": "", "n2": ""})
    named = (replace(IDLE, name="n1"), replace(BUSY, name="n2"))
    line = waits_because(tied, replace(CALM, nodes=named))
    assert (
        line == "waits for another node than n1, n2: it has failed there, was refused, or was moved away (saved on n9)"
    )


def test_with_nothing_in_its_way_the_next_free_agent_takes_it() -> None:
    calm = replace(CALM, agents_live=1)
    assert waits_because(SMALL, calm) == "nothing is in its way: the next free agent takes it"
    behind = waits_because(replace(SMALL, before=470), calm)
    assert behind == (
        "it waits for its turn; about 470 jobs of its group go before it:"
        " those of its user by priority, of others saved ones first"
    )


def test_without_any_agent_nobody_is_promised_the_next_free_one() -> None:
    line = waits_because(replace(SMALL, before=1), CALM)
    assert line.startswith("no agent is running: control starts one when it looks at the cluster next, or at 01:00 ")
    assert "; 1 job of its group goes before it" in line
    assert "10,000 jobs or more" in waits_because(replace(SMALL, before=MOST_BEFORE), replace(CALM, agents_live=10))


nodes = st.builds(NodeOutlook, cpus=st.integers(1, 64), memory_mib=st.integers(16, 4096), is_free=st.booleans())
wishes = st.builds(
    JobNeeds,
    cpus=st.integers(1, 64),
    memory_mib=st.integers(16, 4096),
    held=st.booleans(),
    hold_reason=st.just("by ada"),
)


@given(
    wish=wishes,
    around=st.builds(
        Surroundings,
        now_s=st.floats(0, 3600),
        nodes=st.none() | st.lists(nodes, max_size=4),
        problem=st.sampled_from(["", "slurmctld does not answer"]),
        agents_live=st.integers(0, 5),
        agents_pending=st.integers(0, 5),
        agents_at_most=st.integers(0, 5),
        boundary_s=st.just(3600.0),
        shortest_slice_s=st.just(600.0),
    ),
)
def test_there_is_always_one_line_and_never_a_free_agent_for_a_job_that_cannot_run(
    wish: JobNeeds, around: Surroundings
) -> None:
    line = waits_because(wish, around)
    assert line
    assert "\n" not in line
    if wish.held or (around.nodes and not fits_somewhere(wish, around.nodes)):
        assert "next free agent" not in line


def test_a_group_that_has_its_target_is_told_who_goes_first() -> None:
    shares = Shares(ShareRules({"physics": 50}), 8, {"physics": 4}, frozenset({"physics", "theory"}))
    line = waits_because(replace(SMALL, group="physics"), replace(CALM, agents_live=1, nodes=(BUSY,), shares=shares))
    assert line == (
        "all agents are busy and no other node is idle"
        " (groups below their targets go first: theory; physics holds 4 cores, its target is 4)"
    )
    assert "go first" not in waits_because(replace(SMALL, group="theory"), replace(CALM, shares=shares))


def test_where_nobody_is_below_a_target_nobody_goes_first() -> None:
    full = Shares(ShareRules({"physics": 50}), 8, {"physics": 4, "theory": 4}, frozenset({"physics", "theory"}))
    assert "go first" not in waits_because(replace(SMALL, group="physics"), replace(CALM, shares=full))
