"""Checks of Slurm: its programs, its settings, the partitions, the nodes, and what keeps agents waiting. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gleaner.control.hostlist import expanded
from gleaner.control.settings import ClusterSettings
from gleaner.control.setup.facts import (
    TRIAL,
    Facts,
    MachineRole,
    NotRead,
    Output,
    Unread,
    dotted,
    needed,
    rows_in,
    version_in,
)
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning
from gleaner.control.slurm.interface import AGENT_PREFIX
from gleaner.control.slurm.run import NO_ANSWER

_VERSIONS = frozenset({"scontrol --version", "sinfo", "squeue", "sbatch", "scancel"})
"""The programs that were asked for their version."""
_ACCOUNT_COLUMNS = 3
_OLDEST, _NEWEST = (22, 5), (25, 11)
_SHORT_WAIT_S = 10
_SHORT_GRACE_S = 60
_SHORT_EXEMPTION_S = 60
_EPILOG_S = 45
"""Our Epilog waits up to forty seconds for an engine that is slow."""
_MANY_OF = 20
"""One node of so many that is down is worth a warning; on a large site some always are."""
_LEAST_MIB = 512
"""Less memory than this on a node is no use to jobs."""
MEND_CONFIG = "mend slurm.conf, then scontrol reconfigure"
_RESTART = "mend slurm.conf, then restart slurmctld"
_USUAL_REASONS = frozenset({"None", "Priority", "Resources", "BeginTime", ""})
_ABOUT_REASONS = "Slurm's page of squeue says what that is; sacctmgr, sinfo -R"
_LIMIT = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d{2}):(\d{2})")


def cluster(facts: Facts) -> ClusterSettings:
    """Return how agents are submitted. Raises `NotRead` where there is no Slurm."""
    found = needed(facts.settings).cluster
    if found.backend == "local":
        raise NotRead("[cluster] backend is local: there is no Slurm")
    return found


def config(facts: Facts) -> dict[str, str]:
    """Return the answer to `scontrol show config`. Raises `NotRead`."""
    cluster(facts)
    lines = (line.partition("=") for line in facts.output("scontrol config").stdout.splitlines())
    found = {key.strip(): value.strip() for key, is_there, value in lines if is_there}
    if "SlurmctldPort" not in found and "SelectType" not in found:
        raise NotRead("scontrol show config said what cannot be read")
    return found


def records(text: str) -> Iterator[dict[str, str]]:
    """Yield the records of `scontrol --oneliner`. The first value of a key counts: a comment may hold anything."""
    for line in text.splitlines():
        found: dict[str, str] = {}
        for key, value in re.findall(r"(\w+)=(\S*)", line):
            found.setdefault(key, value)
        if found:
            yield found


def seconds_in(limit: str) -> int | None:
    """Return the seconds of a time as Slurm prints it; None if it is not a time."""
    match = _LIMIT.fullmatch(limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of Slurm."""

    name: str
    nodes: frozenset[str]
    tier: int
    values: Mapping[str, str]


def partitions(facts: Facts) -> dict[str, Partition]:
    """Return the partitions by name. Raises `NotRead`."""
    cluster(facts)
    found: dict[str, Partition] = {}
    for values in records(facts.output("scontrol partitions").stdout):
        try:
            nodes = "" if values["Nodes"] == "(null)" else values["Nodes"]
            name = values["PartitionName"]
            found[name] = Partition(name, frozenset(expanded(nodes)), int(values["PriorityTier"]), values)
        except (LookupError, ValueError) as error:
            raise NotRead(f"scontrol show partition said what cannot be read: {error}"[:160]) from error
    return found


def ours(facts: Facts) -> Partition:
    """Return the agents' partition. Raises `NotRead`."""
    name = cluster(facts).partition
    found = partitions(facts).get(name)
    if found is None:
        raise NotRead(f"there is no partition {name}")
    return found


def programs(facts: Facts) -> Judgement:
    """Judge Slurm's programs and their version."""
    if facts.role is MachineRole.CONTROL and needed(facts.settings).cluster.backend == "local":
        return warning("[cluster] backend is local: agents run on this machine alone", 'backend = "slurm"')
    slurms = {"scontrol", "sinfo", "squeue", "sbatch", "scancel"}
    asked = [name for name in facts.programs if name.split()[0] in slurms and name != TRIAL]
    for name in asked:
        said = facts.programs[name]
        if isinstance(said, Unread):
            return fault(said.why, "install Slurm's programs here" if said.is_missing else "does slurmctld answer?")
        if said.status != 0 and name != "scontrol json":
            return fault(f"{name}: {said.complaint}", "does slurmctld answer? Look at its log, and at munge")
        lines = said.stdout.strip().splitlines()
        if name in _VERSIONS and len(lines) > 1:  # a wrapper's banner would be taken for a job's number, too
            return fault(f"{name} prints more than its version: {lines[0]}"[:160],
                         "is a wrapper of the site's in front of it?")  # fmt: skip
    found = version_in(facts.output("scontrol --version").stdout)[:2]
    if not found:
        return fault("scontrol says no version", "is it Slurm's?")
    if not _OLDEST <= found <= _NEWEST:
        judge = fault if found < _OLDEST else warning
        return judge(f"Slurm {dotted(found)}", "tried are 22.05 to 25.11")
    return ok(f"Slurm {dotted(found)}")


def select_type(facts: Facts) -> Judgement:
    """Judge how Slurm shares a node."""
    found = config(facts)
    kind, parameters = found.get("SelectType", ""), found.get("SelectTypeParameters", "").upper()
    if kind not in {"select/cons_tres", "select/cons_res"}:
        return fault(f"SelectType={kind}", f"SelectType=select/cons_tres; {_RESTART}")
    if "MEMORY" not in parameters:
        return fault(f"SelectTypeParameters={parameters}", f"SelectTypeParameters=CR_Core_Memory; {_RESTART}")
    return ok(f"{kind}, {parameters}")


def scheduler(facts: Facts) -> Judgement:
    """Judge the scheduler: agents start from backfill alone."""
    found = config(facts).get("SchedulerType", "")
    if found != "sched/backfill":
        return fault(f"SchedulerType={found}", f"SchedulerType=sched/backfill; {_RESTART}")
    return ok(found)


def preempt_type(facts: Facts) -> Judgement:
    """Judge whether partitions preempt each other."""
    found = config(facts).get("PreemptType", "")
    if found != "preempt/partition_prio":
        return fault(
            f"PreemptType={found}: agents are not preempted", f"PreemptType=preempt/partition_prio; {_RESTART}"
        )
    return ok(found)


def preempt_mode(facts: Facts) -> Judgement:
    """Judge the mode of preemption of the whole cluster."""
    found = config(facts).get("PreemptMode", "").upper()
    if not {"REQUEUE", "CANCEL"}.intersection(found.split(",")):
        return fault(f"PreemptMode={found}: regular work does not push agents off", f"PreemptMode=REQUEUE; {_RESTART}")
    return ok(found)


def exempt_time(facts: Facts) -> Judgement:
    """Judge the time in which agents may not be preempted. That of the QOS stands above the cluster's."""
    name, found = cluster(facts).qos, config(facts).get("PreemptExemptTime", "")
    whose = "slurm.conf"
    said = facts.programs.get("sacctmgr qos")
    if name and isinstance(said, Output):
        for row in rows_in(said.stdout):
            if row[0].lower() == name.lower() and row[-1]:
                whose, found = f"QOS {name}", row[-1]
    seconds = seconds_in(found) or 0
    if not seconds:
        return ok("agents may be preempted at once")
    judge = fault if seconds > _SHORT_EXEMPTION_S else warning
    mend = (
        f"take it out; {MEND_CONFIG}"
        if whose == "slurm.conf"
        else f"sacctmgr modify qos {name} set PreemptExemptTime=-1"
    )
    return judge(f"PreemptExemptTime={found} in {whose}: regular jobs wait so long for a new agent", mend)


def preempt_parameters(facts: Facts) -> Judgement:
    """Judge whether a preempted agent is told so."""
    found = config(facts).get("PreemptParameters", "")
    if "send_user_signal" not in found.lower():
        return fault(
            f"PreemptParameters={found or '(null)'}: a preempted agent hears nothing before the last signal",
            f"PreemptParameters=send_user_signal; {MEND_CONFIG}",
        )
    return ok(found)


def epilog(facts: Facts) -> Judgement:
    """Judge whether Slurm has an Epilog that may remove what an agent leaves."""
    found = [value for key, value in config(facts).items() if re.fullmatch(r"Epilog(\[\d+\])?", key)]
    paths = [path for path in found if path not in {"", "(null)"}]
    if not paths:
        return fault("slurm.conf has no Epilog: an agent's containers may outlive it",
                     f"Epilog=/usr/local/libexec/gleaner/epilog.sh; {MEND_CONFIG}")  # fmt: skip
    if not any("gleaner" in path for path in paths):
        return warning(f"Epilog={paths[0]} is not ours", "have it call /usr/local/libexec/gleaner/epilog.sh")
    limits = config(facts)
    key = "EpilogTimeout" if "EpilogTimeout" in limits else "PrologEpilogTimeout"
    match = re.match(r"(\d{1,10})\b", limits.get(key, ""))
    if match is not None and int(match[1]) < _EPILOG_S:
        return fault(f"{key}={match[1]}: Slurm drains a node where our Epilog needs longer",
                     f"{_EPILOG_S} or more; {MEND_CONFIG}")  # fmt: skip
    return ok(", ".join(paths))


def accounting(facts: Facts) -> Judgement:
    """Judge whether Slurm holds users to their accounts."""
    found = config(facts).get("AccountingStorageEnforce", "")
    words = set(found.lower().replace(" ", "").split(","))
    if not words & {"associations", "limits", "qos", "safe", "all"}:
        return fault(
            f"AccountingStorageEnforce={found}", f"AccountingStorageEnforce=associations,limits,qos; {_RESTART}"
        )
    if "safe" in words:
        words.add("limits")
    lacks = [word for word in ("limits", "qos") if word not in words and "all" not in words]
    if lacks:
        return warning(f"AccountingStorageEnforce={found} lacks {' and '.join(lacks)}", f"add it; {_RESTART}")
    return ok(found)


def kill_wait(facts: Facts) -> Judgement:
    """Judge the time between the last two signals, in which an agent that is cancelled saves."""
    found = config(facts).get("KillWait", "")
    match = re.match(r"(\d{1,6}) sec", found)
    if match is None:
        return not_checked(f"KillWait={found}")
    if int(match[1]) < _SHORT_WAIT_S:
        return warning(
            f"KillWait={match[1]}", f"30, Slurm's default, leaves a cancelled agent time to save; {MEND_CONFIG}"
        )
    return ok(f"{match[1]} s")


def default_memory(facts: Facts) -> Judgement:
    """Judge the memory of a job that names none."""
    found = config(facts)
    given = {key: found.get(key, "") for key in ("DefMemPerNode", "DefMemPerCPU", "DefMemPerGPU")}
    given = {key: value for key, value in given.items() if value.isdigit() and value.strip("0")}
    if not given:
        return warning("a job that names no memory gets all of its node", f"set DefMemPerCPU; {MEND_CONFIG}")
    return ok(", ".join(f"{key}={value}" for key, value in given.items()))


def partition(facts: Facts) -> Judgement:
    """Judge the agents' partition by itself."""
    name = cluster(facts).partition
    found = partitions(facts).get(name)
    if found is None:
        return fault(f"there is no partition {name}", "add its line to slurm.conf: docs/admin/install.md has it")
    values = found.values
    if not found.nodes:
        return fault(f"the partition {name} has no nodes", MEND_CONFIG)
    mode = values.get("PreemptMode", "").upper()
    if not {"REQUEUE", "CANCEL"}.intersection(mode.split(",")):
        return fault(f"partition {name}: PreemptMode={mode}: regular work waits for agents",
                     f"PreemptMode=REQUEUE in its line; {MEND_CONFIG}")  # fmt: skip
    grace_s = int(values["GraceTime"]) if values.get("GraceTime", "").isdigit() else 0
    if grace_s < _SHORT_GRACE_S:
        judge = fault if grace_s == 0 else warning
        return judge(
            f"partition {name}: GraceTime={grace_s}", f"GraceTime=120: preempted agents save in it; {MEND_CONFIG}"
        )
    state = values.get("State", "UP")
    if state != "UP":
        return fault(
            f"the partition {name} is {state}: no agent starts", f"scontrol update PartitionName={name} State=UP"
        )
    return ok(f"{name}: PreemptMode={mode}, GraceTime={grace_s}")


def limit_of_partition(facts: Facts) -> Judgement:
    """Judge whether an agent for a whole round fits into the partition's limit."""
    found, length_s = ours(facts), needed(facts.settings).rounds.length_s
    limit = found.values.get("MaxTime", "")
    seconds = seconds_in(limit)
    if seconds is not None and seconds < length_s:
        return fault(
            f"MaxTime={limit}, and a round is {length_s:g} s", f"raise MaxTime, or shorten the rounds; {MEND_CONFIG}"
        )
    return ok(f"MaxTime={limit}")


def tiers(facts: Facts) -> Judgement:
    """Judge whether all partitions that share nodes with the agents' one preempt it, and are not preempted."""
    own = ours(facts)
    others = [one for one in partitions(facts).values() if one.name != own.name and one.nodes & own.nodes]
    if low := [one.name for one in others if one.tier <= own.tier]:
        tier = f"PartitionName={low[0]} PriorityTier={own.tier + 9}"
        return fault(
            f"partition {', '.join(low)} does not have a higher tier than {own.name} ({own.tier})",
            f"scontrol update {tier}, and the same in slurm.conf",
        )
    if on := [one.name for one in others if one.values.get("PreemptMode", "").upper() != "OFF"]:
        return fault(
            f"partition {', '.join(on)} may be preempted itself", f"PreemptMode=OFF in its line; {MEND_CONFIG}"
        )
    return ok(f"{own.name} {own.tier}, " + (", ".join(f"{one.name} {one.tier}" for one in others) or "alone"))


def our_nodes(facts: Facts) -> list[dict[str, str]]:
    """Return the records of the nodes of the agents' partition. A reason is all that follows it on its line."""
    own = ours(facts)
    return [
        node | {"Reason": line.partition(" Reason=")[2]}
        for line in facts.output("scontrol nodes").stdout.splitlines()
        for node in records(line)
        if node.get("NodeName") in own.nodes
    ]


def most_agents(facts: Facts) -> int:
    """Return the most agents that control would have at once; 0 if that is not known."""
    try:
        return min(len(our_nodes(facts)), needed(facts.settings).rounds.agents_at_most)
    except NotRead:
        return 0


def accounts_above(facts: Facts, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the accounts above this one, each with its limits, from its parent up. Raises `NotRead`."""
    here = config(facts).get("ClusterName", "").lower()
    rows = rows_in(facts.output("sacctmgr accounts").stdout)
    if any(len(row) < _ACCOUNT_COLUMNS for row in rows):
        raise NotRead("sacctmgr said what cannot be read")
    accounts = {row[1]: row[2:] for row in rows if row[0].lower() in {here, ""}}
    parent = accounts.get(name.lower(), [""])[0]
    while parent in accounts:
        above, *limits = accounts.pop(parent)
        yield parent, limits
        parent = above


def memory(facts: Facts) -> Judgement:
    """Judge whether Slurm knows the memory of the nodes."""
    found = our_nodes(facts)
    if not found:
        return not_checked("scontrol shows none of the partition's nodes")
    if unknown := [node["NodeName"] for node in found if node.get("RealMemory") == "1"]:
        return fault(f"{', '.join(unknown[:4])} has RealMemory=1: no agent is sent there",
                     f"set RealMemory, as `slurmd -C` prints it there; {MEND_CONFIG}")  # fmt: skip
    least_mib, name = min((mib_for_jobs(node), node["NodeName"]) for node in found)
    most = ours(facts).values.get("MaxMemPerNode", "")
    if most.isdigit() and int(most) < least_mib:
        least_mib, name = int(most), f"partition {ours(facts).name}, by its MaxMemPerNode,"
    if least_mib < _LEAST_MIB:
        return fault(f"{name} has {least_mib} MiB for an agent and its jobs",
                     f"look at RealMemory, MemSpecLimit and MaxMemPerNode; {MEND_CONFIG}")  # fmt: skip
    return ok(f"{len(found)} nodes, {least_mib} MiB or more")


def mib_for_jobs(node: Mapping[str, str]) -> int:
    """Return the memory that a node has for jobs. Raises `NotRead`."""
    try:
        return int(node["RealMemory"]) - int(node.get("MemSpecLimit") or 0)
    except (LookupError, ValueError) as error:
        raise NotRead("scontrol show nodes said what cannot be read") from error


def nodes(facts: Facts) -> Judgement:
    """Judge whether Slurm can use the nodes, and whether the Epilog has drained any."""
    found = our_nodes(facts)
    if drained := [node["NodeName"] for node in found if "epilog" in node.get("Reason", "").lower()]:
        return fault(f"Slurm has drained {', '.join(drained[:4])}: the Epilog failed there",
                     "put epilog.sh on it, then scontrol update NodeName=... State=RESUME")  # fmt: skip
    away = [node["NodeName"] for node in found if _is_away(node.get("State", ""))]
    if away and len(away) == len(found):
        return fault("Slurm can use none of the partition's nodes", "sinfo -R says why")
    if len(away) * _MANY_OF >= len(found):
        return warning(
            f"{len(away)} of {len(found)} nodes are down or drained: {', '.join(away[:4])}", "sinfo -R says why"
        )
    return ok(f"{len(found) - len(away)} of {len(found)} nodes are up")


def _is_away(state: str) -> bool:
    """Return True if Slurm gives a node to no job until somebody sees to it.

    >>> [_is_away(state) for state in ("IDLE", "IDLE+CLOUD+POWERED_DOWN", "IDLE+DRAIN", "DOWN*", "IDLE+NOT_RESPONDING")]
    [False, False, True, True, True]
    """
    words = re.split(r"[^A-Z_]+", state)
    return "*" in state or any(
        word in {"DOWN", "NOT_RESPONDING"} or word.startswith(("DRAIN", "FAIL")) for word in words
    )


def agents(facts: Facts) -> Judgement:
    """Judge whether agents start: what control says of them, and why Slurm lets them wait while none runs."""
    cluster(facts)
    if isinstance(facts.problem, str) and facts.problem:
        return fault(facts.problem, _to_do_about(facts.problem, facts))
    lines = [line.split("|", 2) for line in facts.output("squeue agents").stdout.splitlines()]
    found = [(line[0], line[2]) for line in lines if len(line) == 3 and line[1].startswith(AGENT_PREFIX)]
    if running := sum(state == "RUNNING" for state, _ in found):
        return ok(f"{running} run")
    if odd := Counter(reason for _, reason in found if reason not in _USUAL_REASONS):
        reason, count = odd.most_common(1)[0]
        is_limit = reason.startswith(("Assoc", "QOS", "Max")) and reason != "QOSNotAllowed"
        to_do = "sacctmgr show assoc, sacctmgr show qos: a limit of Slurm's" if is_limit else _ABOUT_REASONS
        return warning(f"none runs; Slurm's reason for {count} of {len(found)} is {reason}", to_do)
    return ok(f"{len(found)} wait for free nodes" if found else "none is needed now")


def _to_do_about(problem: str, facts: Facts) -> str:
    """Return what to do about trouble with agents or Slurm, in control's words."""
    said = problem.lower()
    if "authentication" in said or "munge" in said:
        name = "gleaner" if isinstance(facts.account, Unread) else facts.account.name
        return f"as control's account: `runuser -u {name} -- munge -n | unmunge`; is munge's key slurmctld's, too?"
    if "(agent_command)" in problem:
        return "glean doctor node, on one of the nodes, says what the program lacks"
    if not problem.startswith(NO_ANSWER):
        return "control's log has more: journalctl -u gleaner-control"
    if "took more than" in said or "timed out" in said:
        return "slurmctld is busy or hangs: scontrol ping, sdiag; [cluster] timeout_s is how long control waits"
    return "does slurmctld run, and is its port not blocked by a firewall? scontrol ping"
