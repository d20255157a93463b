"""The live loop's round: look at the cluster, decide, act.

What is asked of the scheduler is in the queue first: an agent's row and the hash of its token are committed, then
its token file is written, then it is submitted, then its id is recorded. A program killed anywhere in between
leaves a row that the next round finds in the scheduler by name, or closes. No name is ever submitted twice.
"""

import secrets
from dataclasses import replace
from pathlib import Path

import structlog

from gleaner.control import credentials
from gleaner.control.cluster.gateway import (
    AGENT_PREFIX,
    AgentPhase,
    AgentRequest,
    ClusterView,
    Gateway,
    GatewayError,
    GatewayRefused,
    SchedulerId,
)
from gleaner.control.fleet import Fleet, fleet, idle_nodes
from gleaner.control.policy.room import NOTHING
from gleaner.control.policy.rounds import (
    NewAgent,
    Plan,
    RoundRules,
    RoundView,
    WaitingJobs,
    Withdrawal,
    plan,
    round_end,
)
from gleaner.control.queue import agents, drains, judging, pauses, rates, reads, rooms, tokens
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.errors import NotLeading, QueueError
from gleaner.control.settings import RoundSettings
from gleaner.control.site import Site

LONGEST_BACK_OFF_S = 600.0

_log = structlog.get_logger(__name__)


def back_off_s(failures: int, poll_s: float) -> float:
    """How long nothing is submitted after so many failed submissions in a row.

    >>> [back_off_s(failures, 20) for failures in (1, 2, 3, 10)]
    [20, 40, 80, 600.0]
    """
    return min(poll_s * (1 << min(failures - 1, 20)), LONGEST_BACK_OFF_S)


class Rounds:
    """The state that outlives one round: how submissions have gone, and where agents were seen."""

    def __init__(self, site: Site, gateway: Gateway) -> None:
        self._site = site
        self._gateway = gateway
        self._folder = site.settings.storage.folder / "agents"
        self._failures = 0
        self._submit_again_s = 0.0
        self._refusal = ""
        """Why the last round's submissions failed; empty if they did not."""
        self._ran_on: dict[str, str] = {}

    def a_round(self, now_s: float) -> None:
        """Look once, and do what the planner says. A scheduler or a queue that fails is a `problem`, no error."""
        site = self._site
        rules = rules_of(site.settings.rounds)
        site.boundary_s = round_end(now_s, rules)
        if not site.is_leader:
            return
        try:
            view = self._gateway.look(now_s)
            site.cluster = view
            if not site.is_leader:  # the look may have taken longer than the term
                return
            seen = self._bring_together(view)
            what = self._plan(now_s, rules, view, seen)
            self._withdraw(what.withdraw, seen.useless, view)
            self._submit_all(what, now_s)
            self._report(self._refusal)
        except NotLeading as error:  # the keeper says who does
            _log.info("this round is left to who leads", reason=str(error))
        except (GatewayError, QueueError) as error:
            self._report(str(error))

    def _bring_together(self, view: ClusterView) -> Fleet:
        """Record what the view says of our agents."""
        with snapshot(self._site.engine) as db:
            here = rooms.agents_here(db)
            closed = rooms.ended(db, [agent.name for agent in view.agents])
        doubt_s = 2 * self._site.settings.cluster.timeout_s + self._site.settings.rounds.poll_s
        seen = fleet(here, view, closed=closed, ran_on=self._ran_on, doubt_s=doubt_s)
        rounds, queue = self._site.settings.rounds, self._site.settings.queue
        rates_rules = self._site.settings.rates.rules
        if seen.found or seen.unstarted or seen.vanished:
            with self._site.writing() as db:
                for name, id_ in seen.found:
                    agents.submitted(db, name, id_)
                for gone in seen.unstarted:
                    is_closed = agents.forget_unstarted(db, gone.name, now_s=view.read_s, reason=gone.reason)
                    if is_closed and gone.node is not None:
                        agents.node_failed(
                            db,
                            gone.node,
                            now_s=view.read_s,
                            failures_until_avoided=rounds.failures_until_avoided,
                            avoid_s=rounds.avoid_s,
                        )
                for name in seen.vanished:
                    reason = "the scheduler no longer knows it"
                    if agents.close_silent(
                        db, name, now_s=view.read_s, losses_until_held=queue.losses_until_held, reason=reason
                    ):
                        rates.left(db, name, vanished=True, rules=rates_rules, now_s=view.read_s)
        for gone in seen.unstarted:
            _log.info("agent closed", agent=gone.name, reason=gone.reason)
            self._remove_token(gone.name)
        self._ran_on = {name: node for name, node in self._ran_on.items() if name in {agent.name for agent in here}}
        for agent in view.agents:
            if agent.phase is AgentPhase.RUNNING and agent.node is not None:
                self._ran_on[agent.name] = agent.node
        return seen

    def _plan(self, now_s: float, rules: RoundRules, view: ClusterView, seen: Fleet) -> Plan:
        with snapshot(self._site.engine) as db:
            is_due = pauses.is_due(db, now_s)
        if is_due:  # a claim does that too, but there is none while no agent is there
            with self._site.writing() as db:
                pauses.wake(db, now_s)
        with snapshot(self._site.engine) as db:
            waiting = reads.waiting(db, limits=self._site.foreseen)
            avoided = {*agents.avoided(db, now_s), *drains.emptied_now(db)}
            doubted = judging.doubted(db, now_s)
        return plan(
            RoundView(
                now_s=now_s,
                rules=rules,
                known=frozenset(node.name for node in view.nodes),
                nodes=idle_nodes(view),
                avoided=frozenset(avoided),
                pending=seen.pending,
                # An agent there takes one job at a time: what is free there is no place for those that wait.
                running=tuple(
                    replace(agent, free=NOTHING) if agent.node in doubted else agent for agent in seen.running
                ),
                waiting=tuple(WaitingJobs(each.cpus, each.memory_mib, each.count, each.misfits) for each in waiting),
            )
        )

    def _withdraw(
        self, withdrawals: tuple[Withdrawal, ...], useless: tuple[SchedulerId, ...], view: ClusterView
    ) -> None:
        """Take pending agents back. Their rows are closed when the scheduler no longer names them."""
        ids = {agent.name: agent.id for agent in view.agents}
        wanted = [ids[each.name] for each in withdrawals if each.name in ids] + list(useless)
        if not wanted:
            return
        self._site.check_leads()
        self._gateway.withdraw(wanted)
        for each in withdrawals:
            self._ran_on.pop(each.name, None)
            _log.info("pending agent withdrawn", agent=each.name, reason=each.why.value)

    def _submit_all(self, what: Plan, now_s: float) -> None:
        """Submit what is planned, at most what a poll's time allows; a failure ends it for this round."""
        settings = self._site.settings
        if now_s < self._submit_again_s:
            return
        self._refusal = ""
        at_most = max(1, int(settings.cluster.submits_per_s * settings.rounds.poll_s))
        for new in what.submit[:at_most]:
            if not self._site.is_leader:
                return
            try:
                self._submit(new, now_s)
            except (GatewayError, OSError) as error:
                self._failures += 1
                pause_s = back_off_s(self._failures, settings.rounds.poll_s)
                self._submit_again_s = now_s + pause_s
                self._refusal = f"no agent could be submitted, next try in {pause_s:.0f} s: {error}"
                return
            self._failures = 0

    def _submit(self, new: NewAgent, now_s: float) -> None:
        """Submit one agent. Raises `GatewayError` or `OSError` (its token cannot be written)."""
        name = f"{AGENT_PREFIX}{int(new.end_s)}-{secrets.token_hex(4)}"
        secret = tokens.new_secret()
        with self._site.writing() as db:
            agents.expect(db, name=name, end_s=new.end_s, token_hash=tokens.digest(secret), now_s=now_s)
        try:
            path = credentials.write(self._folder, name, secret)
            request = AgentRequest(name, new.end_s, new.latest_start_s, path, new.avoid)
            self._site.check_leads()  # the storage may be slow: whoever leads by now finds the row, and closes it
            id_ = self._gateway.submit(request, now_s)
        except (GatewayRefused, OSError) as error:
            with self._site.writing() as db:
                agents.forget_unstarted(db, name, now_s=now_s, reason=f"not submitted: {error}")
            self._remove_token(name)
            raise
        # After any other `GatewayError` it may have been taken: a later look finds it, or closes it.
        with self._site.writing() as db:
            agents.submitted(db, name, id_)
        _log.info("agent submitted", agent=name, id=id_, end_s=new.end_s)

    def _remove_token(self, name: str) -> None:
        try:
            credentials.remove(self._folder, name)
        except OSError as error:  # the housekeeping tries again
            _log.warning("a token file could not be removed", agent=name, reason=str(error))

    def _report(self, problem: str) -> None:
        if problem and problem != self._site.problem:
            _log.warning("problem", problem=problem)
        elif self._site.problem and not problem:
            _log.info("problem solved", problem=self._site.problem)
        self._site.problem = problem


def sweep_tokens(site: Site, now_s: float) -> int:
    """Remove the token files of agents that have ended, and old logs; how many token files. Raises `OSError`."""
    folder: Path = site.settings.storage.folder / "agents"
    found = credentials.names(folder)
    with snapshot(site.engine) as db:
        living = {agent.name for agent in rooms.agents_here(db)}
    return credentials.sweep(folder, found, living=living, now_s=now_s)


def rules_of(rounds: RoundSettings) -> RoundRules:
    """The same as the planner takes it."""
    return RoundRules(
        length_s=rounds.length_s,
        origin_s=rounds.origin_s,
        synchronised=rounds.synchronised,
        shortest_slice_s=rounds.least_slice_s,
        pending_limit_s=rounds.pending_limit_s,
        agents_at_most=rounds.agents_at_most,
    )
