"""Decide which held job of an owner starts, and who is preempted for it: OMFS on nodes that have a shape. Pure.

`policy.omfs.decide` answers for each job, as in the simulator; here is what a real cluster adds to it:

- A job needs its processors in pieces, on nodes that it may use. So it is asked for with what is free on the nodes
  where it would go (its *targets*), and only jobs that hold something there can be its victims.
- What was released and has not started is *promised*: its targets are kept out of what others find idle.
- A claim (a job that fits what is left of its owner's entitlement) is released at the top of the scheduler's queue even
  where its victims may not be preempted yet: the scheduler keeps the next free processors for it then. A claim that
  would find no room whichever jobs were preempted is held, and counts for nothing.
- A job that the scheduler may not want yet, whatever is idle (a dependency, the next task of an array, a limit), is
  released to find out. It counts as its owner's, but no job is preempted for it before the scheduler only lacks room.
- Gleaner's own agents are what an owner with entitlement 0 has. They are vacated first, and are never too young for
  it. They are vacated for any job that may run, whoever owns it: no job of ours makes a regular job wait.
- Only what can be used now is shared, so what a job has on other nodes (drained, down) does not count for its owner.
- Of the victims of one claim only as many are preempted as the hour allows; the rest of their room stays promised.

Claims come first, in the order of submission, and again after each that had others vacated; then all others, and of
these first what was released already. See `policy.omfs` for why no owner below its entitlement loses anything, and why
it does not go round in circles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gleaner.control.policy import omfs
from gleaner.control.policy.entitlements_view import (
    AGENTS,
    Decision,
    EntitlementView,
    RunningJob,
    Verdict,
    WaitingJob,
    as_answer,
    view_of,
)
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.placement import needed, needs_of, targets_of
from gleaner.control.policy.resources import NOTHING, Resources

POLICY = "entitlements"
"""The name of this policy in stored decisions."""
_FIRST_TO_GO = -(2**62)
_OLD = 2
"""So many of what `_may_go` answers are of what has run for a quantum."""
_TRIES = 30
"""So many placements of one job are tried in one look."""


@dataclass(slots=True)
class _State:
    """The cluster while decisions are taken. `free` and `coming` are what nobody was promised yet."""

    view: EntitlementView
    owners: list[str]
    free: dict[str, Resources]
    coming: dict[str, Resources]
    candidates: list[RunningJob]
    used: dict[str, int]
    used_fixed: dict[str, int]
    promised: dict[str, int]
    saves_left: int
    awaited: set[str] = field(default_factory=set[str])
    """Nodes of claims that wait for a victim there that may not be preempted yet. Agents' room there is for them."""
    decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])


def decide(view: EntitlementView) -> tuple[Decision, ...]:
    """Return a decision for each waiting job, in their order. A released job that stays so is a start or a claim."""
    state = _state_of(view)
    for job in view.waiting:
        if job.kept_back:
            _count(state, job)
            _record(state, Decision(job.job, Verdict.START, (), f"it was released, and {job.owner} holds it itself"))
        elif not view.size:
            _record(state, Decision(job.job, Verdict.HOLD, (), "no node of the owners' partitions can be used now"))
    for place, job in enumerate(view.waiting):
        if job.released:
            _take_claim(state, place)
    omfs.walk_of(_places, _take_claim, _take_others)(state, False)
    return tuple(state.decisions[job.job] for job in view.waiting)


def _places(state: _State) -> int:
    return len(state.view.waiting)


def _take_claim(state: _State, place: int) -> int:
    """Decide the job at this place if it is a claim; return `omfs.VACATE` if any job is preempted for it.

    A claim that waits is promised its room, so nothing else needs to be kept for it.
    """
    job = state.view.waiting[place]
    if not job.ready or job.job in state.decisions or not _is_claim(state, job):
        return omfs.REFUSE
    return omfs.VACATE if _claim(state, job).victims else omfs.START


def _take_others(state: _State) -> None:
    for job in state.view.waiting:
        if not job.ready and job.job not in state.decisions and _is_claim(state, job):
            _ask_the_scheduler(state, job)
    for job in sorted(state.view.waiting, key=lambda job: not job.released):
        if job.job not in state.decisions:
            _on_idle(state, job)


def _state_of(view: EntitlementView) -> _State:
    owners = sorted({*view.entitled_cpus, *(j.owner for j in view.waiting), *(j.owner for j in view.running), AGENTS})
    there = [
        replace(job, holds={node: room for node, room in job.holds.items() if node in view.size})
        for job in view.running
    ]
    stand = [job for job in there if not job.leaving]
    coming = dict.fromkeys(view.free, NOTHING)
    for job in there:
        for node, room in job.holds.items():
            if job.leaving:
                coming[node] = coming[node].plus(room)
    return _State(
        view=view,
        owners=owners,
        free=dict(view.free),
        coming=coming,
        candidates=[job for job in stand if not job.stays],
        used={owner: sum(job.cpus for job in stand if job.owner == owner) for owner in owners},
        used_fixed={
            owner: sum(job.cpus for job in stand if job.owner == owner and job.job_class is JobClass.NON_PREEMPTIBLE)
            for owner in owners
        },
        promised=dict.fromkeys(owners, 0),
        saves_left=view.rules.saves_left,
    )


def _entitled(state: _State, owner: str) -> int:
    return state.view.entitled_cpus.get(owner, 0)


def _is_claim(state: _State, job: WaitingJob) -> bool:
    return omfs.is_claim(job.wish.cpus, state.used[job.owner], _entitled(state, job.owner))


def _would_exceed(state: _State, job: WaitingJob) -> bool:
    asked, fixed, entitled = job.wish.cpus, state.used_fixed[job.owner], _entitled(state, job.owner)
    return omfs.would_exceed(asked, int(job.job_class), fixed, entitled, literal=False)


def _exceeds(state: _State, job: WaitingJob) -> str:
    entitled, fixed = _entitled(state, job.owner), state.used_fixed[job.owner]
    has = f"{job.owner} may have {entitled} CPUs in non-preemptible jobs and has {fixed}"
    return f"{has}, this one asks for {job.wish.cpus}; declare it preemptible or checkpointable to use what is idle"


def _claim(state: _State, job: WaitingJob) -> Decision:
    """Decide a claim: it starts on idle or coming room, by victims, or, where these may not go yet, on freed room.

    A job that no node can take, whichever jobs were preempted, is held: its owner's other jobs must not wait for it.
    """
    targets, answer, victims = _placed(state, job)
    why = f"{job.owner} is entitled to {_entitled(state, job.owner)} CPUs and has {state.used[job.owner]}"
    if targets is None:
        fits = targets_of(job.wish, state.view.size, {}, (), state.view.size) is not None
        nowhere = "too few of the nodes that it may use can be used now"
        why += f"; but {'the nodes are full of jobs that may not be preempted' if fits else nowhere}"
        return _record(state, Decision(job.job, Verdict.HOLD, (), why))
    if answer in {omfs.WAIT, omfs.REFUSE}:
        those = "have not run for a quantum" if state.view.rules.quantum_protects else "have too little on any one node"
        why += f"; those that must be preempted {those}, so it has the next CPUs that fall free"
        state.awaited |= set(targets)
    else:
        victims, later = _allowed(state, victims)
        why += later
    _vacate(state, victims)
    _promise(state, needs_of(job.wish, targets, state.view.size))
    _count(state, job)
    if answer != omfs.START:
        state.promised[job.owner] += job.wish.cpus
    return _record(state, Decision(job.job, Verdict.CLAIM, tuple(one.job for one in victims), why))


def _allowed(state: _State, victims: Sequence[RunningJob]) -> tuple[list[RunningJob], str]:
    """Return the victims that may be preempted within this hour, and a message about the others."""
    jobs = [one for one in victims if one.owner != AGENTS]
    later = jobs[state.saves_left :]
    why = ""
    if later and state.saves_left:
        why = (
            f"; {state.saves_left} of {len(jobs)} jobs are preempted now, the rest as the admin's hourly ceiling allows"
        )
    elif later:
        why = "; as many jobs were vacated this hour as the admin allows, so it has the next CPUs that fall free"
    return [one for one in victims if one not in later], why


def _placed(state: _State, job: WaitingJob) -> tuple[list[str] | None, int, list[RunningJob]]:
    """Return the targets of the job, the answer of `policy.omfs` for them, and the victims.

    Not all candidates can go together: an owner that has come down to its entitlement keeps the rest. Where too little
    is left, other nodes are tried.
    """
    grades, wish = _may_go(state), job.wish
    found = targets_of(wish, state.free, state.coming, grades, state.view.size)
    if found is None:
        return None, omfs.REFUSE, []
    first: tuple[list[str], int, list[RunningJob]] | None = None
    for _ in range(_TRIES):
        answer, victims, stuck = _decided(state, job, found)
        if stuck is None:
            return found, answer, victims
        first = first or (found, answer, victims)
        nodes = state.free if wish.nodes is None else wish.nodes
        wish = replace(wish, nodes=tuple(node for node in nodes if node != stuck))
        soon = grades[:_OLD] if state.view.rules.quantum_protects else grades
        more = targets_of(wish, state.free, state.coming, soon, state.view.size)
        if more is None:
            break
        found = more
    return first or (None, omfs.REFUSE, [])


def _ask_the_scheduler(state: _State, job: WaitingJob) -> None:
    """Release a job that fits the entitlement but may wait for something other than room. Nobody is preempted yet."""
    targets = None if job.released else targets_of(job.wish, state.free, {}, (), state.view.size)
    if targets is not None:
        _promise(state, needs_of(job.wish, targets, state.view.size))
    _count(state, job)
    why = "it is released, and nobody is preempted for it before the scheduler lacks nothing but room for it"
    _record(state, Decision(job.job, Verdict.START, (), why))


def _record(state: _State, decision: Decision) -> Decision:
    """Record the decision, which is the last on its job in this look. Return the decision."""
    state.decisions[decision.job] = decision
    return decision


def _on_idle(state: _State, job: WaitingJob) -> None:
    """Decide a job above its owner's entitlement: it starts if idle room, or agents' room, is enough now."""
    if _would_exceed(state, job):
        _record(state, Decision(job.job, Verdict.HOLD, (), _exceeds(state, job)))
        return
    if job.released and not job.ready:
        _record(state, Decision(job.job, Verdict.START, (), "it was released, and the scheduler lets it wait"))
        return
    targets = _without_owners(state, job)
    if targets is not None and _may_use_idle(state, job):
        needs = needs_of(job.wish, targets, state.view.size)
        agents = [one for one in state.candidates if one.owner == AGENTS and one.holds.keys() & needs.keys()]
        agents = needed(agents, needs, state.free, state.coming)
        _vacate(state, agents)
        _promise(state, needs)
        _count(state, job)
        why = "there is room for it as soon as Gleaner's agents have left" if agents else "there is room for it"
        _record(state, Decision(job.job, Verdict.START, tuple(one.job for one in agents), why))
        return
    entitled = _entitled(state, job.owner)
    why = f"{job.owner} is entitled to {entitled} CPUs and has {state.used[job.owner]}, so it waits for "
    why += "what was promised to its owner" if targets is not None else f"{job.wish.cpus} idle CPUs"
    _record(state, Decision(job.job, Verdict.HOLD, (), why))


def _without_owners(state: _State, job: WaitingJob) -> list[str] | None:
    """Return the targets without any owner's job preempted: idle room first, then coming room and agents' room."""
    targets = targets_of(job.wish, state.free, {}, (), state.view.size)
    if targets is not None or not job.ready:
        return targets
    if not state.used[AGENTS] and all(room == NOTHING for room in state.coming.values()):
        return None
    return targets_of(job.wish, state.free, state.coming, (_held_by_agents(state),), state.view.size)


def _held_by_agents(state: _State) -> dict[str, Resources]:
    found: dict[str, Resources] = {}
    for job in state.candidates:
        if job.owner == AGENTS:
            for node in job.holds.keys() - state.awaited:
                found[node] = found.get(node, NOTHING).plus(job.holds[node])
    return found


def _may_use_idle(state: _State, job: WaitingJob) -> bool:
    """Return True if `policy.omfs` would start the job with as much idle as the job asks for."""
    cpus = job.wish.cpus
    answer, _ = _ask(state, job, _Question(cpus, idle=cpus, coming=0, gives=[0] * len(state.candidates)), ())
    return answer == omfs.START


def _may_go(state: _State) -> tuple[dict[str, Resources], ...]:
    """Return what may be vacated on each node: agents, then jobs that ran for a quantum, then the rest.

    The quantum may protect the rest. Each entry includes those before it. No owner loses more than it has above its
    entitlement, except for its last job.
    """
    rules = state.view.rules
    grades = tuple(dict.fromkeys(state.free, NOTHING) for _ in range(_OLD + 1))
    there: dict[tuple[int, str, str], list[Resources]] = {}
    for job in state.candidates:
        if job.job_class is JobClass.NON_PREEMPTIBLE or state.used[job.owner] <= _entitled(state, job.owner):
            continue
        is_young = state.view.now_s < job.since_s + rules.quantum_s
        for at in range(0 if job.owner == AGENTS else _OLD if is_young else 1, len(grades)):
            for node in job.holds.keys() & grades[at].keys():
                there.setdefault((at, node, job.owner), []).append(job.holds[node])
    for (at, node, owner), rooms in there.items():
        cpus = [room.cpus for room in rooms]
        most = state.used[owner] - _entitled(state, owner) - 1 + max(cpus)
        gives = Resources(min(sum(cpus), most), sum(room.memory_mib for room in rooms))
        grades[at][node] = grades[at][node].plus(gives)
    return grades


def _decided(state: _State, job: WaitingJob, targets: Sequence[str]) -> tuple[int, list[RunningJob], str | None]:
    """Return the answer of `policy.omfs` over all nodes, with all victims; or none, and the node that is not enough."""
    victims: list[RunningJob] = []
    answers: set[int] = {omfs.START}
    needs = needs_of(job.wish, targets, state.view.size)
    for node, need in needs.items():
        for of in (_cpus, _memory):
            free, coming = of(state.free[node]), of(state.coming[node])
            coming += sum(of(one.holds.get(node, NOTHING)) for one in victims)
            if of is _memory and free >= need.memory_mib:
                continue
            gives = [0 if one in victims else of(one.holds.get(node, NOTHING)) for one in state.candidates]
            answer, found = _ask(state, job, _Question(of(need), free, coming, gives), victims)
            if answer in {omfs.REFUSE, omfs.WAIT}:
                return answer, [], node
            answers.add(answer)
            victims += found
    kept = needed(victims, needs, state.free, state.coming)
    return (omfs.VACATE if omfs.VACATE in answers else omfs.START), kept, None


def _cpus(room: Resources) -> int:
    return room.cpus


def _memory(room: Resources) -> int:
    return room.memory_mib


@dataclass(frozen=True, slots=True)
class _Question:
    """Processors (or memory) asked of one node, what the node has of it, and what each candidate holds."""

    asked: int
    idle: int
    coming: int
    gives: Sequence[int]


def _ask(
    state: _State, job: WaitingJob, question: _Question, victims: Sequence[RunningJob]
) -> tuple[int, list[RunningJob]]:
    """Ask `policy.omfs` once. Return the answer, and the victims beside those that were chosen already."""
    running, rules = state.candidates, state.view.rules
    used = [state.used[owner] - sum(one.cpus for one in victims if one.owner == owner) for owner in state.owners]
    entitled = [_entitled(state, owner) for owner in state.owners]
    own = state.owners.index(job.owner)
    if omfs.is_claim(job.wish.cpus, used[own], entitled[own]):
        entitled[own] = max(entitled[own], used[own] + question.asked)  # owed as a whole, so is each part of it
    found = np.empty(len(running), np.int64)
    answer, many = omfs.decide(
        omfs.Asked(question.asked, own, int(job.job_class)),
        omfs.Running(
            units=np.array([one.cpus for one in running], np.int64),
            gives=np.array(question.gives, np.int64),
            owner=np.array([state.owners.index(one.owner) for one in running], np.int64),
            job_class=np.array([int(one.job_class) for one in running], np.int64),
            priority=np.array([_FIRST_TO_GO if one.owner == AGENTS else one.priority for one in running], np.int64),
            since_s=np.array([-np.inf if one.owner == AGENTS else one.since_s for one in running], np.float64),
            cost_s=np.array([one.cost_s for one in running], np.float64),
        ),
        omfs.Owners(
            used=np.array(used, np.int64),
            used_fixed=np.zeros(len(used), np.int64),  # `_would_exceed` has asked that already
            promised=np.array([state.promised[owner] for owner in state.owners], np.int64),
            entitled=np.array(entitled, np.int64),
        ),
        question.idle,
        question.coming,
        state.view.now_s,
        omfs.Rules(rules.quantum_s, rules.quantum_protects, literal=False),
        found,
    )
    return answer, [running[int(at)] for at in found[:many]]


def _vacate(state: _State, victims: Sequence[RunningJob]) -> None:
    for one in victims:
        state.candidates.remove(one)
        state.used[one.owner] -= one.cpus
        state.saves_left -= one.owner != AGENTS
        for node, room in one.holds.items():
            if node in state.coming:
                state.coming[node] = state.coming[node].plus(room)


def _promise(state: _State, needs: Mapping[str, Resources]) -> None:
    """Take these resources out of what other jobs find: first what is idle, then what is coming."""
    for node, need in needs.items():
        rest = need.less(state.free[node])
        state.free[node] = state.free[node].less(need)
        state.coming[node] = state.coming[node].less(rest)


def _count(state: _State, job: WaitingJob) -> None:
    state.used[job.owner] += job.wish.cpus
    if job.job_class is JobClass.NON_PREEMPTIBLE:
        state.used_fixed[job.owner] += job.wish.cpus


def replay(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer to a stored view, decided again."""
    return as_answer(decide(view_of(given)))
