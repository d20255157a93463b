"""The queue's agents and the scheduler's, brought together."""

from dataclasses import replace

from tests.slurm.records import agent, node, seen

from gleaner.control.daemon.provisioning import Fleet, Unstarted, fleet, idle_nodes
from gleaner.control.policy.provisioning import PendingAgent, RunningAgent
from gleaner.control.policy.resources import Resources
from gleaner.control.queue.queries import AgentHere
from gleaner.control.queue.tables import Phase
from gleaner.control.slurm.interface import SchedulerId
from gleaner.control.slurm.snapshot import Snapshot

NOTHING = Fleet((), (), (), (), ())
STAYS = (("a", SchedulerId("7")),)
SUBMITTED = AgentHere("a", Phase.SUBMITTED, "7", 5000, 900, None, None, None)
LIVE = AgentHere("a", Phase.LIVE, "7", 5000, 900, "n1", 2, 300)
USED, IDLE = node("n1", 6, 4000, "ALLOCATED"), node("n2")
VIEW = seen(1000, USED, IDLE, jobs=(agent("a", "n1"),))
ENDING = replace(VIEW, jobs=(agent("a", "n1", state="COMPLETING"),))
PENDING = replace(VIEW, jobs=(agent("a", state="PENDING"),))
WITHOUT = seen(1000, node("n1"), IDLE)


def together(
    *here: AgentHere,
    view: Snapshot = VIEW,
    ran_on: dict[str, str] | None = None,
) -> Fleet:
    return fleet(here, view, ran_on=ran_on or {}, withdrawn={}, doubt_s=60, needs_s=60)


def test_a_running_agent_offers_what_its_jobs_leave_free() -> None:
    assert together(LIVE) == replace(NOTHING, running=(RunningAgent(5000, Resources(2, 300), "n1"),), staying=STAYS)


def test_one_that_has_not_registered_yet_offers_its_whole_node() -> None:
    assert together(SUBMITTED) == replace(
        NOTHING, running=(RunningAgent(5000, Resources(6, 4000), "n1"),), staying=STAYS
    )


def test_one_that_is_ending_or_silent_or_unknown_offers_nothing_but_counts() -> None:
    assert together(LIVE, view=ENDING).running == (RunningAgent(5000, Resources(0, 0)),)
    assert together(replace(LIVE, phase=Phase.SILENT)).running == (RunningAgent(5000, Resources(0, 0)),)
    assert together().running == (RunningAgent(0.0, Resources(0, 0)),)


def test_a_pending_agent_is_pending() -> None:
    assert together(SUBMITTED, view=PENDING) == replace(NOTHING, pending=(PendingAgent("a", 900, 5000),))


def test_a_strangers_pending_agent_is_left_alone() -> None:
    assert together(view=PENDING) == NOTHING


def test_a_submission_that_was_never_answered_counts_as_pending_until_it_is_found_or_the_doubt_ends() -> None:
    unanswered = replace(SUBMITTED, scheduler_id=None, submitted_s=950)
    assert together(unanswered).strays == (("a", "7"),)
    assert together(unanswered, view=WITHOUT) == replace(NOTHING, pending=(PendingAgent("a", 950, 5000),))
    late = replace(WITHOUT, read_s=1010)
    assert together(unanswered, view=late).unstarted == (Unstarted("a", "the scheduler never took it", None),)


def test_one_that_died_unregistered_counts_against_its_node_unless_it_had_to_leave() -> None:
    def unstarted(view: Snapshot, **ran_on: str) -> Unstarted:
        return together(SUBMITTED, view=view, ran_on=ran_on).unstarted[0]

    assert unstarted(WITHOUT).node is None
    assert unstarted(WITHOUT, a="n1").node == "n1"
    assert unstarted(seen(1000, USED, IDLE), a="n1").node is None
    assert unstarted(replace(WITHOUT, read_s=5000), a="n1").node is None


def test_a_registered_agent_that_slurm_no_longer_names_is_closed_only_once_it_is_silent() -> None:
    assert together(LIVE, view=WITHOUT) == NOTHING
    assert together(replace(LIVE, phase=Phase.SILENT), view=WITHOUT) == replace(NOTHING, vanished=("a",))


def test_nodes_that_slurm_has_planned_for_somebody_are_idle_nodes() -> None:
    view = seen(1000, USED, IDLE, node("n3", 6, 4000, "IDLE", "PLANNED"))
    assert idle_nodes(view) == dict.fromkeys(("n2", "n3"), Resources(6, 4000))
