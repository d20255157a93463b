"""Views of a small cluster, as `policy.entitlements` is asked with them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gleaner.control.policy.entitlements import decide
from gleaner.control.policy.entitlements_view import (
    AGENTS,
    Decision,
    EntitlementRules,
    EntitlementView,
    JobClass,
    RunningJob,
    WaitingJob,
    Wish,
)
from gleaner.control.policy.resources import Resources

FIXED, KILLED, SAVED = JobClass.NON_PREEMPTIBLE, JobClass.PREEMPTIBLE, JobClass.CHECKPOINTABLE
NODE = Resources(6, 4000)
NODES: tuple[str, ...] = ("node1", "node2", "node3")
NOW_S = 10_000.0
RULES = EntitlementRules(quantum_s=600, quantum_protects=False, saves_left=100)
SHARES = {"physics": 9, "chemistry": 6, "biology": 3}


def view(
    waiting: Sequence[WaitingJob] = (), running: Sequence[RunningJob] = (), rules: EntitlementRules = RULES
) -> EntitlementView:
    return view_of_nodes(dict.fromkeys(NODES, NODE), waiting, running, rules)


def view_of_nodes(
    size: Mapping[str, Resources],
    waiting: Sequence[WaitingJob] = (),
    running: Sequence[RunningJob] = (),
    rules: EntitlementRules = RULES,
) -> EntitlementView:
    """Return a view of these nodes. It also has what jobs hold on other nodes."""
    free = dict(size)
    for job in running:
        for node in job.holds.keys() & free.keys():
            free[node] = free[node].less(job.holds[node])
    return EntitlementView(NOW_S, rules, SHARES, size, free, tuple(waiting), tuple(running))


def wants(job: str, owner: str, cpus: int, kind: JobClass = FIXED, **more: object) -> WaitingJob:
    return replace(WaitingJob(job, owner, kind, Wish(1, Resources(cpus, 100 * cpus))), **more)  # type: ignore[arg-type]


def runs(job: str, owner: str, node: str, cpus: int, kind: JobClass = SAVED, **more: object) -> RunningJob:
    made = RunningJob(job, owner, kind, NOW_S - 5000, {node: Resources(cpus, 100 * cpus)})
    return replace(made, **more)  # type: ignore[arg-type]


def agent(node: str) -> RunningJob:
    return RunningJob(f"agent-{node}", AGENTS, SAVED, NOW_S - 10, {node: NODE})


def decided(what: EntitlementView) -> dict[str, Decision]:
    return {decision.job: decision for decision in decide(what)}
