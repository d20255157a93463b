"""The lines that Slurm needs for agents. Setup prints them for an admin to paste, and never edits Slurm's files.

`slurm_lines` is pure: it takes the output of `scontrol show config` and `scontrol show partition`. If a site already
preempts jobs, or has partitions of different tiers, our lines would change which jobs preempt which other jobs. In that
case these changes are returned instead of the lines.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gleaner.control.setup.shipped import EPILOG

PARTITION = QOS = "gleaner"
GRACE_S = 120
MEMORY_PER_CPU_MIB = 1024
_ENFORCED = ("associations", "limits", "qos")
_UNSET = {"", "0", "(null)", "n/a", "none", "unlimited", "off", "preempt/none"}
Settings = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SlurmLines:
    """The text to paste, or otherwise the changes for regular jobs, one sentence each.

    Both are empty if nothing is missing.
    """

    text: str = ""
    changes: tuple[str, ...] = ()


def read_config(text: str) -> Settings:
    """Return the settings that `scontrol show config` prints, except unset ones."""
    found: dict[str, str] = {}
    for key, value in re.findall(r"^(\w+)(?:\[\d+\])?[ \t]*=[ \t]*(.*?)[ \t]*$", text, re.MULTILINE):
        if value.lower() not in _UNSET:
            found[key] = f"{found[key]},{value}" if key in found else value  # Epilog[0] and Epilog[1]
    return found


def read_records(text: str) -> Iterator[dict[str, str]]:
    """Yield the records of `scontrol --oneliner`.

    The first value of a key counts, because a comment can contain any text.
    """
    for line in text.splitlines():
        if found := dict(reversed(re.findall(r"(\w+)=(\S*)", line))):
            yield found


def read_partitions(text: str) -> tuple[Settings, ...]:
    """Return the partitions that `scontrol --oneliner show partition` prints."""
    return tuple(one for one in read_records(text) if "PartitionName" in one)


def missing_lines(
    config: Settings, regular: Sequence[Settings], account: str, *, has_partition: bool
) -> list[tuple[str, str]]:
    """Return the missing lines for slurm.conf, each after its effect on regular jobs."""
    return [*_others(config), *_preemption(config, regular, account, has_partition=has_partition)]


def slurm_lines(config: Settings, partitions: Sequence[Settings], account: str) -> SlurmLines:
    """Return the text that an admin has to paste, or otherwise the facts that an admin has to know."""
    regular = [one for one in partitions if one["PartitionName"] != PARTITION]
    preemption = _preemption(config, regular, account, has_partition=len(regular) < len(partitions))
    changes = (*_changed_sharing(config), *(_changed_preemption(config, regular) if preemption else ()))
    if changes:
        return SlurmLines(changes=changes)
    blocks: list[tuple[str, list[tuple[str, str]]]] = []
    if lines := [*_others(config), *preemption]:
        blocks.append(("slurm.conf: paste this at its end, on every machine that has one", lines))
    if EPILOG not in config.get("Epilog", EPILOG):
        note = "It removes an agent's containers when its job ends. It does nothing for other jobs."
        blocks.append(
            (f"Epilog: {config['Epilog']} has to call this, if it does not yet", [(note, f"{EPILOG} || true")])
        )
    if lines:
        note = (
            "With deploy/slurm/job_submit.lua: jobs of these partitions wait until Gleaner lets them start. While\n"
            "# Gleaner gives no heartbeat, they all pass. It changes no job in other partitions."
        )
        line = f"#JobSubmitPlugins={_with(config, 'JobSubmitPlugins', 'lua')}"
        blocks.append(("job_submit: only where partitions have entitlements (entitlements.md)", [(note, line)]))
    texts = ["\n".join((f"# --- {title} ---", *(f"# {note}\n{line}" for note, line in rows))) for title, rows in blocks]
    return SlurmLines("\n".join((*texts, "# --- end ---")) if texts else "")


def _with(config: Settings, key: str, *words: str) -> str:
    found = [word for word in config.get(key, "").split(",") if word]
    return ",".join((*found, *(word for word in words if word not in {one.lower() for one in found})))


def _others(config: Settings) -> list[tuple[str, str]]:
    """Return the missing lines that do not concern preemption, each after its effect."""
    parameters, enforced = config.get("SelectTypeParameters", ""), config.get("AccountingStorageEnforce", "").lower()
    with_memory = re.sub(r"CR_(CORE|CPU|SOCKET)\b", r"CR_\1_MEMORY", parameters, flags=re.IGNORECASE)
    rows = (
        ("_MEMORY" in parameters.upper(),
         "A regular job also waits for memory, not for cores alone. slurmctld has to be restarted.",
         f"SelectTypeParameters={with_memory if with_memory != parameters else 'CR_Core_Memory'}"),
        ("DefMemPerCPU" in config or "DefMemPerNode" in config,
         "A regular job that names no memory gets this (MiB a core), and is ended above it. Choose your own.",
         f"DefMemPerCPU={MEMORY_PER_CPU_MIB}"),
        (config.get("SchedulerType") == "sched/backfill",
         "Short regular jobs start earlier, in gaps. No job with a higher priority waits for them.",
         "SchedulerType=sched/backfill"),
        ("Epilog" in config,
         "At the end of each job this removes an agent's containers. It leaves all else alone.", f"Epilog={EPILOG}"),
        (enforced == "all" or {*_ENFORCED} <= {*enforced.replace("safe", "safe,limits").split(",")},
         "Slurm refuses users without an association, and keeps the limits of sacctmgr. See: sacctmgr show assoc",
         f"AccountingStorageEnforce={_with(config, 'AccountingStorageEnforce', *_ENFORCED)}"),
    )  # fmt: skip
    return [(note, line) for is_there, note, line in rows if not is_there]


def _preemption(
    config: Settings, regular: Sequence[Settings], account: str, *, has_partition: bool
) -> list[tuple[str, str]]:
    """Return the missing lines that let regular jobs preempt agents, each after its effect."""
    lowest = min(map(_tier, regular), default=1)
    rows = (
        (config.get("PreemptType") == "preempt/partition_prio",
         "Regular jobs preempt agents. They do not preempt each other, since your partitions have one tier. If\n"
         "# you give them tiers one day, then add PreemptMode=OFF to the lower ones.",
         "PreemptType=preempt/partition_prio"),
        (not {"REQUEUE", "CANCEL"}.isdisjoint(_modes(config)), "This goes with PreemptType.", "PreemptMode=REQUEUE"),
        ("send_user_signal" in config.get("PreemptParameters", "").lower(),
         "Agents are told that they are preempted. Nothing changes for regular jobs.",
         f"PreemptParameters={_with(config, 'PreemptParameters', 'send_user_signal')}"),
        (has_partition,
         f"The agents' partition, for the account {account} alone. It is below all of yours.",
         f"PartitionName={PARTITION} Nodes=ALL Default=NO MaxTime=1-00:00:00 PriorityTier={int(lowest > 1)} "
         f"PreemptMode=REQUEUE GraceTime={GRACE_S} AllowAccounts={account} AllowQos={QOS} State=UP"),
    )  # fmt: skip
    return [(note, line) for is_there, note, line in rows if not is_there]


def _modes(config: Settings) -> list[str]:
    return config.get("PreemptMode", "").upper().split(",")


def _tier(partition: Settings) -> int:
    return int(partition.get("PriorityTier", "1"))


def _changed_sharing(config: Settings) -> Iterator[str]:
    if (found := config.get("SelectType")) not in ("select/cons_tres", "select/cons_res"):
        yield (f"SelectType={found} would become select/cons_tres: each regular job would get the cores and the memory "
               "that it asks for, and share its node, where it has whole nodes today")  # fmt: skip


def _changed_preemption(config: Settings, regular: Sequence[Settings]) -> Iterator[str]:
    """Yield the changes that the lines for preemption would make, if the site has its own preemption or tiers."""
    kind, mode = config.get("PreemptType"), config.get("PreemptMode")
    is_ours = kind == "preempt/partition_prio"
    if kind and not is_ours:
        yield (f"PreemptType={kind} would become preempt/partition_prio: jobs of a QOS that preempts others today "
               "would wait for them")  # fmt: skip
    if {"SUSPEND", "GANG"}.intersection(_modes(config)):
        yield (f"PreemptMode={mode} would become REQUEUE: jobs in {_names(regular)} that are suspended and resumed "
               "today would be requeued, and start over")  # fmt: skip
    for low in sorted(regular, key=_tier):
        if above := [one for one in regular if _tier(one) > _tier(low)]:
            yield (f"jobs in {low['PartitionName']} (PriorityTier={_tier(low)}) {'are' if is_ours else 'would be'} "
                   f"preempted by jobs in {_names(above)}, unless its line has PreemptMode=OFF")  # fmt: skip
    if kind and (on := [one for one in regular if one.get("PreemptMode", mode or "OFF").upper() != "OFF"]):
        yield (f"jobs in {_names(on)} can be preempted today (PreemptMode={mode}, of the partition or of the cluster). "
               "With PreemptMode=OFF on them agents alone would be preempted")  # fmt: skip
    if any(_tier(one) == 0 for one in regular):
        yield "agents need a tier below all others, so a partition with PriorityTier=0 would move to 1 or more"


def _names(partitions: Sequence[Settings]) -> str:
    return ", ".join(one["PartitionName"] for one in partitions)
