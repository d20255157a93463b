"""Checks of Slurm: its programs, the lines of slurm.conf, the partitions and nodes, and the reasons why agents wait."""

import os
import pwd
import re
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from gleaner.agent.node.compatibility import version
from gleaner.control.doctor.check import CONTROL, NODE, check
from gleaner.control.doctor.control_checks import problem
from gleaner.control.doctor.finding import Finding, MachineRole, Unread, fault, first, not_checked, ok, warning
from gleaner.control.doctor.look import Look, complaint
from gleaner.control.doctor.machine_checks import units
from gleaner.control.doctor.slurm_reading import (
    config,
    dotted,
    nodes_in,
    number_in,
    our_nodes,
    ours,
    partitions,
    rows,
    seconds_in,
)
from gleaner.control.setup import slurm_lines
from gleaner.control.setup.shipped import EPILOG
from gleaner.control.slurm.commands import submit
from gleaner.control.slurm.interface import AGENT_PREFIX, AgentRequest
from gleaner.control.slurm.run import is_no_answer
from gleaner.control.slurm_admin import settings as admin_settings

_MEND = "correct slurm.conf, then scontrol reconfigure"
_RESTART = "correct slurm.conf, then restart slurmctld"
_SOFT = ("DefMemPerCPU", "AccountingStorageEnforce")
"""Lines without which agents run, but regular users or Slurm's accounting are at a disadvantage."""
_OLDEST = (22, 5)
_SHORT_GRACE_S, _SHORT_EXEMPTION_S = 60, 60
_EPILOG_S = 45
"""The time limit that our Epilog needs, because it waits up to forty seconds for a slow engine."""
_AWAY = re.compile(r"\*|\bDOWN\b|NOT_RESPONDING|DRAIN|FAIL")
_LEAST_MIB = 512
"""The least memory on a node that is useful for jobs."""
_USUAL_REASONS = frozenset({"None", "Priority", "Resources", "BeginTime", ""})
_NO_NODE = "node configuration is not available"
"""Slurm's words if a job can never have the nodes: they are down, drained, reserved for a long time, or not in this
partition."""
_FEW_JOBS = {"bf_max_job_part": 10, "bf_max_job_start": 10, "bf_max_job_test": 100}
"""Parameters of backfill, and the smallest numbers with which agents can still start."""
_POLLS_REMEMBERED = 3
_ADMIN, _TIMER = "gleaner-slurm-admin", "gleaner-deadman.timer"


@check("Slurm's programs", (CONTROL, NODE))
def programs(look: Look) -> Finding:
    """Check Slurm's programs: they exist, answer, and are recent enough."""
    is_node = look.role is MachineRole.NODE
    text = ""
    for name in ("scontrol",) if is_node else ("scontrol", "sinfo", "squeue", "sbatch", "scancel"):
        try:
            text = look.printed(name, "--version").strip()
        except Unread as error:
            return fault(error.why, "install Slurm's programs here")
    asked = look.run("scontrol", "show", "config")
    if asked.status != 0 or "error" in asked.stderr:
        return fault(f"slurmctld does not answer here: {complaint(asked)}", "scontrol ping; look at munge and clock")
    found, answer = version(text)[:2], look.run("scontrol", "show", "job", "1", "--json") if is_node else None
    has_json = answer is None or answer.stdout.lstrip().startswith("{")
    return first(
        f"Slurm {dotted(found)}",
        (not has_json, fault, "scontrol writes no JSON", "install Slurm's JSON plugin: agents read their end from it"),
        (found < _OLDEST, fault, f"Slurm {dotted(found)} is too old", "versions 22.05 to 25.11 were tested"),
    )


@check("slurm.conf", (CONTROL,))
def slurm_conf(look: Look) -> Finding:
    """Check that slurmctld uses the lines that `glean setup` prints for slurm.conf."""
    found = config(look)
    lines = [
        line
        for _, line in slurm_lines.missing_lines(found, (), look.settings.cluster.account or "", has_partition=True)
    ]
    if not found["SelectType"].startswith("select/cons_"):
        lines.append("SelectType=select/cons_tres")
    soft = " ".join(line for line in lines if line.startswith(_SOFT))
    lacks = " ".join(line for line in lines if not line.startswith(_SOFT))
    exempt_s = seconds_in(found.get("PreemptExemptTime", "")) or 0
    return first(
        "the lines of `glean setup` are in force",
        (lacks, fault, f"slurmctld does not have in force {lacks}", "`glean setup control` prints these lines"),
        (exempt_s, fault if exempt_s > _SHORT_EXEMPTION_S else warning,
         f"regular jobs wait {exempt_s} s for a new agent", f"no PreemptExemptTime; {_MEND}"),
        (soft, warning, f"slurmctld does not have in force {soft}", "`glean setup control` shows what it does"),
    )  # fmt: skip


@check("Epilog", (CONTROL, NODE))
def epilog(look: Look) -> Finding:
    """Check the Epilog: it is in force, has enough time, and its file is on the node (otherwise Slurm drains it)."""
    if look.role is MachineRole.NODE:
        try:
            place = look.place(look.at(EPILOG))
        except Unread as error:
            return fault(error.why, "run `glean setup node`")
        if not place.mode & 0o111 or not place.is_roots_alone:
            return fault(f"{EPILOG} is {place}", f"chown root {EPILOG}; chmod 755 {EPILOG}")
        return ok(EPILOG)
    found = config(look)
    paths = found.get("Epilog", "")
    seconds = number_in(found.get("EpilogTimeout") or found.get("PrologEpilogTimeout", ""))
    return first(
        paths,
        ("gleaner" not in paths, warning if paths else fault,
         "no Epilog of slurm.conf is ours: containers may outlive an agent", f"Epilog={EPILOG}; {_MEND}"),
        (0 < seconds < _EPILOG_S, fault, f"Slurm drains a node whose Epilog needs {seconds} s",
         f"EpilogTimeout={_EPILOG_S} or more; {_MEND}"),
    )  # fmt: skip


@check("partition", (CONTROL,))
def partition(look: Look) -> Finding:
    """Check the agents' partition: its nodes, its preemption, and its time limit."""
    name, length_s = look.settings.cluster.partition, look.settings.rounds.length_s
    if name not in partitions(look):
        return fault(f"there is no partition {name}", "add its line to slurm.conf: `glean setup control` prints it")
    values = ours(look)
    mode, grace_s = values.get("PreemptMode", "").upper(), number_in(values.get("GraceTime", ""))
    limit_s, state = seconds_in(values.get("MaxTime", "")) or length_s, values.get("State", "UP")
    return first(
        f"{name}: PreemptMode={mode}, GraceTime={grace_s}",
        (not re.search("REQUEUE|CANCEL", mode), fault, f"partition {name} has PreemptMode={mode}", f"REQUEUE; {_MEND}"),
        (not grace_s, fault, f"partition {name} has GraceTime=0", f"GraceTime=120, in which agents save; {_MEND}"),
        (state != "UP", fault, f"partition {name} is {state}", f"scontrol update PartitionName={name} State=UP"),
        (limit_s < length_s, fault, f"partition {name} has a MaxTime below a round", f"raise MaxTime; {_MEND}"),
        (grace_s < _SHORT_GRACE_S, warning, f"partition {name} has GraceTime={grace_s}", f"GraceTime=120; {_MEND}"),
    )


@check("tiers", (CONTROL,))
def tiers(look: Look) -> Finding:
    """Check the partitions that share nodes with the agents' partition.

    All of them must preempt agents. A warning lists those in which regular jobs can be preempted by other regular jobs.
    """
    own, name = ours(look), look.settings.cluster.partition
    others = [
        one for one in partitions(look).values() if one["PartitionName"] != name and nodes_in(one) & nodes_in(own)
    ]
    tiers = {one["PartitionName"]: number_in(one.get("PriorityTier", "")) for one in (own, *others)}
    low = ", ".join(other for other, tier in tiers.items() if other != name and tier <= tiers[name])
    below = [one for one in others if tiers[one["PartitionName"]] < max(tiers.values())]
    preempted = ", ".join(one["PartitionName"] for one in below if one.get("PreemptMode", "").upper() != "OFF")
    return first(
        ", ".join(f"{one} has {tier}" for one, tier in tiers.items()),
        (low, fault, f"partition {low} does not have a higher tier than {name} ({tiers[name]})",
         f"a higher PriorityTier for it, or a lower one for {name}; {_MEND}"),
        (preempted, warning, f"regular jobs in {preempted} can be preempted by other regular jobs",
         f"if that is not meant: PreemptMode=OFF for it; {_MEND}"),
    )  # fmt: skip


@check("nodes", (CONTROL,))
def nodes(look: Look) -> Finding:
    """Check the partition's nodes: whether Slurm can use them, whether the Epilog has drained some, and their
    memory."""
    found = our_nodes(look)
    drained = ", ".join(node["NodeName"] for node in found if "epilog" in node["Reason"].lower())
    small = ", ".join(node["NodeName"] for node in found if number_in(node.get("RealMemory", "")) < _LEAST_MIB)
    away = [node["NodeName"] for node in found if _AWAY.search(node.get("State", ""))]
    return first(
        f"{len(found) - len(away)} of {len(found)} nodes are up",
        (drained, fault, f"Slurm has drained {drained}, since the Epilog failed there",
         "put epilog.sh on it, then scontrol update NodeName=... State=RESUME"),
        (len(away) == len(found), fault, "Slurm can use none of the partition's nodes", "sinfo -R shows why"),
        (small, fault, f"{small} has less than {_LEAST_MIB} MiB", f"RealMemory, as `slurmd -C` prints it; {_MEND}"),
    )  # fmt: skip


@check("agents", (CONTROL,))
def agents(look: Look) -> Finding:
    """Check that agents start, from control's own report and, if no agent runs, from Slurm's reason for the wait."""
    if trouble := problem(look):
        return fault(f"control reports a problem: {trouble}", "glean doctor node on one of the nodes; control's log")
    found = _queued_agents(look)
    running = sum(state == "RUNNING" for state, _ in found)
    odd = Counter(reason for state, reason in found if state == "PENDING" and reason not in _USUAL_REASONS)
    reason, count = odd.most_common(1)[0] if odd else ("", 0)
    seen = f"{running} run, and Slurm's reason for {count} that wait is {reason}"
    cure = "sacctmgr show qos, and show assoc: which limit is it?" if "Limit" in reason else "see man squeue"
    return first(
        f"{running} run, {len(found) - running} wait for free nodes",
        ("Limit" in reason and not running, fault, seen, cure),
        (reason and ("Limit" in reason or not running), warning, seen, cure),
    )


def _queued_agents(look: Look) -> list[tuple[str, str]]:
    """Return the state and Slurm's reason of each agent that is queued or runs."""
    wanted = (
        "--user",
        look.account_name,
        "--partition",
        look.settings.cluster.partition,
        "--states",
        "PENDING,RUNNING",
    )
    lines = look.printed("squeue", "--noheader", *wanted, "--format", "%T|%j|%r").splitlines()
    words = [line.split("|", 2) for line in lines]
    return [(word[0], word[2]) for word in words if len(word) == 3 and word[1].startswith(AGENT_PREFIX)]


@check("trial submission", (CONTROL,))
def trial(look: Look) -> Finding:
    """Check Slurm's answer to a trial submission of an agent (`sbatch --test-only`)."""
    asked, account = look.settings.cluster, look.account
    if os.geteuid() not in {0, account.pw_uid}:
        return not_checked("only root and the service account can try this", "run this as root")
    now_s, length_s = time.time(), look.settings.rounds.length_s
    request = AgentRequest(f"{AGENT_PREFIX}trial", now_s + length_s, now_s + length_s / 2, Path("/dev/null"))
    words = [word for word in submit(asked, request, now_s) if not word.startswith(("--parsable", "--deadline"))]
    ended = look.run(*words, "--test-only", *([f"--uid={account.pw_name}"] if look.is_root else []), "--wrap=true")
    lines = f"{ended.stdout}\n{ended.stderr}"
    if ended.status == 0:
        return ok(f"Slurm takes agents in {asked.partition}")
    if is_no_answer(lines) or _NO_NODE in lines:
        return not_checked(f"Slurm has no node or no answer: {complaint(ended)}", "other lines show why; scontrol ping")
    if "job submit limit" in lines.lower() and _queued_agents(look):
        return ok("a limit allows no more agents than run now")
    return fault(
        f"Slurm refuses agents: {complaint(ended)}", "look at limits (sacctmgr show qos) and plug-ins; slurmctld's log"
    )


@check("SchedulerParameters", (CONTROL,))
def scheduling(look: Look) -> Finding:
    """Check that backfill considers waiting agents, and that Slurm remembers ended ones for long enough (MinJobAge)."""
    found, rounds = config(look), look.settings.rounds
    given = {key: int(value) for key, value in re.findall(r"(\w+)=(\d{1,9})", found.get("SchedulerParameters", ""))}
    few = [f"{key}={given[key]}" for key, least in _FEW_JOBS.items() if 0 < given.get(key, 0) < least]
    age = number_in(found.get("MinJobAge", ""))
    return first(
        "backfill has room for agents",
        (given.get("bf_interval", 0) > rounds.pending_limit_s, warning, "agents wait shorter than bf_interval", _MEND),
        (few, warning, f"backfill looks at agents last ({', '.join(few)})", f"larger numbers; {_MEND}"),
        (0 < age < _POLLS_REMEMBERED * rounds.poll_s, warning, f"Slurm forgets jobs {age} s after their end",
         f"MinJobAge=300; {_MEND}"),
    )  # fmt: skip


@check("account", (CONTROL,))
def account(look: Look) -> Finding:
    """Check the agents' account in Slurm's accounting, and the facts that Slurm shows to the service account."""
    asked, name = look.settings.cluster, look.account_name
    try:
        found = rows(look, "assoc", f"user={name}", "format=Account,QOS", columns=2)
        level = "".join(row[0] for row in rows(look, "user", name, "format=AdminLevel", columns=1))
    except Unread as error:
        return fault(error.why, "do sacctmgr and slurmdbd work?")
    wanted, qos = (asked.account or "").lower(), (asked.qos or "").lower()
    private = config(look).get("PrivateData", "none").lower().replace(" ", "").split(",")
    hidden = set[str]() if level in {"Operator", "Administrator"} else {"jobs", "nodes", "partitions"} & set(private)
    judge = fault if hidden != {"jobs"} or look.settings.entitlements.mode != "off" else warning
    names = [row[0].lower() for row in found]
    qos_names = [one for row in found if row[0].lower() == wanted for one in row[1].lower().split(",")]
    user = f"sacctmgr modify user {name} set"
    return first(
        f"{name} uses account {wanted} and QOS {qos}",
        (not found or (wanted and wanted not in names), fault, f"Slurm's accounting has no account for {name}",
         f"sacctmgr add user {name} Account={wanted or 'gleaner'}"),
        (wanted and qos and qos not in qos_names, fault, f"{name} may not use QOS {qos}", f"{user} qos+={qos}"),
        (hidden, judge, f"PrivateData hides {' and '.join(sorted(hidden))} from {name}", f"{user} AdminLevel=Operator"),
        (not wanted, warning, "agents count in a fair share of others", '[cluster] account = "gleaner"'),
    )  # fmt: skip


@check("QOS", (CONTROL,))
def qos(look: Look) -> Finding:
    """Check the agents' QOS: agents' use counts in no share, and a waiting agent reserves no node."""
    name = look.settings.cluster.qos
    if name is None:
        return warning("[cluster] qos is not set", 'make one of their own for agents, and set qos = "gleaner"')
    every = rows(look, "qos", "format=Name,UsageFactor,Flags", columns=3)
    found = next((row for row in every if row[0].lower() == name.lower()), None)
    if found is None:
        return fault(f"there is no QOS {name}", f"sacctmgr add qos {name} UsageFactor=0 Flags=NoReserve")
    modify = f"sacctmgr modify qos {name} set"
    return first(
        f"{name}: UsageFactor={found[1]}, Flags={found[2]}",
        (version(found[1]), warning, f"QOS {name} has UsageFactor={found[1]}", f"{modify} UsageFactor=0"),
        ("noreserve" not in found[2].lower(), warning, f"QOS {name} lacks NoReserve: agents that wait keep nodes free",
         f"{modify} Flags+=NoReserve"),
    )  # fmt: skip


@check("entitlements", (CONTROL,))
def entitlements(look: Look) -> Finding:
    """Check the programs for entitlements and drains: the Slurm admin service, job_submit, the dead man's switch."""
    mode, socket = look.settings.entitlements.mode, look.settings.entitlements.slurm_admin_socket
    if mode == "off" and not socket.exists():
        return not_checked("only entitlements and drains need it")
    try:
        found = admin_settings.load(look.at(str(admin_settings.FILE)))
        account = pwd.getpwuid(socket.lstat().st_uid).pw_name
    except (OSError, KeyError, admin_settings.WrongSettings) as error:
        return fault(f"the Slurm admin service cannot run: {error}", f"correct that; systemctl restart {_ADMIN}")
    services = units(look, _ADMIN, _TIMER) if look.has_systemd else {}
    states = {name: unit["ActiveState"] for name, unit in services.items()}
    level, judge, is_used, has_script = "Administrator", fault if mode == "on" else warning, mode != "off", True
    conf = config(look)
    script = Path(conf.get("SLURM_CONF") or look.at("/etc/slurm/slurm.conf")).with_name("job_submit.lua")
    with suppress(Unread):  # slurmctld might be on another machine
        has_script = "gleaner" in look.text(script)
    if account not in {"root", conf.get("SlurmUser", "").partition("(")[0]}:
        level = "".join(row[0] for row in rows(look, "user", account, "format=AdminLevel", columns=1)) or "none"
    return first(
        f"the Slurm admin service runs as {account}, and listens to {found.control}",
        (states.get(_ADMIN, "active") != "active", fault, f"{_ADMIN} is {states.get(_ADMIN)}",
         f"systemctl status {_ADMIN}"),
        (found.control != look.account_name, fault, f"it listens to {found.control}, not {look.account_name}",
         f"correct `control` in {admin_settings.FILE}, then systemctl restart {_ADMIN}"),
        (not level.startswith("Admin"), fault, f"Slurm's accounting has AdminLevel={level} for {account}",
         f"sacctmgr add user {account} Account=gleaner AdminLevel=Administrator; or modify it so"),
        (is_used and "lua" not in conf.get("JobSubmitPlugins", "").lower().split(","), judge,
         "slurm.conf has no JobSubmitPlugins=lua: no job is held for entitlements", _RESTART),
        (is_used and not has_script, judge, f"{script} does not load ours",
         "dofile(...), call it last, and touch the file"),
        (is_used and states.get(_TIMER, "active") != "active", judge, f"{_TIMER}, which releases held jobs when"
         f" control is away, is {states.get(_TIMER)}", f"systemctl enable --now {_TIMER}"),
    )  # fmt: skip
