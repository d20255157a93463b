"""Decide which of the owners' held jobs start, and which jobs are preempted for them, by OMFS on real nodes.

The module is pure. Its rules are those of OMFS (see below), which the simulator also implements. A real cluster adds
these:

- A job needs its processors in pieces, on nodes that it can use. A decision on it therefore considers the free
  resources of the nodes where it would run (its *targets*), and only jobs that hold resources there can be its victims.
- A job that was released and has not started is *promised* the room on its targets, which then does not count as idle
  for other jobs.
- A claim is a job that fits into the unused part of its owner's entitlement. It is released at the top of the
  scheduler's queue even if its victims cannot be preempted yet, because the scheduler then keeps the next free
  processors for it. A claim that would not fit, no matter which jobs were preempted, is held and does not count towards
  its owner's use.
- A job that the scheduler might not start yet even on idle nodes (because of a dependency, the next task of an array,
  or a limit) is released to find out whether it would start. It counts towards its owner's use, but no job is preempted
  for it until the lack of room is the only reason why it waits.
- Gleaner's own agents count as the jobs of an owner with entitlement 0. They are vacated first, at any age, and for any
  job that can run, whoever owns it, so that no agent makes a regular job wait.
- Only resources that can be used now are shared, so the resources that a job holds on other nodes (drained or down) do
  not count for its owner.
- Only as many victims of a claim are preempted as the hourly ceiling allows. The rest of the room stays promised.

Claims are considered first, in the order of submission, and again after each claim for which other jobs were vacated.
All other jobs follow, beginning with those that were already released.

The method is OMFS (Zvi and Oren, "Optimized Memoryless Fair-Share HPC Resources Scheduling using Transparent
Checkpoint-Restart Preemption", 2021). Each owner is entitled to a part of the machine, can use more while others do not
need theirs, and returns it when they do. The rules have no memory, so only the jobs that are running or waiting now
count.

Section II of the paper gives the rules twice, in words and as Algorithm 1, and the two differ. Where they differ, this
module follows the words. In the simulator, the listing is available as an option (`literal`), for study. These lines of
the listing needed a decision:

- Line 3 starts with no idle CPUs. An empty machine would stay empty, because no job ever ends in the listing. Here the
  caller passes the number of idle CPUs, and a replay starts with all CPUs idle.
- Lines 19 to 21: the "preemptable" jobs are those that can be vacated, by a kill or by a save.
- Line 22: according to the words, a non-preemptible job runs "up to the entitlement", so a job of exactly that size
  runs. The listing refuses it. Non-preemptible jobs therefore never hold more than the entitlement, and everything that
  an owner holds above it can be taken back.
- Line 26: idle CPUs suffice if there are as many as the job requests. The listing requires more, so that a job of
  exactly that size reaches the test in line 27.
- Line 27: a job that fits into the unused part of its owner's entitlement, with all of the owner's jobs counted, is a
  claim. Any other job runs on idle CPUs, and can be larger than the entitlement unless it is non-preemptible. But it
  does not run while its owner still waits for promised units, because it might be vacated before they are free.
- Line 32 takes the running job of the lowest priority, even if its owner is within its entitlement or is the claim's
  own owner, or if the job must not be preempted. According to the words, victims are preemptible or checkpointable jobs
  "of entities utilizing more than their allotment". An owner that comes down to its entitlement while victims are
  chosen loses no further job.
- Line 32, the order: the queue of running jobs "demotes jobs that have been running uninterruptedly for at least a
  quantum", so those jobs come first. The paper leaves the rest of the order open. The jobs whose loss leaves their
  owner least far below its entitlement come next, and then those of the lowest priority (line 11 compares priorities
  within one user, this module across all users). The last criterion is the cost of vacating a job, which is the
  duration of a save or the computing time that a kill loses.
- "Each job is allowed a quantum: a minimal running duration". With `protects`, no job is vacated within its quantum, so
  saves are bounded and a claim waits for at most a quantum. Without it, such jobs come last, and a claim never waits.
- Line 31 stops as soon as enough CPUs are freed. Here a chosen job is spared after all if the jobs chosen after it
  suffice.
- Line 33 drops jobs that cannot be saved. According to the words, such a job "may be killed", and the caller lets it
  start over.
- Line 36 counts vacated CPUs as idle immediately. A save takes time, so `coming` contains the CPUs that are being freed
  and are promised to no job. They are not freed a second time.

The caller asks about each waiting job in turn, and applies each answer before the next question:

1. The claims, in the order of the queue. After a claim for which others were vacated, the caller asks again about the
   claims that had to wait, because an owner that has just lost a job might now be entitled to another.
2. Then the other jobs, in the order of the queue, unless the answer for a claim was `WAIT`, because idle CPUs are then
   kept for it. So no owner rises above its entitlement while a claim waits. Soon all jobs above an entitlement have run
   for a quantum, and then the claim proceeds. The listing has no such order, so with `literal` the caller asks about
   each job once, whether it is a claim or not.

Counting shows that no claim waits longer than that. The idle, coming and used units make up the whole machine, and the
entitlements add up to no more. So if a claim fits into its owner's entitlement, and the idle and coming units do not
suffice, another owner is above its own entitlement, and some of that owner's jobs are preemptible. The rules also
cannot preempt jobs in a cycle. An owner with a claim is within its entitlement afterwards, and its jobs are vacated
only after it has taken idle units beyond its entitlement. A job that was just vacated is not a claim, because with it,
its owner was above the entitlement.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from gleaner.control.policy.entitlements_view import (
    AGENTS,
    Decision,
    EntitlementRules,
    EntitlementView,
    JobClass,
    RunningJob,
    Verdict,
    WaitingJob,
    Wish,
    as_answer,
    view_of,
)
from gleaner.control.policy.resources import NOTHING, Resources

POLICY = "entitlements"
"""The name of this policy in stored decisions."""
_FIRST_TO_GO = -(2**62)
_OLD = 2
"""The number of entries of `_may_go` that contain only agents and jobs that have run for a quantum."""
_TRIES = 30
"""The number of placements that are tried for one job in one decision."""
_KINDS: tuple[Callable[[Resources], int], ...] = (attrgetter("cpus"), attrgetter("memory_mib"))


@dataclass(slots=True)
class OwnerCpus:
    """The CPUs of one owner while decisions are taken. CPUs that are being vacated are not used."""

    entitled: int = 0
    used: int = 0
    used_fixed: int = 0
    """The used CPUs of non-preemptible jobs."""
    promised: int = 0
    """The used CPUs of claims that have not started."""

    def is_claim(self, cpus: int) -> bool:
        """Return True if a job with this many CPUs fits into the unused part of the entitlement."""
        return cpus <= self.entitled - self.used

    def would_exceed(self, cpus: int, job_class: JobClass) -> bool:
        """Return True if the owner's non-preemptible jobs would exceed its entitlement with this job."""
        return job_class is JobClass.NON_PREEMPTIBLE and self.used_fixed + cpus > self.entitled

    def may_use_idle(self, cpus: int) -> bool:
        """Return True if a job with this many CPUs can start when as many are idle."""
        return self.is_claim(cpus) or self.promised == 0

    def count(self, cpus: int, job_class: JobClass) -> None:
        """Count the CPUs of one more job as used."""
        self.used += cpus
        self.used_fixed += cpus if job_class is JobClass.NON_PREEMPTIBLE else 0


@dataclass(slots=True)
class _State:
    """The cluster while decisions are taken. `free` and `coming` contain the resources that are not promised to any job
    yet."""

    view: EntitlementView
    owners: Mapping[str, OwnerCpus]
    free: dict[str, Resources]
    coming: dict[str, Resources]
    candidates: list[RunningJob]
    saves_left: int
    awaited: set[str] = field(default_factory=set[str])
    """Nodes on which a claim waits for a victim that cannot be preempted yet. The room of agents there is kept for the
    claim."""
    decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])


def decide(view: EntitlementView) -> tuple[Decision, ...]:
    """Return a decision for each waiting job, in the same order. If a job stays released, its verdict is START or
    CLAIM."""
    state = _state_of(view)
    for job in view.waiting:
        if job.kept_back:
            _let_in(state, job, f"it was released, and {job.owner} holds it itself")
        elif not view.size:
            _record(state, job, Verdict.HOLD, "no node of the owners' partitions can be used now")
    for job in view.waiting:
        if job.released:
            _take_claim(state, job)
    while sum(_take_claim(state, job) for job in view.waiting):
        pass  # an owner that has just lost a job might now be entitled to another
    for job in view.waiting:
        if not job.ready and job.job not in state.decisions and state.owners[job.owner].is_claim(job.wish.cpus):
            _ask_the_scheduler(state, job)
    for job in sorted(view.waiting, key=lambda job: not job.released):
        if job.job not in state.decisions:
            _on_idle(state, job)
    return tuple(state.decisions[job.job] for job in view.waiting)


def _state_of(view: EntitlementView) -> _State:
    owners = defaultdict(OwnerCpus, {owner: OwnerCpus(cpus) for owner, cpus in view.entitled_cpus.items()})
    coming = dict.fromkeys(view.free, NOTHING)
    candidates: list[RunningJob] = []
    for seen in view.running:
        job = replace(seen, holds={node: room for node, room in seen.holds.items() if node in view.size})
        if job.owner == AGENTS:
            job = replace(job, priority=_FIRST_TO_GO, since_s=float("-inf"))
        if job.leaving:
            _add(coming, job.holds)
            continue
        owners[job.owner].count(job.cpus, job.job_class)
        if not job.stays:
            candidates.append(job)
    return _State(view, owners, dict(view.free), coming, candidates, view.rules.saves_left)


def _add(rooms: dict[str, Resources], more: Mapping[str, Resources]) -> None:
    for node in more.keys() & rooms.keys():
        rooms[node] = rooms[node].plus(more[node])


def _take_claim(state: _State, job: WaitingJob) -> bool:
    """Decide on this job if it is a claim, and return True if any job is preempted for it.

    A claim starts on idle or coming room, on the room of its victims, or, if these cannot be preempted yet, on the next
    room that becomes free. It is promised its room, so nothing else needs to be kept for it. A job that would not fit,
    no matter which jobs were preempted, is held, because its owner's other jobs must not wait for it.
    """
    owner, view = state.owners[job.owner], state.view
    if not job.ready or job.job in state.decisions or not owner.is_claim(job.wish.cpus):
        return False
    targets, found = _placed(state, job)
    why = f"{job.owner} is entitled to {owner.entitled} CPUs and has {owner.used}"
    if targets is None:
        fits = targets_of(job.wish, view.size, {}, (), view.size) is not None
        nowhere = "too few of the nodes that it may use can be used now"
        why += f"; but {'the nodes are full of jobs that may not be preempted' if fits else nowhere}"
        _record(state, job, Verdict.HOLD, why)
        return False
    if found is None:
        those = "have not run for a quantum" if view.rules.quantum_protects else "have too little on any one node"
        later = f"; those that must be preempted {those}, so it has the next CPUs that fall free"
        state.awaited |= set(targets)
        victims: list[RunningJob] = []
    else:
        victims, later = _allowed(state, found)
    _vacate(state, victims)
    if not _promise(state, needs_of(job.wish, targets, view.size)):
        owner.promised += job.wish.cpus
    owner.count(job.wish.cpus, job.job_class)
    _record(state, job, Verdict.CLAIM, why + later, victims)
    return bool(victims)


def _allowed(state: _State, victims: Sequence[RunningJob]) -> tuple[list[RunningJob], str]:
    """Return the victims that can be preempted within this hour, and a message about the others."""
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


def _placed(state: _State, job: WaitingJob) -> tuple[list[str] | None, list[RunningJob] | None]:
    """Return the targets of a claim and the jobs to preempt there, or None for the jobs if too few can be preempted
    yet.

    Not all candidates can be preempted together, because an owner that has come down to its entitlement keeps the rest.
    If too few are left on a node, other nodes are tried.
    """
    grades, wish, size = _may_go(state), job.wish, state.view.size
    first = targets = targets_of(wish, state.free, state.coming, grades, size)
    soon = grades[:_OLD] if state.view.rules.quantum_protects else grades
    for _ in range(_TRIES):
        if targets is None:
            break
        victims, stuck = _victims_on(state, needs_of(wish, targets, size))
        if stuck is None:
            return targets, victims
        nodes = state.free if wish.nodes is None else wish.nodes
        wish = replace(wish, nodes=tuple(node for node in nodes if node != stuck))
        targets = targets_of(wish, state.free, state.coming, soon, size)
    return first, None


def _victims_on(state: _State, needs: Mapping[str, Resources]) -> tuple[list[RunningJob], str | None]:
    """Return the jobs to preempt for a claim on all its nodes, or no jobs and the node on which too little can be
    freed."""
    chosen: list[RunningJob] = []
    for node, need in needs.items():
        for of in _KINDS:

            def gives(job: RunningJob, node: str = node, of: Callable[[Resources], int] = of) -> int:
                return of(job.holds.get(node, NOTHING))

            missing = of(need) - of(state.free[node]) - of(state.coming[node]) - sum(map(gives, chosen))
            if missing > 0:
                more = _choose(state, gives, missing, chosen)
                if not more:
                    return [], node
                chosen += more
    return needed_victims(chosen, needs, state.free, state.coming), None


def _choose(
    state: _State, gives: Callable[[RunningJob], int], missing: int, chosen: Sequence[RunningJob]
) -> list[RunningJob]:
    """Return further victims, in addition to those already chosen."""
    owners = dict(state.owners)
    for one in chosen:
        owners[one.owner] = replace(owners[one.owner], used=owners[one.owner].used - one.cpus)
    candidates = [job for job in state.candidates if job not in chosen]
    return choose_victims(candidates, gives, owners, missing, now_s=state.view.now_s, rules=state.view.rules)


def _ask_the_scheduler(state: _State, job: WaitingJob) -> None:
    """Release a job that fits into the entitlement but might be waiting for something other than room. No job is
    preempted for it yet."""
    targets = None if job.released else targets_of(job.wish, state.free, {}, (), state.view.size)
    if targets is not None:
        _promise(state, needs_of(job.wish, targets, state.view.size))
    _let_in(
        state, job, "it is released, and nobody is preempted for it before the scheduler lacks nothing but room for it"
    )


def _let_in(state: _State, job: WaitingJob, why: str, agents: Sequence[RunningJob] = ()) -> None:
    state.owners[job.owner].count(job.wish.cpus, job.job_class)
    _record(state, job, Verdict.START, why, agents)


def _record(state: _State, job: WaitingJob, verdict: Verdict, why: str, victims: Sequence[RunningJob] = ()) -> None:
    """Record the decision on a job, which is final for this view."""
    state.decisions[job.job] = Decision(job.job, verdict, tuple(one.job for one in victims), why)


def _on_idle(state: _State, job: WaitingJob) -> None:
    """Decide on a job that exceeds its owner's entitlement. It starts if idle room, or the room of agents, suffices
    now."""
    owner, cpus = state.owners[job.owner], job.wish.cpus
    if owner.would_exceed(cpus, job.job_class):
        has = f"{job.owner} may have {owner.entitled} CPUs in non-preemptible jobs and has {owner.used_fixed}"
        cure = "declare it preemptible or checkpointable to use what is idle"
        _record(state, job, Verdict.HOLD, f"{has}, this one asks for {cpus}; {cure}")
        return
    if job.released and not job.ready:
        _record(state, job, Verdict.START, "it was released, and the scheduler lets it wait")
        return
    targets = _without_owners(state, job)
    if targets is not None and owner.may_use_idle(cpus):
        needs = needs_of(job.wish, targets, state.view.size)
        agents = [one for one in state.candidates if one.owner == AGENTS and one.holds.keys() & needs.keys()]
        agents = needed_victims(agents, needs, state.free, state.coming)
        _vacate(state, agents)
        _promise(state, needs)
        why = "there is room for it as soon as Gleaner's agents have left" if agents else "there is room for it"
        _let_in(state, job, why, agents)
        return
    why = f"{job.owner} is entitled to {owner.entitled} CPUs and has {owner.used}, so it waits for "
    why += "what was promised to its owner" if targets is not None else f"{cpus} idle CPUs"
    _record(state, job, Verdict.HOLD, why)


def _without_owners(state: _State, job: WaitingJob) -> list[str] | None:
    """Return targets for which no owner's job is preempted, or None if there are none. Idle room is tried first, then
    coming room and the room of agents."""
    targets = targets_of(job.wish, state.free, {}, (), state.view.size)
    if targets is not None or not job.ready:
        return targets
    if not state.owners[AGENTS].used and all(room == NOTHING for room in state.coming.values()):
        return None
    of_agents = dict.fromkeys(state.free.keys() - state.awaited, NOTHING)
    for one in state.candidates:
        if one.owner == AGENTS:
            _add(of_agents, one.holds)
    return targets_of(job.wish, state.free, state.coming, (of_agents,), state.view.size)


def _may_go(state: _State) -> tuple[dict[str, Resources], ...]:
    """Return the resources that can be vacated on each node, in three entries, each of which includes those before it.

    The first entry contains the resources of agents, the second adds jobs that have run for a quantum, and the third
    adds the rest, which the quantum might protect. Apart from the last victim of each owner, no owner loses more than
    it holds above its entitlement.
    """
    grades = tuple(dict.fromkeys(state.free, NOTHING) for _ in range(_OLD + 1))
    there: dict[tuple[int, str, str], list[Resources]] = {}
    for job in state.candidates:
        owner = state.owners[job.owner]
        if job.job_class is JobClass.NON_PREEMPTIBLE or owner.used <= owner.entitled:
            continue
        is_young = state.view.now_s < job.since_s + state.view.rules.quantum_s
        for at in range(0 if job.owner == AGENTS else _OLD if is_young else 1, len(grades)):
            for node in job.holds.keys() & grades[at].keys():
                there.setdefault((at, node, job.owner), []).append(job.holds[node])
    for (at, node, name), rooms in there.items():
        cpus = [room.cpus for room in rooms]
        most = state.owners[name].used - state.owners[name].entitled - 1 + max(cpus)
        _add(grades[at], {node: Resources(min(sum(cpus), most), sum(room.memory_mib for room in rooms))})
    return grades


def _vacate(state: _State, victims: Sequence[RunningJob]) -> None:
    for one in victims:
        state.candidates.remove(one)
        state.owners[one.owner].used -= one.cpus
        state.saves_left -= one.owner != AGENTS
        _add(state.coming, one.holds)


def _promise(state: _State, needs: Mapping[str, Resources]) -> bool:
    """Withdraw these resources from other jobs, first from the idle room, then from the coming room.

    Return True if the idle room suffices.
    """
    is_idle = True
    for node, need in needs.items():
        rest = need.less(state.free[node])
        is_idle = is_idle and rest == NOTHING
        state.free[node] = state.free[node].less(need)
        state.coming[node] = state.coming[node].less(rest)
    return is_idle


def choose_victims(
    running: Sequence[RunningJob],
    gives: Callable[[RunningJob], int],
    owners: Mapping[str, OwnerCpus],
    missing: int,
    *,
    now_s: float,
    rules: EntitlementRules,
) -> list[RunningJob]:
    """Return the running jobs to preempt for a claim that lacks `missing`, in the order chosen, or none if too few can
    be preempted.

    `gives` returns the part of a job's resources that the claim could use, or all its CPUs where only the number of
    CPUs matters.
    """
    left = {name: owner.used for name, owner in owners.items()}
    chosen: list[RunningJob] = []

    def is_young(job: RunningJob) -> bool:
        return now_s < job.since_s + rules.quantum_s

    def order(job: RunningJob) -> tuple[bool, int, int, float]:
        below = max(0, owners[job.owner].entitled - (left[job.owner] - job.cpus))
        lost_s = job.cost_s if job.job_class is JobClass.CHECKPOINTABLE else now_s - job.since_s
        return is_young(job), below, job.priority, lost_s

    candidates = [
        job
        for job in running
        if job.job_class is not JobClass.NON_PREEMPTIBLE
        and gives(job) > 0
        and not (rules.quantum_protects and is_young(job))
    ]
    surplus = -missing
    while surplus < 0:
        above = [job for job in candidates if left[job.owner] > owners[job.owner].entitled]
        if not above:
            return []
        chosen.append(min(above, key=order))
        candidates.remove(chosen[-1])
        left[chosen[-1].owner] -= chosen[-1].cpus
        surplus += gives(chosen[-1])
    # Jobs that were chosen early might not be needed in addition to those chosen later. The latest of them is spared
    # first.
    for job in reversed(chosen.copy()):
        if gives(job) <= surplus:
            surplus -= gives(job)
            chosen.remove(job)
    return chosen


# ── the nodes: where the pieces of a job would go ──


def needs_of(wish: Wish, targets: Sequence[str], size: Mapping[str, Resources]) -> dict[str, Resources]:
    """Return the resources that the job needs on each of its targets."""
    needs: dict[str, Resources] = {}
    for node in targets:
        needs[node] = size[node] if wish.whole else needs.get(node, NOTHING).plus(wish.piece)
    return needs


def targets_of(
    wish: Wish,
    free: Mapping[str, Resources],
    coming: Mapping[str, Resources],
    may_go: Sequence[Mapping[str, Resources]],
    size: Mapping[str, Resources],
) -> list[str] | None:
    """Return a node for each piece of the job, or None if the job cannot be placed.

    Nodes whose free and coming resources suffice come first, the fullest first, so that wide jobs find whole nodes
    later. The next nodes are those that also need the first entry of `may_go`, then those that need the second entry as
    well, and so on. Within each of these sets, the nodes with the most room come first. The first entry of `may_go`
    contains the resources of agents, one agent per node. Of its nodes, those that can take most of the missing pieces
    come first.
    """
    allowed = free.keys() if wish.nodes is None else free.keys() & set(wish.nodes)
    now = {node: free[node].plus(coming.get(node, NOTHING)) for node in allowed}
    found: list[str] = []

    def more(node: str, room: Resources) -> int:
        fitting = _pieces(room, size[node] if wish.whole else wish.piece)
        return min((min(fitting, 1) if wish.apart else fitting) - found.count(node), wish.pieces - len(found))

    for node in sorted(now, key=lambda node: (now[node].cpus, node)):
        found.extend([node] * more(node, now[node]))
    for at, grade in enumerate(may_go):
        if len(found) < wish.pieces:
            full = {node: room.plus(grade.get(node, NOTHING)) for node, room in now.items()}
            gains = {node: more(node, room) if at == 0 else 0 for node, room in full.items()}
            for node in sorted(now, key=lambda node: (-gains[node], -now[node].cpus, node)):
                found.extend([node] * more(node, full[node]))
    return found if len(found) == wish.pieces else None


def needed_victims(
    victims: Sequence[RunningJob],
    needs: Mapping[str, Resources],
    free: Mapping[str, Resources],
    coming: Mapping[str, Resources],
) -> list[RunningJob]:
    """Return the victims that are needed. Some are not, because the others also free memory or another node."""
    kept = list(victims)
    for one in reversed(victims):
        rest = [other for other in kept if other is not one]
        if all(_is_enough(node, need, free[node].plus(coming[node]), rest) for node, need in needs.items()):
            kept = rest
    return kept


def _is_enough(node: str, need: Resources, room: Resources, victims: Sequence[RunningJob]) -> bool:
    for one in victims:
        room = room.plus(one.holds.get(node, NOTHING))
    return room.cpus >= need.cpus and room.memory_mib >= need.memory_mib


def _pieces(room: Resources, piece: Resources) -> int:
    """Return the number of pieces that fit."""
    by_cpus = room.cpus // max(1, piece.cpus)
    return min(by_cpus, room.memory_mib // piece.memory_mib) if piece.memory_mib else by_cpus


def replay(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Decide again on a stored view, and return the answer."""
    return as_answer(decide(view_of(given)))
