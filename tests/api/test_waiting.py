from dataclasses import replace
from datetime import timedelta, timezone

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


def test_a_held_job_says_that_it_is_held_and_why() -> None:
    held = replace(SMALL, held=True, hold_reason="lost 3 times in a row, on n1, n2, n3")
    assert waits_because(held, CALM).startswith("held: lost 3 times in a row, on n1, n2, n3")


def test_a_held_job_says_so_even_when_the_cluster_is_away() -> None:
    held = replace(SMALL, held=True, hold_reason="by ada")
    assert waits_because(held, replace(CALM, nodes=None, problem="slurmctld")).startswith("held: by ada")


def test_nodes_without_their_memory_in_slurm_conf_are_named_with_what_to_do() -> None:
    unset, small = NodeOutlook(cpus=4, memory_mib=1, name="n1"), NodeOutlook(cpus=2, memory_mib=4096, name="n2")
    line = waits_because(JobNeeds(cpus=4, memory_mib=512), replace(CALM, nodes=(unset, small)))
    assert line == "no node has 512 MiB for it by what Slurm says: an admin sets RealMemory for n1 in slurm.conf"
    line = waits_because(JobNeeds(cpus=8, memory_mib=512), replace(CALM, nodes=(unset, small)))
    assert line.startswith("larger than any node: it needs 8 cores")


def test_before_the_first_look_nothing_is_claimed_about_the_cluster() -> None:
    assert waits_because(SMALL, replace(CALM, nodes=None)) == "the cluster is not read yet"
    assert "slurmctld is away" in waits_because(SMALL, replace(CALM, nodes=None, problem="slurmctld is away"))


def test_no_idle_node() -> None:
    assert waits_because(SMALL, replace(CALM, nodes=(BUSY,))) == "no node is idle"


def test_busy_agents_are_named_when_no_other_node_is_idle() -> None:
    assert "all agents are busy" in waits_because(SMALL, replace(CALM, nodes=(BUSY,), agents_live=1))


def test_an_idle_node_that_is_too_small_does_not_count() -> None:
    nodes = (replace(IDLE, cpus=1), BUSY)
    assert waits_because(JobNeeds(2, 512), replace(CALM, nodes=nodes)) == "no idle node is large enough"


def test_an_idle_node_on_which_agents_kept_failing_is_no_hope() -> None:
    assert "are excluded for a while" in waits_because(
        SMALL, replace(CALM, nodes=(replace(BUSY, is_excluded=True), BUSY))
    )


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


def test_too_late_in_the_round_names_the_time_of_the_next_in_the_sites_zone() -> None:
    late = replace(CALM, now_s=3100, zone=timezone(timedelta(hours=2)))
    assert waits_because(SMALL, late).endswith("agents start again at 03:00")


def test_what_the_next_round_does_not_change_is_said_before_the_next_round() -> None:
    tied = replace(SMALL, saved_on="n9", lacking={"n1": "CPU feature amx"})
    late = replace(CALM, now_s=3100, nodes=(replace(IDLE, name="n1"), replace(BUSY, name="n9")))
    assert "CPU feature amx" in waits_because(tied, late)


def test_the_cap_is_named() -> None:
    assert "cap of 2 agents" in waits_because(SMALL, replace(CALM, agents_live=2, agents_at_most=2))


def test_pending_agents_are_named() -> None:
    assert waits_because(SMALL, replace(CALM, agents_pending=3)).endswith("not started yet: 3")


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


def test_a_job_that_needs_more_time_than_the_round_has_left_says_so() -> None:
    picky = replace(SMALL, needs_s=1200)
    late = replace(CALM, now_s=3600 - 1254, agent_needs_s=55)
    assert waits_because(picky, late) == (
        "it needs 20 min of an agent's time, and this round has 19 min 59 s left: the next begins at 01:00"
    )
    assert waits_because(picky, replace(late, now_s=3600 - 1255)) == waits_because(SMALL, CALM)
    assert "held" in waits_because(replace(picky, held=True), late)
