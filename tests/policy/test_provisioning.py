"""The planner: when rounds end, how many agents there are, and which pending ones are taken back."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.settings import SiteAgentSettings
from gleaner.control.control_state import provisioning_rules
from gleaner.control.policy.provisioning import (
    NewAgent,
    PendingAgent,
    Plan,
    ProvisioningRules,
    ProvisioningView,
    RunningAgent,
    WaitingJobs,
    Why,
    Withdrawal,
    boundary,
    plan,
)
from gleaner.control.policy.resources import Resources
from gleaner.control.settings import RoundSettings

HOUR = 3600.0
RULES = ProvisioningRules(
    length_s=HOUR, origin_s=0, synchronised=True, shortest_slice_s=600, pending_limit_s=300, agents_at_most=1000
)
NODE = Resources(cpus=8, memory_mib=16_000)


def nodes(count: int, room: Resources = NODE) -> dict[str, Resources]:
    return {f"n{i}": room for i in range(1, count + 1)}


FOUR = nodes(4)


def view(
    *,
    now_s: float = 10 * HOUR + 60,
    rules: ProvisioningRules = RULES,
    idle: Mapping[str, Resources] = FOUR,
    excluded: frozenset[str] = frozenset(),
    pending: tuple[PendingAgent, ...] = (),
    running: tuple[RunningAgent, ...] = (),
    waiting: tuple[WaitingJobs, ...] = (WaitingJobs(8, 1000, 100),),
) -> ProvisioningView:
    return ProvisioningView(now_s, rules, frozenset(idle), idle, excluded, pending, running, waiting)


def pending(count: int, *, submitted_s: float = 10 * HOUR + 30) -> tuple[PendingAgent, ...]:
    return tuple(PendingAgent(f"a{i}", submitted_s, 11 * HOUR) for i in range(count))


def test_every_idle_node_gets_an_agent_that_ends_at_the_next_full_hour() -> None:
    agent = NewAgent(end_s=11 * HOUR, latest_start_s=11 * HOUR - 600, exclude=())
    assert plan(view()) == Plan(11 * HOUR, (agent,) * 4, ())


def test_agents_are_kept_off_nodes_on_which_nothing_that_waits_can_go_on() -> None:
    here = frozenset({"n1", "n2", "n3"})
    (agent,) = plan(view(waiting=(WaitingJobs(8, 1000, 2, here),))).submit  # n4, and nodes that nobody knows yet
    assert agent.exclude == ("n1", "n2", "n3")
    new = WaitingJobs(8, 1000, 1)
    agents = plan(view(waiting=(WaitingJobs(8, 1000, 2, here), new))).submit
    assert [agent.exclude for agent in agents] == [(), ()]


def test_boundaries_count_from_the_origin() -> None:
    assert boundary(100, length_s=60, origin_s=30) == 150
    assert boundary(20, length_s=60, origin_s=30) == 30
    assert boundary(-50, length_s=60, origin_s=30) == -30


def test_nothing_is_submitted_when_the_round_has_less_than_the_shortest_slice_left() -> None:
    assert len(plan(view(now_s=11 * HOUR - 600)).submit) == 4
    assert plan(view(now_s=11 * HOUR - 599)).submit == ()


@pytest.mark.parametrize(("left_s", "agents"), [(56, 4), (55, 4), (54, 0), (10, 0)])
def test_no_agent_is_submitted_that_has_no_time_to_begin_a_job(left_s: float, agents: int) -> None:
    """However short the slices: KillWait, the agent's margin and last words, its start, and something to compute."""
    rounds = RoundSettings(length_s=HOUR, shortest_slice_s=10)
    assert rounds.agent_needs_s == 5 + 30 + SiteAgentSettings().margin_s + 10
    answer = plan(view(now_s=11 * HOUR - left_s, rules=provisioning_rules(rounds)))
    assert len(answer.submit) == agents
    assert all(agent.latest_start_s == 11 * HOUR - 55 for agent in answer.submit)


@pytest.mark.parametrize("length_s", [30, 40, "90", 300, 600])
def test_who_sets_short_rounds_only_gets_what_fits_them(length_s: float) -> None:
    rounds = RoundSettings(length_s=length_s)
    assert rounds.shortest_slice_s == rounds.length_s / 2
    assert rounds.agent_needs_s == min(55, rounds.length_s / 2)
    assert RoundSettings(length_s=3600) == RoundSettings()


def test_what_was_set_and_does_not_fit_the_rounds_is_refused() -> None:
    for name in ("shortest_slice_s", "agent_needs_s"):
        with pytest.raises(ValueError, match=f"{name} must be less than length_s"):
            RoundSettings.model_validate({"length_s": 50, name: 50})
    for wrong in (29, "long", None):
        with pytest.raises(ValueError, match="1 validation error for RoundSettings\nlength_s"):
            RoundSettings.model_validate({"length_s": wrong})


def test_unsynchronised_agents_have_the_full_length_from_now() -> None:
    rules = replace(RULES, synchronised=False)
    answer = plan(view(now_s=11 * HOUR - 5, rules=rules))
    assert {agent.end_s for agent in answer.submit} == {12 * HOUR - 5}


def test_a_node_on_which_agents_keep_failing_is_left_alone_and_named_to_the_scheduler() -> None:
    answer = plan(view(excluded=frozenset({"n2", "n1"})))
    assert [agent.exclude for agent in answer.submit] == [("n1", "n2")] * 2


@pytest.mark.parametrize(
    ("now_s", "waiting", "expected"),
    [
        (10 * HOUR + 330, (WaitingJobs(1, 1, 1),), ()),
        (10 * HOUR + 331, (WaitingJobs(1, 1, 1),), ()),
        (11 * HOUR - 599, (WaitingJobs(1, 1, 1),), (Withdrawal("a0", Why.TOO_LATE),)),
        (10 * HOUR + 60, (), (Withdrawal("a0", Why.NO_WORK),)),
    ],
)
def test_a_pending_agent_that_is_of_no_use_is_withdrawn(
    now_s: float, waiting: tuple[WaitingJobs, ...], expected: tuple[Withdrawal, ...]
) -> None:
    assert plan(view(now_s=now_s, pending=pending(1), waiting=waiting)).withdraw == expected


def test_of_agents_that_slurm_does_not_start_soon_the_oldest_stays_to_show_when_it_does() -> None:
    answer = plan(view(now_s=10 * HOUR + 331, pending=pending(3), waiting=(WaitingJobs(1, 1, 100),)))
    assert answer.withdraw == (Withdrawal("a1", Why.PENDED_TOO_LONG), Withdrawal("a2", Why.PENDED_TOO_LONG))


rooms = st.builds(Resources, cpus=st.integers(1, 64), memory_mib=st.integers(1, 4000))
some_nodes = st.lists(rooms, max_size=12).map(lambda made: {f"n{i}": room for i, room in enumerate(made)})
rules = st.builds(
    ProvisioningRules,
    length_s=st.floats(60, 7200),
    origin_s=st.floats(0, 1e6),
    synchronised=st.just(True),
    shortest_slice_s=st.floats(5, 59),
    pending_limit_s=st.floats(1, 600),
    agents_at_most=st.integers(0, 15),
)
instants = st.floats(1.7e9, 1.9e9)
views = st.builds(
    ProvisioningView,
    now_s=instants,
    rules=rules,
    all_nodes=st.frozensets(st.integers(0, 12).map("n{}".format)),
    nodes=some_nodes,
    excluded=st.frozensets(st.integers(0, 12).map("n{}".format)),
    pending=st.lists(
        st.builds(PendingAgent, name=st.text("abc", min_size=1), submitted_s=instants, end_s=instants), max_size=6
    ).map(tuple),
    running=st.lists(st.builds(RunningAgent, end_s=instants, free=rooms), max_size=6).map(tuple),
    waiting=st.lists(
        st.builds(
            WaitingJobs,
            cpus=st.integers(1, 70),
            memory_mib=st.integers(1, 5000),
            count=st.integers(0, 30),
            misfits=st.frozensets(st.integers(0, 14).map("n{}".format), max_size=6),
        ),
        max_size=5,
    ).map(tuple),
)


@given(views)
def test_all_ends_equal_the_boundary_and_leave_a_useful_slice(a_view: ProvisioningView) -> None:
    answer = plan(a_view)
    for agent in answer.submit:
        assert agent.end_s == answer.boundary_s
        assert agent.end_s - a_view.now_s >= a_view.rules.shortest_slice_s
        assert agent.latest_start_s >= a_view.now_s
    lengths = (answer.boundary_s - a_view.rules.origin_s) / a_view.rules.length_s
    assert lengths == pytest.approx(round(lengths), abs=1e-6)
    assert 0 < answer.boundary_s - a_view.now_s <= a_view.rules.length_s + 1e-3


@given(views, st.frozensets(st.integers(0, 14).map("n{}".format), max_size=6))
def test_no_agent_is_kept_off_a_node_that_the_scheduler_does_not_know(
    a_view: ProvisioningView, misfits: frozenset[str]
) -> None:
    """It would refuse every agent for one such name."""
    rules = replace(a_view.rules, agents_at_most=3, shortest_slice_s=0)
    free, wanted = {"n99": NODE}, (WaitingJobs(1, 1, 1, misfits),)
    (agent,) = plan(replace(a_view, rules=rules, nodes=free, pending=(), running=(), waiting=wanted)).submit
    assert set(agent.exclude) == (a_view.excluded | misfits) & a_view.all_nodes
    for other in plan(a_view).submit:
        assert set(other.exclude) <= a_view.all_nodes


@given(views)
def test_the_same_view_gives_the_same_plan(a_view: ProvisioningView) -> None:
    again = replace(a_view, nodes=dict(reversed(list(a_view.nodes.items()))), waiting=tuple(reversed(a_view.waiting)))
    assert plan(a_view) == plan(again)


@given(views)
def test_only_pending_agents_are_withdrawn_each_once(a_view: ProvisioningView) -> None:
    names = [withdrawal.name for withdrawal in plan(a_view).withdraw]
    pending_names = [agent.name for agent in a_view.pending]
    assert all(names.count(name) <= pending_names.count(name) for name in names)
