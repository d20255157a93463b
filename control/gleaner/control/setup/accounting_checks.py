"""Checks of Slurm's accounting: the agents' account, their QOS, and the limits on both. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gleaner.control.setup.facts import ACCOUNT_LIMITS, QOS_LIMITS, Facts, NotRead, Unread, needed, rows_in, version_in
from gleaner.control.setup.finding import Judgement, fault, not_checked, ok, warning
from gleaner.control.setup.slurm_checks import (
    accounts_above,
    cluster,
    config,
    mib_for_jobs,
    most_agents,
    our_nodes,
    ours,
    seconds_in,
)

_UNREADABLE = "sacctmgr said what cannot be read"
_ROW_BEGIN = 3
"""Cluster, partition and user stand before an association's limits."""


def account(facts: Facts) -> Judgement:
    """Judge whether Slurm's accounting knows the agents' account."""
    asked = cluster(facts)
    said = facts.programs.get("sacctmgr assoc", Unread("sacctmgr was not asked"))
    if isinstance(said, Unread) or said.status != 0:
        why = said.why if isinstance(said, Unread) else f"sacctmgr: {said.complaint}"
        return fault(why, "do sacctmgr and slurmdbd work?")
    rows = rows_in(said.stdout)
    if any(len(row) != 4 for row in rows):
        return not_checked(_UNREADABLE)
    if not rows:
        return fault("Slurm's accounting does not know the service account",
                     "sacctmgr add user gleaner Account=gleaner QOS=gleaner DefaultQOS=gleaner")  # fmt: skip
    if asked.account is None:
        return warning("[cluster] account is not set: agents count in somebody's fair share", 'account = "gleaner"')
    of_account = [row for row in rows if row[0].lower() == asked.account.lower()]
    if not of_account:
        return fault(
            f"the service account may not use account {asked.account}",
            f"sacctmgr add user {rows[0][1]} Account={asked.account}",
        )
    if asked.qos and not any(asked.qos.lower() in row[2].lower().split(",") for row in of_account):
        return fault(
            f"account {asked.account} may not use QOS {asked.qos}",
            f"sacctmgr modify user {rows[0][1]} set qos+={asked.qos}",
        )
    return ok(f"{rows[0][1]} uses account {asked.account}" + (f" and QOS {asked.qos}" if asked.qos else ""))


@dataclass(frozen=True, slots=True)
class SlurmLimit:
    """A limit on the agents, or one part of it. `where`: the words of sacctmgr for whoever has it."""

    who: str
    where: str
    field: str
    part: str
    value: str

    @property
    def text(self) -> str:
        """The limit as Slurm says it."""
        return f"{self.field}={self.part}{'=' * bool(self.part)}{self.value}"


def _limits_on_agents(facts: Facts) -> Iterator[SlurmLimit]:
    """Yield the limits of the partition's QOS, the agents' QOS, the service account, the account, and those above it.

    Raises `NotRead`.
    """
    asked, ours_here = cluster(facts), config(facts).get("ClusterName", "").lower()
    name = "" if isinstance(facts.account, Unread) else facts.account.name
    of_qos = {row[0].lower(): row[1:] for row in rows_in(facts.output("sacctmgr qos limits").stdout)}
    for qos in dict.fromkeys((_qos_of_partition(facts), asked.qos)):
        if qos and qos.lower() in of_qos:
            yield from _limits_in(of_qos[qos.lower()], QOS_LIMITS, who=f"qos {qos}", where=f"qos {qos}")
    if asked.account is None:
        return
    associations = rows_in(facts.output("sacctmgr limits").stdout)
    if any(len(row) < _ROW_BEGIN for row in associations):
        raise NotRead(_UNREADABLE)
    for of_cluster, partition, user, *values in sorted(associations, key=lambda row: row[2] == ""):
        is_ours = of_cluster.lower() in {ours_here, ""} and partition in {asked.partition, ""}
        if is_ours and user in {name, ""}:
            who = f"user {user}" if user else f"account {asked.account}"
            where = f"user {user} where account={asked.account}" if user else who
            yield from _limits_in(values, ACCOUNT_LIMITS, who=who, where=where)
    for parent, values in accounts_above(facts, asked.account):
        for limit in _limits_in(values, ACCOUNT_LIMITS, who=f"account {parent}", where=f"account {parent}"):
            if limit.field.startswith("Grp"):  # sacctmgr shows the others at the account itself, which inherits them
                yield limit


def _qos_of_partition(facts: Facts) -> str:
    """Return the QOS whose limits hold for all jobs of the agents' partition; empty if there is none."""
    try:
        found = ours(facts).values.get("QoS", "N/A")
    except NotRead:
        return ""
    return "" if found == "N/A" else found


def _limits_in(values: Sequence[str], fields: Sequence[str], *, who: str, where: str) -> Iterator[SlurmLimit]:
    if len(values) != len(fields):
        raise NotRead(_UNREADABLE)
    for field, value in zip(fields, values, strict=True):
        for piece in filter(None, value.split(",")):
            part, _, amount = piece.rpartition("=")
            yield SlurmLimit(who, where, field, part, amount)


def _smallest_node(facts: Facts) -> dict[str, int]:
    """Return the fewest CPUs and MiB that a node of the partition has for jobs: an agent takes all of them."""
    try:
        found = our_nodes(facts)
        cpus = [int(node.get("CPUEfctv") or node["CPUTot"]) for node in found]
        memory = [mib_for_jobs(node) for node in found]
    except (NotRead, LookupError, ValueError):
        return {}
    return {"cpu": min(cpus), "mem": min(memory)} if found else {}


def _unmet_need(limit: SlurmLimit, least: Mapping[str, int]) -> tuple[str, str] | None:
    """Return what agents need and this limit does not give, and the value that would do; None if it is enough.

    >>> [_unmet_need(SlurmLimit("", "", "GrpTRES", part, value), {"cpu": 8, "mem": 4000})
    ...  for part, value in (("cpu", "4"), ("mem", "3G"), ("node", "0"), ("cpu", "8"), ("mem", "4000M"))]
    [('the smallest node has 8 CPUs', '8'), ('the smallest node has 4000 MiB', '4000M'), ('', '-1'), None, None]
    """
    match = re.fullmatch(r"(\d{1,15})([MGT]?)", limit.value)
    if match is None or limit.part not in {"", "cpu", "mem", "node"}:
        return None
    amount = int(match[1]) * {"": 1, "M": 1, "G": 2**10, "T": 2**20}[match[2]]
    if amount == 0:
        return "", "-1"
    wanted = least.get(limit.part, 0)
    if amount >= wanted:
        return None
    unit, suffix = ("CPUs", "") if limit.part == "cpu" else ("MiB", "M")
    return f"the smallest node has {wanted} {unit}", f"{wanted}{suffix}"


def limits(facts: Facts) -> Judgement:
    """Judge limits of the QOS, the account, and the service account in it, that let no agent start.

    Slurm takes the first Max* limit that is set, of QOS, user and account in this order, and every Grp* limit.
    """
    enforced = set(config(facts).get("AccountingStorageEnforce", "").lower().split(","))
    if not enforced & {"limits", "safe", "all"}:
        return ok("slurm.conf enforces no limits")
    least, rounds, most = _smallest_node(facts), needed(facts.settings).rounds, most_agents(facts)
    decided: set[tuple[str, str]] = set()
    short: list[Judgement] = []
    for limit in _limits_on_agents(facts):
        key = (limit.field.removesuffix("PerUser"), limit.part)
        if limit.field.startswith("Max") and key in decided:
            continue
        decided.add(key)
        seconds = seconds_in(limit.value)
        if seconds is None and (need := _unmet_need(limit, least)):
            why, value = need
            return fault(
                f"{limit.who} has {limit.text}{f', and {why}' if why else ''}: no agent starts",
                f"sacctmgr modify {limit.where} set {replace(limit, value=value).text}",
            )
        counts_agents = limit.part in {"", "node"} and limit.field != "MaxTRESPerJob"
        if counts_agents and limit.value.isdigit() and int(limit.value) < most:
            seen = f"{limit.who} has {limit.text}: at most {limit.value} of {most} agents can run at once"
            short.append(warning(seen, "raise it; or set [rounds] agents_at_most, if that is meant"))
        if seconds is not None and seconds < rounds.length_s:
            judge = fault if seconds < rounds.shortest_slice_s else warning
            starts = "no agent starts" if judge is fault else f"agents start only in the last {seconds} s of a round"
            short.append(judge(f"{limit.who} has {limit.text}, and a round is {rounds.length_s:g} s: {starts}",
                               "raise it, or shorten the rounds"))  # fmt: skip
    return short[0] if short else ok("no limit keeps all agents from starting")


def qos(facts: Facts) -> Judgement:
    """Judge the agents' QOS: what agents use counts in nobody's share, and a waiting agent reserves no node."""
    name = cluster(facts).qos
    if name is None:
        return warning("[cluster] qos is not set", 'make one of their own for agents, and set qos = "gleaner"')
    rows = rows_in(facts.output("sacctmgr qos").stdout)
    found = next((row for row in rows if len(row) == 4 and row[0].lower() == name.lower()), None)
    if found is None:
        return fault(f"there is no QOS {name}", f"sacctmgr add qos {name} UsageFactor=0 Flags=NoReserve")
    if version_in(found[1]) > (0, 0):
        return warning(f"QOS {name}: UsageFactor={found[1]}", f"sacctmgr modify qos {name} set UsageFactor=0")
    has_flag, is_preempted = "noreserve" in found[2].lower(), ours(facts).values.get("PreemptMode") != "OFF"
    if has_flag and not is_preempted:
        return fault(
            f"QOS {name} has NoReserve, and agents are not preempted: they stay on nodes planned for others",
            f"sacctmgr modify qos {name} set Flags-=NoReserve",
        )
    if is_preempted and not has_flag:
        return warning(
            f"QOS {name} lacks NoReserve: waiting agents keep nodes free, and planned nodes stay idle",
            f"sacctmgr modify qos {name} set Flags+=NoReserve",
        )
    return ok(f"{name}: UsageFactor=0" + (", NoReserve" if has_flag else ""))
