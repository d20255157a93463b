"""Checks of Slurm: its programs, its settings, the partitions, the nodes, and what keeps agents waiting. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gleaner.control.hostlist import expanded
from gleaner.control.settings import ClusterSettings
from gleaner.control.setup.facts import (
    Facts,
    MachineRole,
    NotRead,
    Unread,
    dotted,
    needed,
    version_in,
)
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning
from gleaner.control.slurm.interface import AGENT_PREFIX
from gleaner.control.slurm.run import NO_ANSWER

_OLDEST, _NEWEST = (22, 5), (25, 11)
_SHORT_WAIT_S = 10
_SHORT_GRACE_S = 60
_CONFIG = "mend slurm.conf, then scontrol reconfigure"
_RESTART = "mend slurm.conf, then restart slurmctld"
_USUAL_REASONS = frozenset({"None", "Priority", "Resources", "BeginTime", ""})
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
    asked = [name for name in facts.programs if name.split()[0] in {"scontrol", "sinfo", "squeue", "sbatch", "scancel"}]
    for name in asked:
        said = facts.programs[name]
        if isinstance(said, Unread):
            return fault(said.why, "install Slurm's programs here; does slurmctld answer?")
        if said.status != 0 and name != "scontrol json":
            return fault(f"{name}: {said.complaint}", "does slurmctld answer? Look at its log, and at munge")
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


def preempt_parameters(facts: Facts) -> Judgement:
    """Judge whether a preempted agent is told so."""
    found = config(facts).get("PreemptParameters", "")
    if "send_user_signal" not in found.lower():
        return fault(
            f"PreemptParameters={found or '(null)'}: a preempted agent hears nothing before the last signal",
            f"PreemptParameters=send_user_signal; {_CONFIG}",
        )
    return ok(found)


def epilog(facts: Facts) -> Judgement:
    """Judge whether Slurm has an Epilog that may remove what an agent leaves."""
    found = [value for key, value in config(facts).items() if re.fullmatch(r"Epilog(\[\d+\])?", key)]
    paths = [path for path in found if path not in {"", "(null)"}]
    if not paths:
        return fault("slurm.conf has no Epilog: an agent's containers may outlive it",
                     f"Epilog=/usr/local/libexec/gleaner/epilog.sh; {_CONFIG}")  # fmt: skip
    if not any("gleaner" in path for path in paths):
        return warning(f"Epilog={paths[0]} is not ours", "have it call /usr/local/libexec/gleaner/epilog.sh")
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
        return warning(f"KillWait={match[1]}", f"30, Slurm's default, leaves a cancelled agent time to save; {_CONFIG}")
    return ok(f"{match[1]} s")


def default_memory(facts: Facts) -> Judgement:
    """Judge the memory of a job that names none."""
    found = config(facts)
    given = {key: found.get(key, "") for key in ("DefMemPerNode", "DefMemPerCPU", "DefMemPerGPU")}
    given = {key: value for key, value in given.items() if value.isdigit() and value.strip("0")}
    if not given:
        return warning("a job that names no memory gets all of its node", f"set DefMemPerCPU; {_CONFIG}")
    return ok(", ".join(f"{key}={value}" for key, value in given.items()))


def partition(facts: Facts) -> Judgement:
    """Judge the agents' partition by itself."""
    name = cluster(facts).partition
    found = partitions(facts).get(name)
    if found is None:
        return fault(f"there is no partition {name}", "add its line to slurm.conf: docs/admin/install.md has it")
    values = found.values
    if not found.nodes:
        return fault(f"the partition {name} has no nodes", _CONFIG)
    mode = values.get("PreemptMode", "").upper()
    if not {"REQUEUE", "CANCEL"}.intersection(mode.split(",")):
        return fault(f"partition {name}: PreemptMode={mode}: regular work waits for agents",
                     f"PreemptMode=REQUEUE in its line; {_CONFIG}")  # fmt: skip
    grace_s = int(values["GraceTime"]) if values.get("GraceTime", "").isdigit() else 0
    if grace_s < _SHORT_GRACE_S:
        judge = fault if grace_s == 0 else warning
        return judge(f"partition {name}: GraceTime={grace_s}", f"GraceTime=120: preempted agents save in it; {_CONFIG}")
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
            f"MaxTime={limit}, and a round is {length_s:g} s", f"raise MaxTime, or shorten the rounds; {_CONFIG}"
        )
    return ok(f"MaxTime={limit}")


def tiers(facts: Facts) -> Judgement:
    """Judge whether all partitions that share nodes with the agents' one preempt it, and are not preempted."""
    own = ours(facts)
    others = [one for one in partitions(facts).values() if one.name != own.name and one.nodes & own.nodes]
    if low := [one.name for one in others if one.tier <= own.tier]:
        return fault(f"partition {', '.join(low)} does not have a higher tier than {own.name} ({own.tier})",
                     f"PriorityTier={own.tier + 9} for them; {_CONFIG}")  # fmt: skip
    if on := [one.name for one in others if one.values.get("PreemptMode", "").upper() != "OFF"]:
        return fault(f"partition {', '.join(on)} may be preempted itself", f"PreemptMode=OFF in its line; {_CONFIG}")
    return ok(f"{own.name} {own.tier}, " + (", ".join(f"{one.name} {one.tier}" for one in others) or "alone"))


def admittance(facts: Facts) -> Judgement:
    """Judge whether the partition takes the agents' account and QOS."""
    own, asked = ours(facts), cluster(facts)
    for key, name in (("AllowAccounts", asked.account), ("AllowQos", asked.qos)):
        allowed = own.values.get(key, "ALL")
        if name and allowed != "ALL" and name.lower() not in allowed.lower().split(","):
            return fault(f"partition {own.name}: {key}={allowed} leaves out {name}", f"add it; {_CONFIG}")
    for key, name in (("DenyAccounts", asked.account), ("DenyQos", asked.qos)):
        if name and name.lower() in own.values.get(key, "").lower().split(","):
            return fault(f"partition {own.name}: {key} names {name}", f"take it out; {_CONFIG}")
    return ok(f"{own.name} takes account {asked.account or 'any'}")


def our_nodes(facts: Facts) -> list[dict[str, str]]:
    """Return the records of the nodes of the agents' partition. A reason is all that follows it on its line."""
    own = ours(facts)
    return [
        node | {"Reason": line.partition(" Reason=")[2]}
        for line in facts.output("scontrol nodes").stdout.splitlines()
        for node in records(line)
        if node.get("NodeName") in own.nodes
    ]


def memory(facts: Facts) -> Judgement:
    """Judge whether Slurm knows the memory of the nodes."""
    found = our_nodes(facts)
    if not found:
        return not_checked("scontrol shows none of the partition's nodes")
    if unknown := [node["NodeName"] for node in found if node.get("RealMemory") == "1"]:
        return fault(f"{', '.join(unknown[:4])} has RealMemory=1: no agent is sent there",
                     f"set RealMemory, as `slurmd -C` prints it there; {_CONFIG}")  # fmt: skip
    return ok(f"{len(found)} nodes")


def nodes(facts: Facts) -> Judgement:
    """Judge whether Slurm can use the nodes, and whether the Epilog has drained any."""
    found = our_nodes(facts)
    if drained := [node["NodeName"] for node in found if "epilog" in node.get("Reason", "").lower()]:
        return fault(f"Slurm has drained {', '.join(drained[:4])}: the Epilog failed there",
                     "put epilog.sh on it, then scontrol update NodeName=... State=RESUME")  # fmt: skip
    away = [
        node["NodeName"] for node in found if re.search("DOWN|DRAIN|FAIL|NOT_RESPONDING|[*]", node.get("State", ""))
    ]
    if away and len(away) == len(found):
        return fault("Slurm can use none of the partition's nodes", "sinfo -R says why")
    if away:
        return warning(
            f"{len(away)} of {len(found)} nodes are down or drained: {', '.join(away[:4])}", "sinfo -R says why"
        )
    return ok(f"{len(found)} nodes are up")


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
        return warning(
            f"none runs, and {count} wait for {reason}", "Slurm's page of squeue says what that is; sacctmgr, sinfo -R"
        )
    return ok(f"{len(found)} wait for free nodes" if found else "none is needed now")


def _to_do_about(problem: str, facts: Facts) -> str:
    """Return what to do about trouble with agents or Slurm, in control's words."""
    said = problem.lower()
    if "authentication" in said or "munge" in said:
        name = "gleaner" if isinstance(facts.account, Unread) else facts.account.name
        return f"as control's account: `runuser -u {name} -- munge -n | unmunge`; is munge's key slurmctld's, too?"
    if not problem.startswith(NO_ANSWER):
        return "control's log has more: journalctl -u gleaner-control"
    if "took more than" in said or "timed out" in said:
        return "slurmctld is busy or hangs: scontrol ping, sdiag; [cluster] timeout_s is how long control waits"
    return "does slurmctld run, and is its port not blocked by a firewall? scontrol ping"


def reservations(facts: Facts) -> Judgement:
    """Judge whether reservations, a forgotten one perhaps, keep all of the partition's nodes from agents."""
    own = ours(facts)
    ends: dict[str, str] = {}
    names: list[str] = []
    for one in records(facts.output("scontrol reservations").stdout):
        nodes = _nodes_in(one.get("Nodes", "")) & own.nodes
        if one.get("State") != "ACTIVE" or not nodes or _takes_us(one, facts):
            continue
        names.append(one.get("ReservationName", "?"))
        for node in nodes:
            ends[node] = max(ends.get(node, ""), one.get("EndTime", ""))
    if not ends or len(ends) < len(own.nodes):
        return ok(f"{len(ends)} of {len(own.nodes)} nodes are reserved" + (f": {', '.join(names)}" if names else ""))
    return warning(
        f"no agent starts before {min(ends.values())}: all nodes of {own.name} are reserved ({', '.join(names)})",
        "scontrol show reservation says for whom; scontrol delete ReservationName=... what nobody needs any more",
    )


def _nodes_in(words: str) -> frozenset[str]:
    try:
        return frozenset(expanded("" if words == "(null)" else words))
    except ValueError as error:
        raise NotRead(f"scontrol show reservation said what cannot be read: {error}"[:160]) from error


def _takes_us(reservation: Mapping[str, str], facts: Facts) -> bool:
    """Return True for a reservation that takes our agents by itself."""
    if "MAGNETIC" not in reservation.get("Flags", ""):
        return False
    ours_here = {cluster(facts).account, None if isinstance(facts.account, Unread) else facts.account.name}
    admitted = ",".join(reservation.get(key, "") for key in ("Users", "Accounts"))
    return not ours_here.isdisjoint(admitted.split(","))
