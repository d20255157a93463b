"""The lines for slurm.conf: the missing ones, and no line where a site has preemption or tiers already."""

import re
from pathlib import Path

import pytest

from gleaner.control.setup.slurm_lines import SlurmLines, read_config, read_partitions, slurm_lines

DEFAULTS = """\
AccountingStorageEnforce = none
DefMemPerNode           = UNLIMITED
JobSubmitPlugins        = (null)
PreemptMode             = OFF
PreemptParameters       = (null)
PreemptType             = preempt/none
SchedulerType           = sched/backfill
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE
Slurmctld(primary) at head is UP
"""
PLAIN = "PartitionName=long Nodes=ALL\nPartitionName=short Nodes=ALL\n"
INSTALL = Path(__file__).parents[2] / "docs/admin/install.md"
PRIO = "PreemptType=preempt/partition_prio\n"
# What a site has of its own, and what is told of it.
SITES = {
    "tiers": (
        f"{PRIO}PreemptMode=REQUEUE\nPartitionName=scavenger PriorityTier=1\nPartitionName=normal PriorityTier=2\n"
        "PartitionName=urgent PriorityTier=3 PreemptMode=OFF\n",
        ("jobs in scavenger (PriorityTier=1) are preempted by jobs in normal, urgent",
         "jobs in normal (PriorityTier=2) are preempted by jobs in urgent",
         "jobs in scavenger, normal can be preempted today (PreemptMode=REQUEUE"),
    ),
    "QOS": (
        f"PreemptType=preempt/qos\nPreemptMode=REQUEUE\n{PLAIN}",
        ("PreemptType=preempt/qos would become preempt/partition_prio: jobs of a QOS that preempts others today",),
    ),
    "suspended": (
        f"{PRIO}PreemptMode=SUSPEND,GANG\nPartitionName=long\nPartitionName=short PriorityTier=9\n",
        ("PreemptMode=SUSPEND,GANG would become REQUEUE: jobs in long, short",),
    ),
    "inherited": (
        f"{PRIO}PreemptMode=CANCEL\n{PLAIN}",
        ("jobs in long, short can be preempted today (PreemptMode=CANCEL, of the partition or of the cluster)",),
    ),
    "whole nodes": (
        f"SelectType=select/linear\n{PLAIN}",
        ("SelectType=select/linear would become select/cons_tres: each regular job would get the cores",),
    ),
    "tiers without preemption": (
        "PartitionName=low PriorityTier=0\nPartitionName=high PriorityTier=3\n",
        ("jobs in low (PriorityTier=0) would be preempted by jobs in high",
         "a partition with PriorityTier=0 would move to 1 or more"),
    ),
}  # fmt: skip


def decide(slurm_conf: str) -> SlurmLines:
    """Return what setup prints at a site with this slurm.conf, as `scontrol` shows it."""
    lines = [line for line in slurm_conf.splitlines() if line and not line.startswith("#")]
    config: dict[str, str] = dict(re.findall(r"^([\w\[\]]+) *= *(.*)$", DEFAULTS, re.MULTILINE))
    config |= {line.split("=", 1)[0]: line.split("=", 1)[1] for line in lines if not line.startswith("Partition")}
    partitions = [line for line in lines if line.startswith("Partition")]
    for default in ("PriorityTier=1", f"PreemptMode={config['PreemptMode']}"):
        key = default.partition("=")[0]
        partitions = [line if key in line else f"{line} {default}" for line in partitions]
    shown = "\n".join(f"{key} = {value}" for key, value in config.items())
    return slurm_lines(read_config(shown), read_partitions("\n".join(partitions)), "gleaner")


def pasted(lines: SlurmLines) -> str:
    """Return what an admin pastes into slurm.conf: the first block."""
    return lines.text.split("# --- ")[1].partition("\n")[2]


def test_a_plain_site_pastes_once_and_has_all() -> None:
    first = decide(PLAIN)
    assert first.changes == ()
    text = pasted(first)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.split("=")[0] for line in lines] == [
        "SelectTypeParameters", "DefMemPerCPU", "Epilog", "AccountingStorageEnforce", "PreemptType", "PreemptMode",
        "PreemptParameters", "PartitionName",
    ]  # fmt: skip
    assert text.count("\n# ") >= len(lines) - 1  # each after what it does
    assert "PriorityTier=0 PreemptMode=REQUEUE GraceTime=120 AllowAccounts=gleaner" in lines[-1]
    assert "job_submit" in first.text
    assert "#JobSubmitPlugins=lua" in first.text
    assert decide(PLAIN + text) == SlurmLines()
    assert f"```text\n{text}```" in INSTALL.read_text()


def test_what_a_site_has_stays() -> None:
    text = pasted(decide(
        "SelectTypeParameters=CR_SOCKET\nDefMemPerNode=4000\nPreemptParameters=youngest_first\nJobSubmitPlugins=site\n"
        "AccountingStorageEnforce=associations,safe\nPartitionName=all PriorityTier=10\n"
    ))  # fmt: skip
    assert "SelectTypeParameters=CR_SOCKET_MEMORY\n" in text
    assert "PreemptParameters=youngest_first,send_user_signal\n" in text
    assert "AccountingStorageEnforce=associations,safe,limits,qos\n" in text
    assert "DefMem" not in text
    assert "PriorityTier=1 " in text


@pytest.mark.parametrize("key", ["Epilog", "Epilog[0]"])
def test_an_epilog_of_the_sites_own_is_to_call_ours(key: str) -> None:
    found = decide(f"{key}=/site/epilog\nJobSubmitPlugins=site\n{PLAIN}")
    assert "\nEpilog=" not in found.text
    assert "Epilog: /site/epilog has to call this" in found.text
    assert "\n/usr/local/libexec/gleaner/epilog.sh || true\n" in found.text
    assert "#JobSubmitPlugins=site,lua" in found.text


@pytest.mark.parametrize("site", SITES)
def test_where_a_site_has_preemption_or_tiers_the_changes_are_told_and_no_line(site: str) -> None:
    slurm_conf, said = SITES[site]
    found = decide(slurm_conf)
    assert found.text == ""
    for each in said:
        assert any(each in change for change in found.changes), found.changes
