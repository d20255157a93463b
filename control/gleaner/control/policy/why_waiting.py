"""The reason why a waiting job does not run now, in one line for its submitter.

The functions are pure, so the caller provides the time and the time zone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo

from gleaner.agent.common.quantities import in_words
from gleaner.control.policy.fair_share import Shares
from gleaner.control.policy.resources import lacks_real_memory

MOST_BEFORE = 10_000
"""The greatest number of earlier jobs that are counted."""


@dataclass(frozen=True, slots=True)
class NodeOutlook:
    """The properties of a node that decide whether a job could run there.

    `is_free` means that a new agent could start there, and `is_excluded` that the node is free but agents failed there.
    """

    cpus: int
    memory_mib: int
    is_free: bool = False
    is_excluded: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class JobNeeds:
    """The needs of a waiting job. `hold_reason` is used only if the job is held."""

    cpus: int
    memory_mib: int
    held: bool = False
    hold_reason: str = ""
    turn: str = ""
    """The rule of its campaign that makes the job wait, or ""."""
    saved_on: str = ""
    """The node that saved the job, or "" if it is not saved."""
    group: str = ""
    paused_until_s: float | None = None
    """The end of a pause after a failure, or None if there is no pause."""
    unreachable: str = ""
    """The input that could not be fetched in the last try, with the reason, or "" if the pause has another cause."""
    quota: str = ""
    """The quota that keeps the job from starting, or "" if there is none."""
    moved: str = ""
    """The origin and the destination of the job's migration, or "" if it does not migrate."""
    needs_s: int = 0
    """The time that an agent must have left for the job, or 0 if any time suffices."""
    before: int = 0
    """The number of waiting jobs of its group that come before it, at most `MOST_BEFORE`."""
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    """For each unsuitable node, the requirement of the job that the node does not meet, or "" if the job failed there,
    was refused there or migrated away."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The circumstances of a waiting job. `nodes` is None until the cluster has been read."""

    now_s: float
    nodes: Sequence[NodeOutlook] | None
    problem: str
    """The reason why the last poll failed, or "" if it did not."""
    agents_live: int
    agents_pending: int
    agents_at_most: int
    boundary_s: float
    """The end of the current round."""
    shortest_slice_s: float
    agent_needs_s: float = 0.0
    """The part of an agent's time that jobs cannot use."""
    closed: str = ""
    """The message that Slurm starts no agent because an admin has closed the agents' partition, or "" if it is open."""
    slurm_says: str = ""
    """The reasons why Slurm keeps agents waiting, in brackets."""
    zone: tzinfo = UTC
    """The time zone of the times in the answer."""
    shares: Shares = field(default_factory=Shares)


def fits_somewhere(wish: JobNeeds, nodes: Sequence[NodeOutlook]) -> bool:
    """Return True if any node, busy or not, is large enough for the job."""
    return any(node.cpus >= wish.cpus and node.memory_mib >= wish.memory_mib for node in nodes)


def too_large(wish: JobNeeds, nodes: Sequence[NodeOutlook]) -> str:
    """Return the message that the job is too large for every node. It names the largest node.

    >>> too_large(JobNeeds(64, 512), [NodeOutlook(4, 2048, is_free=True)])
    'larger than any node: it needs 64 cores and 512 MiB, the largest node has 4 cores and 2048 MiB'
    >>> too_large(JobNeeds(4, 512), [NodeOutlook(4, 1, name=f"n{number}") for number in range(9)])
    'no node has 512 MiB for it by what Slurm says: an admin sets RealMemory for n0, n1, n2 and 6 more in slurm.conf'
    """
    unset = [node.name for node in nodes if node.cpus >= wish.cpus and lacks_real_memory(node.memory_mib)]
    if unset:
        names = ", ".join(unset[:3]) + (f" and {len(unset) - 3} more" if len(unset) > 3 else "")
        return (
            f"no node has {wish.memory_mib} MiB for it by what Slurm says: "
            f"an admin sets RealMemory for {names} in slurm.conf"
        )
    largest = max(nodes, key=lambda node: (node.cpus, node.memory_mib))
    return (
        f"larger than any node: it needs {cores(wish.cpus)} and {wish.memory_mib} MiB, "
        f"the largest node has {cores(largest.cpus)} and {largest.memory_mib} MiB"
    )


def cores(count: int) -> str:
    """Return the number of cores in words.

    >>> cores(1), cores(4)
    ('1 core', '4 cores')
    """
    return "1 core" if count == 1 else f"{count} cores"


def cannot_go_on(wish: JobNeeds, nodes: Sequence[NodeOutlook]) -> str:
    """Return the message that names the properties a node needs to continue the job, or "" if one of these nodes has
    them.

    >>> wish = JobNeeds(1, 512, saved_on="n9", lacking={"n1": "CRIU >= 4.2", "n2": "CRIU >= 4.2 and CPU feature amx"})
    >>> cannot_go_on(wish, [NodeOutlook(1, 512, name="n1"), NodeOutlook(1, 512, name="n2")])
    'waits for a node with CRIU >= 4.2 (saved on n9)'
    """
    large_enough = [node for node in nodes if fits_somewhere(wish, [node])]
    if any(node.name not in wish.lacking for node in large_enough):
        return ""
    lacking = {node.name: wish.lacking[node.name] for node in large_enough}
    least = sorted(filter(None, lacking.values()), key=lambda words: (len(words), words))
    saved = f" (saved on {wish.saved_on})" if wish.saved_on else ""
    if least:
        return f"waits for a node with {least[0]}{saved}"
    others = ", ".join(sorted(lacking))
    return f"waits for another node than {others}: it has failed there, was refused, or was moved away{saved}"


def behind_others(group: str, shares: Shares) -> str:
    """Return the message that jobs of other groups come first, or "" if they do not.

    >>> behind_others("physics", Shares(capacity_cpus=8, holds_cpus={"physics": 6}, waiting=frozenset({"theory"})))
    'groups below their targets go first: theory; physics holds 6 cores, its target is 4'
    """
    targets = shares.target_cpus(sorted(shares.waiting | {group}))
    held = shares.holds_cpus.get(group, 0)
    below = [other for other, target in targets.items() if shares.holds_cpus.get(other, 0) < target]
    if not below or group in below:
        return ""
    own = f"{group} holds {cores(held)}, its target is {targets[group]:.4g}"
    return f"groups below their targets go first: {', '.join(below)}; {own}"


def waits_because(wish: JobNeeds, around: Surroundings) -> str:
    """Return, in one line, the first obstacle that keeps the job from running.

    Obstacles that only a person can remove come before those that disappear on their own.

    The answer also mentions other groups that come first.

    >>> around = Surroundings(0, [NodeOutlook(4, 2048)], "", 0, 0, 10, 3600, 600)
    >>> waits_because(JobNeeds(1, 512), around)
    'no node is idle'
    """
    if wish.held:
        return f"held: {wish.hold_reason or 'by its owner'} (release it with `glean release`)"
    if wish.turn:
        return wish.turn
    if wish.paused_until_s is not None:
        then = datetime.fromtimestamp(wish.paused_until_s, around.zone)
        why = wish.unreachable or "it has failed"
        return f"{why}, and is tried again after a pause that ends at {then:%H:%M:%S}"
    if wish.moved:
        return f"it is being moved {wish.moved}"
    if wish.quota:
        return wish.quota
    behind = behind_others(wish.group, around.shares)
    return _in_the_way(wish, around) + (f" ({behind})" if behind else "")


def its_turn(before: int) -> str:
    """Return a phrase with the number of jobs that come before this one, or "" if there are none.

    >>> its_turn(470), its_turn(0)
    ('; about 470 jobs of its group go before it: those of its user by priority, of others saved ones first', '')
    """
    if not before:
        return ""
    jobs = "1 job" if before == 1 else f"about {before:,} jobs" if before < MOST_BEFORE else f"{before:,} jobs or more"
    go = "goes" if before == 1 else "go"
    return f"; {jobs} of its group {go} before it: those of its user by priority, of others saved ones first"


def _in_the_way(wish: JobNeeds, around: Surroundings) -> str:
    if around.nodes is None:
        return f"the scheduler does not answer: {around.problem}" if around.problem else "the cluster is not read yet"
    if around.nodes and not fits_somewhere(wish, around.nodes):
        return too_large(wish, around.nodes)
    if around.nodes and (nowhere := cannot_go_on(wish, around.nodes)):
        return nowhere
    left_s = max(0.0, around.boundary_s - around.now_s - around.agent_needs_s)
    if wish.needs_s > left_s:
        next_round = datetime.fromtimestamp(around.boundary_s, around.zone)
        needs = f"it needs {in_words(wish.needs_s)} of an agent's time"
        return f"{needs}, and this round has {in_words(left_s)} left: the next begins at {next_round:%H:%M}"
    return _in_time(wish, around, around.nodes)


def _in_time(wish: JobNeeds, around: Surroundings, nodes: Sequence[NodeOutlook]) -> str:
    """Return the obstacle to a job that fits on some node."""
    usable = [node for node in nodes if node.is_free]
    agents = around.agents_live + around.agents_pending
    turn = its_turn(wish.before)
    if around.closed:
        return around.closed
    if around.agents_pending:
        waiting = "waiting for agents that were submitted, which Slurm has not started yet"
        return f"{waiting}: {around.agents_pending}{around.slurm_says}{turn}"
    if agents >= around.agents_at_most:
        return f"the site's cap of {around.agents_at_most} agents is reached{turn}"
    if not fits_somewhere(wish, usable):
        if usable:
            return "no idle node is large enough"
        if any(node.is_excluded for node in nodes):
            return "the only idle nodes are excluded for a while: agents or jobs failed there (see `glean nodes`)"
        return ("all agents are busy and no other node is idle" if around.agents_live else "no node is idle") + turn
    if nowhere := cannot_go_on(wish, usable):
        return f"no idle node can {'restore' if wish.saved_on else 'start'} it: {nowhere}"
    next_round = datetime.fromtimestamp(around.boundary_s, around.zone)
    if around.boundary_s - around.now_s < around.shortest_slice_s:
        return f"too little is left of this round: agents start again at {next_round:%H:%M}{turn}"
    if around.problem:
        return f"no agent starts: {around.problem}"
    if not agents:
        start = f"control starts one when it looks at the cluster next, or at {next_round:%H:%M} with the next round"
        return f"no agent is running: {start}{turn}"
    return f"it waits for its turn{turn}" if turn else "nothing is in its way: the next free agent takes it"
