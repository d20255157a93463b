"""Which held job of the cluster's owners starts, and who gives way for it: OMFS on nodes that have a shape. Pure.

`policy.omfs.decide` answers for each job, as in the simulator; here is what a real cluster adds to it:

- A job needs its processors in pieces, on nodes that it may use. So it is asked for with what is free on the nodes
  where it would go (its *targets*), and only jobs that hold something there can be its victims.
- What was released and has not started is *promised*: its targets are kept out of what others find idle.
- A claim (a job that fits what is left of its owner's entitlement) is released at the top of the scheduler's queue even
  where those that must give way may not be asked yet: the scheduler keeps the next free processors for it then. One
  that would find no room whoever gave way is held, and counts for nothing.
- A job that the scheduler may not want yet, whatever is idle (a dependency, the next task of an array, a limit), is
  released to find out. It counts as its owner's, but nobody gives way for it before the scheduler only lacks room.
- Gleaner's own agents are what an owner with entitlement 0 has: never too young to give way, and first. They give way
  for any job that may run, whoever's it is: none of ours makes a regular job wait.
- Only what can be used now is shared, so what a job has on other nodes (drained, down) does not count for its owner.
- Of those who give way for one claim only as many go as the hour allows; the rest of its room stays promised to it.

Claims come first, in the order of submission, and again after each that had others vacated; then all others, and of
these first what was released already. See `policy.omfs` for why no owner below its entitlement loses anything, and why
it does not go round in circles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gleaner.control.policy import omfs
from gleaner.control.policy.governing_view import (
    AGENTS,
    GovernView,
    Ruling,
    RunningJob,
    Verdict,
    WaitingJob,
    as_answer,
    view_of,
)
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.placing import needed, needs_of, targets_of
from gleaner.control.policy.room import NOTHING, Room

POLICY = "governing"
"""Its name in stored decisions."""
_FIRST_TO_GO = -(2**62)
_OLD = 2
"""So many of what `_may_go` answers are of what has run for a quantum."""
_TRIES = 30
"""So many placements of one job are tried in one look."""


@dataclass(slots=True)
class _Site:
    """The cluster while decisions are taken. `free` and `coming` are what nobody was promised yet."""

    view: GovernView
    owners: list[str]
    free: dict[str, Room]
    coming: dict[str, Room]
    candidates: list[RunningJob]
    used: dict[str, int]
    used_fixed: dict[str, int]
    promised: dict[str, int]
    saves_left: int
    awaited: set[str] = field(default_factory=set[str])
    """Nodes of claims that wait for somebody there who may not be asked yet: what agents have there is for these."""
    rulings: dict[str, Ruling] = field(default_factory=dict[str, Ruling])


def govern(view: GovernView) -> tuple[Ruling, ...]:
    """A ruling for each waiting job, in their order. One that was released and may stay so is a start or a claim."""
    site = _site(view)
    for job in view.waiting:
        if job.kept_back:
            _count(site, job)
            _ruled(site, Ruling(job.job, Verdict.START, (), f"it was released, and {job.owner} holds it itself"))
        elif not view.size:
            _ruled(site, Ruling(job.job, Verdict.HOLD, (), "no node of the governed partitions can be used now"))
    _claims(site, [job for job in view.waiting if job.released])
    while _claims(site, view.waiting):
        pass
    for job in view.waiting:
        if not job.ready and job.job not in site.rulings and _is_claim(site, job):
            _ask_the_scheduler(site, job)
    for job in sorted(view.waiting, key=lambda job: not job.released):
        if job.job not in site.rulings:
            _on_idle(site, job)
    return tuple(site.rulings[job.job] for job in view.waiting)


def _claims(site: _Site, jobs: Sequence[WaitingJob]) -> bool:
    """Rule on the claims among them; whether anybody gives way, so that others may have become claims."""
    is_vacated = False
    for job in jobs:
        if job.ready and job.job not in site.rulings and _is_claim(site, job):
            is_vacated = bool(_claim(site, job).victims) or is_vacated
    return is_vacated


def _site(view: GovernView) -> _Site:
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
    return _Site(
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


def _entitled(site: _Site, owner: str) -> int:
    return site.view.entitled_cpus.get(owner, 0)


def _is_claim(site: _Site, job: WaitingJob) -> bool:
    return job.wish.cpus <= _entitled(site, job.owner) - site.used[job.owner]


def _would_exceed(site: _Site, job: WaitingJob) -> bool:
    fixed = site.used_fixed[job.owner] + job.wish.cpus
    return job.job_class is JobClass.NON_PREEMPTIBLE and fixed > _entitled(site, job.owner)


def _exceeds(site: _Site, job: WaitingJob) -> str:
    entitled, fixed = _entitled(site, job.owner), site.used_fixed[job.owner]
    has = f"{job.owner} may have {entitled} CPUs in non-preemptible jobs and has {fixed}"
    return f"{has}, this one asks for {job.wish.cpus}; declare it preemptible or checkpointable to use what is idle"


def _claim(site: _Site, job: WaitingJob) -> Ruling:
    """What is owed: on idle room, on what is coming, or by victims. Where those may not go yet, on what falls free.

    A job that no node can take, whoever gave way, waits: it must not stand in the way of its owner's other jobs.
    """
    targets, answer, victims = _placed(site, job)
    why = f"{job.owner} is entitled to {_entitled(site, job.owner)} CPUs and has {site.used[job.owner]}"
    if targets is None:
        fits = targets_of(job.wish, site.view.size, {}, (), site.view.size) is not None
        nowhere = "too few of the nodes that it may use can be used now"
        why += f"; but {'the nodes are full of jobs that need not give way' if fits else nowhere}"
        return _ruled(site, Ruling(job.job, Verdict.HOLD, (), why))
    if answer in {omfs.WAIT, omfs.REFUSE}:
        those = "have not run for a quantum" if site.view.rules.quantum_protects else "have too little on any one node"
        why += f"; those that must give way {those}, so it has the next CPUs that fall free"
        site.awaited |= set(targets)
    else:
        victims, later = _allowed(site, victims)
        why += later
    _vacate(site, victims)
    _promise(site, needs_of(job.wish, targets, site.view.size))
    _count(site, job)
    if answer != omfs.START:
        site.promised[job.owner] += job.wish.cpus
    return _ruled(site, Ruling(job.job, Verdict.CLAIM, tuple(one.job for one in victims), why))


def _allowed(site: _Site, victims: Sequence[RunningJob]) -> tuple[list[RunningJob], str]:
    """Those of them that may go within this hour, and what is to be said of the others."""
    jobs = [one for one in victims if one.owner != AGENTS]
    later = jobs[site.saves_left :]
    why = ""
    if later and site.saves_left:
        why = (
            f"; {site.saves_left} of {len(jobs)} jobs give way now, the rest as the admin's ceiling for an hour allows"
        )
    elif later:
        why = "; as many jobs were vacated this hour as the admin allows, so it has the next CPUs that fall free"
    return [one for one in victims if one not in later], why


def _placed(site: _Site, job: WaitingJob) -> tuple[list[str] | None, int, list[RunningJob]]:
    """Its targets, and what is decided for them.

    Not all that may go can go together: an owner that has come down to its entitlement keeps the rest. Where that is
    too little, other nodes are tried.
    """
    grades, wish = _may_go(site), job.wish
    found = targets_of(wish, site.free, site.coming, grades, site.view.size)
    if found is None:
        return None, omfs.REFUSE, []
    first: tuple[list[str], int, list[RunningJob]] | None = None
    for _ in range(_TRIES):
        answer, victims, stuck = _decided(site, job, found)
        if stuck is None:
            return found, answer, victims
        first = first or (found, answer, victims)
        nodes = site.free if wish.nodes is None else wish.nodes
        wish = replace(wish, nodes=tuple(node for node in nodes if node != stuck))
        soon = grades[:_OLD] if site.view.rules.quantum_protects else grades
        more = targets_of(wish, site.free, site.coming, soon, site.view.size)
        if more is None:
            break
        found = more
    return first or (None, omfs.REFUSE, [])


def _ask_the_scheduler(site: _Site, job: WaitingJob) -> None:
    """What fits the entitlement, and may have to wait for something else than room: nobody gives way for it yet."""
    targets = None if job.released else targets_of(job.wish, site.free, {}, (), site.view.size)
    if targets is not None:
        _promise(site, needs_of(job.wish, targets, site.view.size))
    _count(site, job)
    why = "it is released, and nobody gives way for it before the scheduler lacks nothing but room for it"
    _ruled(site, Ruling(job.job, Verdict.START, (), why))


def _ruled(site: _Site, ruling: Ruling) -> Ruling:
    site.rulings[ruling.job] = ruling
    return ruling


def _on_idle(site: _Site, job: WaitingJob) -> None:
    """What is not owed runs on idle room, or where none but agents are in its way, if there is enough of that now."""
    if _would_exceed(site, job):
        _ruled(site, Ruling(job.job, Verdict.HOLD, (), _exceeds(site, job)))
        return
    if job.released and not job.ready:
        _ruled(site, Ruling(job.job, Verdict.START, (), "it was released, and the scheduler lets it wait"))
        return
    targets = _without_owners(site, job)
    if targets is not None and _may_use_idle(site, job):
        needs = needs_of(job.wish, targets, site.view.size)
        agents = [one for one in site.candidates if one.owner == AGENTS and one.holds.keys() & needs.keys()]
        agents = needed(agents, needs, site.free, site.coming)
        _vacate(site, agents)
        _promise(site, needs)
        _count(site, job)
        why = "there is room for it as soon as Gleaner's agents have given way" if agents else "there is room for it"
        _ruled(site, Ruling(job.job, Verdict.START, tuple(one.job for one in agents), why))
        return
    entitled = _entitled(site, job.owner)
    why = f"{job.owner} is entitled to {entitled} CPUs and has {site.used[job.owner]}, so it waits for "
    why += "what was promised to its owner" if targets is not None else f"{job.wish.cpus} idle CPUs"
    _ruled(site, Ruling(job.job, Verdict.HOLD, (), why))


def _without_owners(site: _Site, job: WaitingJob) -> list[str] | None:
    """Where it would go if no job of an owner's gave way: on idle room; else with what is coming, and agents have."""
    targets = targets_of(job.wish, site.free, {}, (), site.view.size)
    if targets is not None or not job.ready:
        return targets
    if not site.used[AGENTS] and all(room == NOTHING for room in site.coming.values()):
        return None
    return targets_of(job.wish, site.free, site.coming, (_held_by_agents(site),), site.view.size)


def _held_by_agents(site: _Site) -> dict[str, Room]:
    found: dict[str, Room] = {}
    for job in site.candidates:
        if job.owner == AGENTS:
            for node in job.holds.keys() - site.awaited:
                found[node] = found.get(node, NOTHING).plus(job.holds[node])
    return found


def _may_use_idle(site: _Site, job: WaitingJob) -> bool:
    """Whether `policy.omfs` would start it if there were as much idle as it asks for."""
    cpus = job.wish.cpus
    answer, _ = _ask(site, job, _Question(cpus, idle=cpus, coming=0, gives=[0] * len(site.candidates)), ())
    return answer == omfs.START


def _may_go(site: _Site) -> tuple[dict[str, Room], ...]:
    """What may be vacated on each node: agents, then what ran for a quantum, then the rest (it may be protected).

    Each has what comes before it in it. Of one owner no more than it has above its entitlement, but for its last job.
    """
    rules = site.view.rules
    grades = tuple(dict.fromkeys(site.free, NOTHING) for _ in range(_OLD + 1))
    there: dict[tuple[int, str, str], list[Room]] = {}
    for job in site.candidates:
        if job.job_class is JobClass.NON_PREEMPTIBLE or site.used[job.owner] <= _entitled(site, job.owner):
            continue
        is_young = site.view.now_s < job.since_s + rules.quantum_s
        for at in range(0 if job.owner == AGENTS else _OLD if is_young else 1, len(grades)):
            for node in job.holds.keys() & grades[at].keys():
                there.setdefault((at, node, job.owner), []).append(job.holds[node])
    for (at, node, owner), rooms in there.items():
        cpus = [room.cpus for room in rooms]
        most = site.used[owner] - _entitled(site, owner) - 1 + max(cpus)
        gives = Room(min(sum(cpus), most), sum(room.memory_mib for room in rooms))
        grades[at][node] = grades[at][node].plus(gives)
    return grades


def _decided(site: _Site, job: WaitingJob, targets: Sequence[str]) -> tuple[int, list[RunningJob], str | None]:
    """What `policy.omfs` says of the job, node by node: all victims; or none, and the node that is not enough."""
    victims: list[RunningJob] = []
    answers: set[int] = {omfs.START}
    needs = needs_of(job.wish, targets, site.view.size)
    for node, need in needs.items():
        for of in (_cpus, _memory):
            free, coming = of(site.free[node]), of(site.coming[node])
            coming += sum(of(one.holds.get(node, NOTHING)) for one in victims)
            if of is _memory and free >= need.memory_mib:
                continue
            gives = [0 if one in victims else of(one.holds.get(node, NOTHING)) for one in site.candidates]
            answer, found = _ask(site, job, _Question(of(need), free, coming, gives), victims)
            if answer in {omfs.REFUSE, omfs.WAIT}:
                return answer, [], node
            answers.add(answer)
            victims += found
    kept = needed(victims, needs, site.free, site.coming)
    return (omfs.VACATE if omfs.VACATE in answers else omfs.START), kept, None


def _cpus(room: Room) -> int:
    return room.cpus


def _memory(room: Room) -> int:
    return room.memory_mib


@dataclass(frozen=True, slots=True)
class _Question:
    """So many processors (or so much memory) of one node, what is there of it, and what each candidate holds."""

    asked: int
    idle: int
    coming: int
    gives: Sequence[int]


def _ask(
    site: _Site, job: WaitingJob, question: _Question, victims: Sequence[RunningJob]
) -> tuple[int, list[RunningJob]]:
    """One question to `policy.omfs`: the answer, and who must go beside those who must go already."""
    running, rules = site.candidates, site.view.rules
    used = [site.used[owner] - sum(one.cpus for one in victims if one.owner == owner) for owner in site.owners]
    entitled = [_entitled(site, owner) for owner in site.owners]
    own = site.owners.index(job.owner)
    if job.wish.cpus <= entitled[own] - used[own]:
        entitled[own] = max(entitled[own], used[own] + question.asked)  # owed as a whole, so is each part of it
    answer, found = omfs.decide(
        question.asked,
        own,
        int(job.job_class),
        site.view.now_s,
        np.array([one.cpus for one in running], np.int64),
        np.array(question.gives, np.int64),
        np.array([site.owners.index(one.owner) for one in running], np.int64),
        np.array([int(one.job_class) for one in running], np.int64),
        np.array([_FIRST_TO_GO if one.owner == AGENTS else one.priority for one in running], np.int64),
        np.array([-np.inf if one.owner == AGENTS else one.since_s for one in running], np.float64),
        np.array([one.cost_s for one in running], np.float64),
        np.array(used, np.int64),
        np.zeros(len(used), np.int64),  # `_would_exceed` has asked that already
        np.array([site.promised[owner] for owner in site.owners], np.int64),
        np.array(entitled, np.int64),
        question.idle,
        question.coming,
        rules.quantum_s,
        rules.quantum_protects,
        False,
    )
    return answer, [running[int(at)] for at in found]


def _vacate(site: _Site, victims: Sequence[RunningJob]) -> None:
    for one in victims:
        site.candidates.remove(one)
        site.used[one.owner] -= one.cpus
        site.saves_left -= one.owner != AGENTS
        for node, room in one.holds.items():
            if node in site.coming:
                site.coming[node] = site.coming[node].plus(room)


def _promise(site: _Site, needs: Mapping[str, Room]) -> None:
    """Take the room out of what others find: first what is idle, then what is coming."""
    for node, need in needs.items():
        rest = need.less(site.free[node])
        site.free[node] = site.free[node].less(need)
        site.coming[node] = site.coming[node].less(rest)


def _count(site: _Site, job: WaitingJob) -> None:
    site.used[job.owner] += job.wish.cpus
    if job.job_class is JobClass.NON_PREEMPTIBLE:
        site.used_fixed[job.owner] += job.wish.cpus


def replay(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same decision once more, from what was stored."""
    return as_answer(govern(view_of(given)))
