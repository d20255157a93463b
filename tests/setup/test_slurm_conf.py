"""A site's slurm.conf gets what Gleaner needs and nothing else, and is taken back to the letter."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from gleaner.control.setup.steps import text_edits
from gleaner.control.setup.steps.slurm_conf import EPILOG, Wanted, edit, read_included, remarks

WANTED = Wanted("gleaner", 2000)
CHANGE = edit(WANTED)

lines = st.sampled_from(
    [
        "ClusterName=site", "SelectType=select/linear", "selecttype = select/cons_tres # ours", "# SelectType=x", "",
        "SelectTypeParameters=CR_CPU,CR_LLN", "SelectTypeParameters=CR_Core_Memory", "DefMemPerNode=4000",
        "PreemptMode=OFF", "PreemptMode=SUSPEND,GANG", "PreemptParameters=strict_order,reclaim_cap", "Epilog=/site.sh",
        "AccountingStorageEnforce=associations,safe", "AccountingStorageEnforce=all", "SchedulerType=sched/builtin",
        "PartitionName=DEFAULT MaxTime=1-0 PriorityTier=5", "PartitionName=a Nodes=n[1-4] # big",
        "PartitionName=b Nodes=ALL \\", "    PriorityTier=3", "PartitionName=c priorityTier=1 PreemptMode=REQUEUE",
        "PartitionName=gleaner Nodes=n1", "Include machine.conf", "PartitionName=d Nodes=n[1-9] \\",
        "  PreemptMode=OFF PriorityTier=10", "PartitionName=e \\\n  State=UP \\\n  PreemptMode=OFF", "# a comment \\",
        "SchedulerType=sched/builtin SchedulerParameters=bf_window=9 SelectType=select/linear # both",
    ]
)  # fmt: skip
texts = st.builds(lambda some, end: "\n".join(some) + end, st.lists(lines, max_size=12), st.sampled_from(["", "\n"]))


def values(text: str) -> dict[str, str]:
    """Return the last value of each key, as Slurm reads it, and each partition's line."""
    found: dict[str, str] = {}
    text = re.sub(r"#.*", "", text)
    for line in re.sub(r"\\\n", "", text).split("\n"):
        for match in re.finditer(r"(\w+)\s*=\s*(\S*)", line):
            if match[1].lower() == "partitionname":
                found[f"partition {match[2]}"] = line[match.start(2) :].rstrip()
                break
            found[match[1].lower()] = match[2]
    return found


def continued(text: str) -> list[str]:
    """Return each group of lines that Slurm reads as one."""
    return re.findall(r"(?:^[^#\n]*\\\n)+.*$", text, flags=re.MULTILINE)


@settings(max_examples=examples(400), deadline=None)
@given(text=texts)
def test_what_agents_need_is_there_all_else_stays_and_all_of_it_is_taken_back(text: str) -> None:
    new = CHANGE(text)
    assert text_edits.without(new) == text
    assert CHANGE(text_edits.without(new)) == new
    assert all(each in new for each in continued(text))
    found = values(new)
    assert found["selecttype"].startswith("select/cons_tres")
    assert "_Memory" in found["selecttypeparameters"]
    assert "defmempercpu" in found or "defmempernode" in found or "\nInclude" in f"\n{text}"
    assert found.get("schedulerparameters") == values(text).get("schedulerparameters")
    assert "send_user_signal" in found["preemptparameters"]
    assert "REQUEUE" in found["preemptmode"]
    assert {"associations", "limits", "qos"} <= set(found["accountingstorageenforce"].split(",")) or (
        found["accountingstorageenforce"] == "all"
    )
    assert found.get("partition gleaner")
    before = text.split("\n")
    assert [line for line in before if line.startswith(("ClusterName", "Include", "#"))] == [
        line for line in new.split("\n") if line.startswith(("ClusterName", "Include", "# Sel", "# a comment"))
    ]


def test_a_partition_that_goes_on_in_the_next_line_stays_as_it_is() -> None:
    text = "PartitionName=a Nodes=ALL \\\n  PreemptMode=OFF PriorityTier=10\n"
    new = CHANGE(text)
    assert new.startswith(text + text_edits.BEGIN)
    assert values(new)["preemptmode"] == "REQUEUE"


def test_a_regular_partition_is_above_the_agents_and_nobody_preempts_it() -> None:
    found = values(CHANGE("PartitionName=a Nodes=ALL\nPartitionName=b PriorityTier=7 PreemptMode=REQUEUE\n"))
    assert found["partition a"] == "a Nodes=ALL PriorityTier=10 PreemptMode=OFF"
    assert found["partition b"] == "b PriorityTier=7 PreemptMode=REQUEUE"
    assert "AllowAccounts=gleaner" in found["partition gleaner"]


def test_what_a_default_partition_says_counts_for_those_after_it() -> None:
    found = values(CHANGE("PartitionName=DEFAULT PriorityTier=5 PreemptMode=OFF\nPartitionName=a Nodes=ALL\n"))
    assert found["partition a"] == "a Nodes=ALL"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SelectTypeParameters=CR_CPU,CR_LLN", "SelectTypeParameters=CR_CPU_Memory,CR_LLN"),
        ("PreemptParameters=strict_order", "PreemptParameters=strict_order,send_user_signal"),
        ("AccountingStorageEnforce=safe", "AccountingStorageEnforce=safe,associations,limits,qos"),
        ("SelectType=select/cons_tres", "SelectType=select/cons_tres"),
        ("Epilog=/site.sh", "Epilog=/site.sh"),
    ],
)
def test_a_value_keeps_what_the_site_needs(before: str, after: str) -> None:
    key, _, value = after.partition("=")
    assert values(CHANGE(f"{before}\n"))[key.lower()] == value


def test_only_the_value_that_has_to_change_is_replaced_in_a_line() -> None:
    text = "SchedulerType=sched/builtin SchedulerParameters=bf_window=60,SelectType=x # ours\n"
    new = CHANGE(text)
    assert "\nSchedulerType=sched/backfill SchedulerParameters=bf_window=60,SelectType=x # ours\n" in new
    assert text_edits.without(new) == text


def test_what_an_included_file_sets_is_not_set_again() -> None:
    included = {"a.conf": "Include b.conf\n", "b.conf": f"Epilog={EPILOG}\nSelectType=select/linear\nInclude a.conf\n"}
    text = "DefMemPerNode=1\nInclude a.conf\n"
    assert read_included(text, included.get) == included
    found = values(edit(WANTED, included)(text))
    assert "epilog" not in found
    assert "selecttype" not in found
    assert "schedulertype" in found
    (said,) = remarks(WANTED, included)(text)
    assert "b.conf, which slurm.conf includes, needs by hand: SelectType=select/cons_tres" in said


def test_a_file_that_cannot_be_read_may_set_what_must_not_stand_twice() -> None:
    text = "Include nodes-*.conf\n"
    assert values(CHANGE(text)).keys() & {"epilog", "defmempercpu", "selecttype"} == {"selecttype"}
    (said,) = remarks(WANTED)(text)
    assert "nodes-*.conf" in said


def test_what_has_to_be_done_by_hand_is_said() -> None:
    (epilog, goes_on) = remarks(WANTED)("Epilog=/site.sh\nPartitionName=a \\\n  Nodes=ALL\n")
    assert (EPILOG in epilog, "by hand" in goes_on) == (True, True)
    assert remarks(WANTED)("ClusterName=x\n") == ()
